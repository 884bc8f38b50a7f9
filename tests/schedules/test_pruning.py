"""Pruning: what is forgotten is never counted again, and nothing that waits is refused for it."""

import inspect
import os
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import redis

from countersink.counting.apply import dead, guards
from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.applier import Applier
from countersink.counting.apply.dead import DeadRow
from countersink.counting.counters import deletion
from countersink.database.connection import connect
from countersink.database.errors import Refused
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.runtime.dimensions import RowKey
from countersink.runtime.retry import Pace
from countersink.schedules.errors import JobFailed
from countersink.schedules.jobs import Context, JobOutcome, retention
from countersink.schedules.options import JobOptions
from countersink.store import Store
from countersink.store.verify import open_session, verify
from countersink.stream.decode import decode_rows
from countersink.stream.entry import Sealed
from countersink.stream.errors import StreamUnavailable
from countersink.stream.group import Group
from countersink.stream.names import PARTITIONS_KEY, PARTITIONS_USED_KEY, stream_key
from tests.support.entries import Killed, die_at, entry, guard_count, minute, slots
from tests.support.ledger import post_planted
from tests.support.oracle import Oracle
from tests.support.traffic import Traffic, backlog, now_ms, send
from tests.support.width_rows import plant
from tests.worker.running import drain

STREAM = stream_key(0)
DAY_MS = 86_400_000
LEDGER_DAYS = 3
"""Of guards, by default."""


class Queue:
    """What a test sends, and what the tables then say.

    Attributes:
        now: Unix ms by Redis' clock.
    """

    def __init__(self, context: Context, client: redis.Redis, session: Session) -> None:
        self.context = context
        self.client = client
        self.session = session
        self.traffic = Traffic(1)
        self.now = now_ms(client)

    def send(self, *days_ago: int, partition: int = 0) -> Sealed:
        """Send entries that were made so many days ago; the last of them."""
        made = [self.traffic.entry(self.now - days * DAY_MS) for days in days_ago]
        send(self.client, *made, partition=partition)
        return made[-1]

    def take(self) -> int:
        """Read as a worker that then dies: its entries are pending; how many."""
        group = Group(self.client, [STREAM], "died")
        group.ensure()
        return len(list(group.read(100, 0)))

    def count(self) -> None:
        """Let a worker count all that waits, whoever holds it."""
        assert drain(self.context.redis_url, self.context.mysql_url, claim_idle_ms=1) == 0

    def age(self) -> None:
        """Make the guards as old as if each entry had been counted when it was sent."""
        self.session.execute(
            "UPDATE applied_entry SET keep_from = CONV(SUBSTR(HEX(entry_id), 1, 12), 16, 10)"
        )

    def prune(self) -> int:
        """How many guards go."""
        return retention.prune(self.context).rows

    def forgotten(self, days: int = LEDGER_DAYS, *, within_ms: int = 0) -> None:
        """Assert that what was sent before is told no more from what was counted."""
        assert abs(guards.watermark(self.session) - (self.now - days * DAY_MS)) <= within_ms

    def exact(self, *, refused: int = 0) -> None:
        """Every increment is counted once, and so many entries are dead as too old."""
        with Oracle(self.context.mysql_url) as oracle:
            oracle.check(self.traffic.expected)
        assert dead.count(self.session) == ({"too_old": refused} if refused else {})


@pytest.fixture
def queue(context: Context, redis_client: redis.Redis, session: Session) -> Queue:
    """A queue in which nothing waits."""
    return Queue(context, redis_client, session)


def test_guards_older_than_the_ledger_days_go(queue: Queue) -> None:
    queue.send(9, 5, 4, 2, 1)
    queue.count()
    queue.age()
    done = retention.prune(queue.context)
    assert done == JobOutcome(rows=3, detail="3 guard rows and 0 runs deleted")
    queue.forgotten(within_ms=60_000)
    assert queue.prune() == 0
    queue.exact()


def test_a_redelivery_after_a_lost_acknowledgement_is_known(queue: Queue) -> None:
    queue.send(9)
    queue.count()
    lost = queue.send(8)
    assert queue.take() == 1
    applier = Applier(queue.context.mysql_url, 3)
    rows, _, _ = decode_rows(lost.rows)
    applier.apply([Incoming(bytes.fromhex(lost.id), lost.at, rows)])
    applier.close()
    queue.age()
    assert queue.prune() == 1
    queue.forgotten(8)
    queue.count()
    queue.exact()
    assert queue.prune() == 1


def test_a_resend_counts_once_before_pruning_and_after_it(queue: Queue) -> None:
    sent = queue.send(9)
    queue.count()
    send(queue.client, sent)
    queue.count()
    queue.exact()
    queue.age()
    send(queue.client, sent)
    assert queue.prune() == 0  # it waits again
    queue.count()
    queue.exact()
    assert queue.prune() == 1
    send(queue.client, sent)  # whether it was counted nobody can tell any more
    queue.count()
    queue.exact(refused=1)


@pytest.mark.parametrize("others", [0, 250])
def test_what_a_spool_replays_is_counted_though_it_was_sent_long_ago(
    queue: Queue, others: int
) -> None:
    """It lies behind entries that were sent after it."""
    queue.send(*[0] * (others + 1))
    queue.send(9, 0)
    queue.prune()
    queue.forgotten(9)
    queue.count()
    queue.exact()
    queue.prune()
    queue.forgotten(within_ms=60_000)


def test_what_a_dead_consumer_holds_is_counted_when_it_comes_back(queue: Queue) -> None:
    queue.send(9, 8)
    assert queue.take() == 2
    queue.send(0)
    queue.prune()
    queue.count()
    queue.exact()


def test_a_backlog_older_than_the_ledger_days_is_counted_from_every_stream_ever_used(
    queue: Queue,
) -> None:
    queue.client.set(PARTITIONS_KEY, 1)
    queue.client.sadd(PARTITIONS_USED_KEY, 0, 5)
    queue.send(8)
    queue.send(9, 0, partition=5)
    for _ in range(2):
        queue.prune()
        queue.forgotten(9)
    queue.count()
    assert backlog(queue.client, 6) == 0
    queue.exact()


def test_an_entry_of_another_program_without_a_time_is_counted_too(queue: Queue) -> None:
    made = queue.traffic.entry(queue.now)
    queue.client.xadd(STREAM, {"rows": made.rows}, id=f"{queue.now - 9 * DAY_MS}-0")
    queue.prune()
    queue.forgotten(9)
    queue.count()
    queue.exact()


def test_without_redis_nothing_is_pruned(queue: Queue) -> None:
    queue.send(9)
    queue.count()
    queue.age()
    nowhere = replace(queue.context, redis_url="redis://127.0.0.1:1/0")
    with pytest.raises(StreamUnavailable, match="nothing was pruned"):
        retention.prune(nowhere)
    stopping = replace(queue.context, stop=lambda: True)
    with pytest.raises(JobFailed, match="nothing was pruned"):
        retention.prune(stopping)
    assert guards.watermark(queue.session) == 0
    assert guard_count(queue.session) == 1


def test_clocks_apart_prune_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL's clock is set for the session of the run."""

    def ahead(mysql_url: str, *, read_timeout: float, lock_wait: int) -> Session:
        session = open_tables(mysql_url, read_timeout=read_timeout, lock_wait=lock_wait)
        session.execute("SET SESSION timestamp = %s", (queue.now // 1000 + 3600,))
        return session

    monkeypatch.setattr(retention, "open_tables", ahead)
    with pytest.raises(Refused, match=r"clocks of MySQL and Redis differ by 3,[56]"):
        queue.prune()
    assert guards.watermark(queue.session) == 0


def test_runs_that_ended_long_ago_go(session: Session) -> None:
    for days, state in ((1, "done"), (9, "done"), (10, "failed"), (11, "skipped")):
        for minutes in range(3):
            add_run(session, timedelta(days=days, minutes=minutes), state)
    for state in ("planned", "running"):
        add_run(session, timedelta(days=12), state)
    assert retention.delete_runs(session, 8.5, Pace(), chunk=2) == (9, True)
    assert retention.delete_runs(session, 8.5, Pace()) == (0, True)
    assert session.query("SELECT state, COUNT(*) FROM job_run GROUP BY state ORDER BY 1") == [
        ("done", 3),
        ("planned", 1),
        ("running", 1),
    ]
    assert retention.delete_runs(session, 2.0**53 - 1, Pace()) == (0, True)
    assert retention.delete_runs(session, 0, Pace()) == (3, True)


def test_a_run_that_is_cut_off_between_transactions_says_so(
    context: Context, session: Session
) -> None:
    values = ", ".join(f"(UNHEX('{number:032x}'), 1)" for number in range(10_001))
    session.execute(f"INSERT INTO applied_entry (entry_id, keep_from) VALUES {values}")

    def gone() -> bool:
        return guard_count(session) < 10_001

    done = retention.prune(replace(context, stop=gone))
    assert (done.rows, done.finished) == (10_000, False)
    assert done.detail.endswith("0 runs deleted; stopped early, the next run goes on")


@pytest.mark.servers("mariadb", "mysql")
def test_a_removed_breakdown_goes_to_its_last_row_though_its_deletion_was_killed(
    context: Context, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    key: RowKey = (("country", "DE"), ("page", "/a"))

    def names() -> list[str]:
        return [name for (name,) in session.query("SELECT name FROM counter ORDER BY name")]

    with Store(context.mysql_url) as store:
        store.counters.set("views", dimensions=["country", "page"], breakdowns=["country", "page"])
        Applier(context.mysql_url, slot=1).apply([entry([(0, "views", key, minute(), 7)])])
        with monkeypatch.context() as killed:
            dying = partial(deletion.delete_counter, reached=die_at(4))
            killed.setattr(deletion, "delete_counter", dying)
            with pytest.raises(Killed):
                store.counters.set("views", breakdowns=["page"])
    assert names() == ["views", "views#1", "views#2"]
    stopped = retention.prune(replace(context, stop=lambda: guards.watermark(session) > 0))
    assert (stopped.rows, stopped.finished) == (0, False)
    done = retention.prune(context)
    assert done == JobOutcome(1, "0 guard rows and 0 runs deleted, 1 row of removed breakdowns")
    # Rows of an application that knew the breakdown still.
    plant(session, ("views#1", "2026-11-21", "DE", 256, 3))
    post_planted(session)
    assert retention.prune(context).rows == 0
    assert names() == ["views", "views#1", "views#2"]
    session.execute("UPDATE counter SET zone_fixed = zone_fixed - INTERVAL 11 MINUTE")
    assert retention.prune(context).rows == 1
    assert names() == ["views", "views#2"]
    assert slots(session) == {"views": 7, "views#2": 7}
    with open_session(context.mysql_url) as verifying:
        assert verify(verifying).agrees


@pytest.mark.servers("mariadb", "mysql")
def test_a_removed_breakdown_that_others_hold_holds_up_no_other(
    context: Context, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "ATTEMPTS", 1)
    key: RowKey = (("country", "DE"), ("page", "/a"))
    with Store(context.mysql_url) as store:
        store.counters.set("views", dimensions=["country", "page"], breakdowns=["country", "page"])
    Applier(context.mysql_url, slot=1).apply([entry([(0, "views", key, minute(), 7)])])
    session.execute("UPDATE counter SET dimensions = NULL WHERE breakdown_of = 'views'")
    with connect(context.mysql_url) as holder, holder.transaction():
        holder.query("SELECT 1 FROM counter_slot WHERE counter = 'views#1' FOR UPDATE")
        done = retention.prune(context)
        assert slots(session) == {"views": 7, "views#1": 7}
    assert (done.rows, done.finished) == (1, True)
    assert done.detail.endswith(
        "1 row of removed breakdowns; 1 removed breakdown left for the next run, as other"
        " transactions held rows"
    )
    assert retention.prune(context).rows == 1
    assert slots(session) == {"views": 7}


def set_aside(session: Session, number: int, ago: timedelta, reason: str = "bad_key") -> None:
    """So many dead letters, and as many that were not kept, of a counter called as the reason."""
    name = os.urandom(16)
    letters = [
        DeadRow(name, position, "s", 1, reason, "why", b"[]", counter=reason)
        for position in range(number)
    ]
    with session.transaction():
        dead.insert(session, letters)
    session.execute(
        "UPDATE dead_row SET created = created - INTERVAL %s SECOND WHERE entry_id = %s",
        (round(ago.total_seconds()), name),
    )
    session.execute(
        "INSERT INTO dead_group VALUES (%s, %s, %s, UTC_TIMESTAMP(3) - INTERVAL %s SECOND)",
        (reason, reason, number, round(ago.total_seconds())),
    )


@pytest.mark.servers("mariadb", "mysql")
def test_dead_letters_older_than_the_dead_days_go(context: Context, session: Session) -> None:
    set_aside(session, 350, timedelta(days=91), "bad_key")
    set_aside(session, 3, timedelta(days=89), "bad_minute")
    session.execute("INSERT INTO dead_group VALUES ('empty', '', 0, UTC_TIMESTAMP(3))")
    keeping = replace(context, options=JobOptions(dead_days=0, compact_share=1.0))
    assert retention.prune(keeping).detail == "0 guard rows and 0 runs deleted"
    assert dead.count(session) == {"bad_key": 350, "bad_minute": 3}
    assert session.query("SELECT reason FROM dead_group ORDER BY reason") == [
        ("bad_key",),
        ("bad_minute",),
    ]
    done = retention.prune(context)
    assert done == JobOutcome(350, "0 guard rows and 0 runs deleted, 350 dead letters")
    assert dead.count(session) == {"bad_minute": 3}
    assert dead.not_kept(session) == {("bad_minute", "bad_minute"): 3}


@pytest.mark.servers("mariadb", "mysql")
def test_dead_letters_are_pruned_beside_a_worker_that_sets_some_aside(mysql_url: str) -> None:
    name = os.urandom(16)
    new = DeadRow(name, 0, "s", 1, "bad_key", "why", b"[]", counter="bad_key")
    with connect(mysql_url) as worker, connect(mysql_url) as pruner:
        set_aside(worker, 250, timedelta(days=2))
        with worker.transaction():
            assert dead.record(worker, [new]) == 0
            assert dead.prune(pruner, 1) == (250, True)
        assert dead.count(pruner) == {"bad_key": 1}


def add_run(session: Session, ago: timedelta, state: str) -> None:
    session.execute(
        "INSERT INTO job_run (job, planned_at, due_at, state)"
        " VALUES (%s, UTC_TIMESTAMP() - INTERVAL %s SECOND, UTC_TIMESTAMP(3), %s)",
        (f"job {state}", round(ago.total_seconds()), state),
    )


@pytest.mark.servers("mariadb", "mysql")
def test_a_stop_while_others_hold_a_removed_breakdown_is_a_stop(
    context: Context, session: Session
) -> None:
    with Store(context.mysql_url) as store:
        store.counters.set("views", dimensions=["page"], breakdowns=["page"])
    Applier(context.mysql_url, slot=1).apply(
        [entry([(0, "views", (("page", "/a"),), minute(), 7)])]
    )
    session.execute("UPDATE counter SET dimensions = NULL WHERE breakdown_of = 'views'")
    asked: list[str] = []

    def stop() -> bool:
        """Only the pause asks after a conflict."""
        paused = any(each.function == "pause" for each in inspect.stack())
        asked.extend(["pause"] * paused)
        return bool(asked)

    with connect(context.mysql_url) as holder, holder.transaction():
        holder.query("SELECT 1 FROM counter_slot WHERE counter = 'views#1' FOR UPDATE")
        done = retention.prune(replace(context, stop=stop))
    assert asked
    assert not done.finished
    assert done.detail.endswith("runs deleted; stopped early, the next run goes on")
