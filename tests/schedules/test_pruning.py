"""Pruning: what is forgotten is never counted again, and nothing that waits is refused for it."""

import os
from dataclasses import replace
from datetime import timedelta

import pytest
import redis

from countersink.runtime.pace import Pace
from countersink.schedules.errors import JobFailed
from countersink.schedules.jobs import Context, JobOutcome, pruning
from countersink.schedules.options import JobOptions
from countersink.store.apply import dead, guards
from countersink.store.apply.amounts import Incoming
from countersink.store.apply.apply import Applier
from countersink.store.apply.dead import DeadRow
from countersink.store.connection import Session, connect
from countersink.store.errors import Refused
from countersink.store.sessions import open_tables
from countersink.stream.decode import decode_rows
from countersink.stream.errors import StreamUnavailable
from countersink.stream.group import Group
from countersink.stream.names import PARTITIONS_KEY, PARTITIONS_USED_KEY, stream_key
from tests.store.helpers import guard_count
from tests.support.oracle import Oracle
from tests.support.traffic import Traffic, backlog, now_ms, send
from tests.worker.running import drain

STREAM = stream_key(0)
DAY_MS = 86_400_000


@pytest.fixture
def context(redis_url: str, mysql_url: str) -> Context:
    """Context of a run: guards are kept for three days, and no pauses."""
    options = JobOptions(ledger_days=3, compact_share=1.0)
    return Context(mysql_url=mysql_url, redis_url=redis_url, options=options, stop=lambda: False)


def take(client: redis.Redis, name: str = "died", count: int = 100) -> list[str]:
    """Read as a worker that then dies: its entries are pending."""
    group = Group(client, [STREAM], name)
    group.ensure()
    return [delivery.stream_id for delivery in group.read(count, 0)]


def count(context: Context, **options: object) -> None:
    """Let a worker count all that waits, whoever holds it."""
    assert drain(context.redis_url, context.mysql_url, claim_idle_ms=1, **options) == 0


def age(context: Context) -> None:
    """Make the guards as old as if each entry had been counted when it was sent."""
    with connect(context.mysql_url) as session:
        session.execute(
            "UPDATE applied_entry SET keep_from = CONV(SUBSTR(HEX(entry_id), 1, 12), 16, 10)"
        )


def exact(context: Context, traffic: Traffic, *, refused: int = 0) -> None:
    """Every increment is counted once, and so many entries are dead as too old."""
    with Oracle(context.mysql_url) as oracle:
        oracle.check(traffic.expected)
    with connect(context.mysql_url) as session:
        assert dead.count(session) == ({"too_old": refused} if refused else {})


def watermark(context: Context) -> int:
    with connect(context.mysql_url) as session:
        return guards.watermark(session)


def test_guards_older_than_the_ledger_days_go(context: Context, redis_client: redis.Redis) -> None:
    traffic, now = Traffic(1), now_ms(redis_client)
    send(redis_client, *(traffic.entry(now - days * DAY_MS) for days in (9, 5, 4, 2, 1)))
    count(context)
    age(context)
    done = pruning.prune(context)
    assert done == JobOutcome(rows=3, detail="3 guard rows and 0 runs deleted")
    assert abs(watermark(context) - (now - 3 * DAY_MS)) < 60_000
    assert pruning.prune(context).rows == 0
    exact(context, traffic)


def test_a_redelivery_after_a_lost_acknowledgement_is_known(
    context: Context, redis_client: redis.Redis
) -> None:
    traffic, now = Traffic(2), now_ms(redis_client)
    send(redis_client, traffic.entry(now - 9 * DAY_MS))
    count(context)
    lost = traffic.entry(now - 8 * DAY_MS)
    send(redis_client, lost)
    assert len(take(redis_client)) == 1
    applier = Applier(context.mysql_url, 3)
    rows, _, _ = decode_rows(lost.rows)
    applier.apply([Incoming(bytes.fromhex(lost.id), lost.at, rows)])
    applier.close()
    age(context)
    assert pruning.prune(context).rows == 1
    assert watermark(context) == lost.at
    count(context)
    exact(context, traffic)
    assert pruning.prune(context).rows == 1


def test_a_resend_counts_once_before_pruning_and_after_it(
    context: Context, redis_client: redis.Redis
) -> None:
    traffic, now = Traffic(3), now_ms(redis_client)
    sent = traffic.entry(now - 9 * DAY_MS)
    for _ in range(2):
        send(redis_client, sent)
        count(context)
        exact(context, traffic)
    age(context)
    send(redis_client, sent)
    assert pruning.prune(context).rows == 0  # it waits again
    count(context)
    exact(context, traffic)
    assert pruning.prune(context).rows == 1
    send(redis_client, sent)  # whether it was counted nobody can tell any more
    count(context)
    exact(context, traffic, refused=1)


@pytest.mark.parametrize("others", [0, 250])
def test_what_a_spool_replays_is_counted_though_it_was_sent_long_ago(
    context: Context, redis_client: redis.Redis, others: int
) -> None:
    """It lies behind entries that were sent after it."""
    traffic, now = Traffic(4), now_ms(redis_client)
    send(redis_client, *(traffic.entry(now, 1) for _ in range(others + 1)))
    replayed = traffic.entry(now - 9 * DAY_MS)
    send(redis_client, replayed, traffic.entry(now))
    pruning.prune(context)
    assert watermark(context) == replayed.at
    count(context)
    exact(context, traffic)
    pruning.prune(context)
    assert abs(watermark(context) - (now - 3 * DAY_MS)) < 60_000


def test_what_a_dead_consumer_holds_is_counted_when_it_comes_back(
    context: Context, redis_client: redis.Redis
) -> None:
    traffic, now = Traffic(5), now_ms(redis_client)
    send(redis_client, traffic.entry(now - 9 * DAY_MS), traffic.entry(now - 8 * DAY_MS))
    assert len(take(redis_client)) == 2
    send(redis_client, traffic.entry(now))
    pruning.prune(context)
    count(context)
    exact(context, traffic)


def test_a_backlog_older_than_the_ledger_days_is_counted_from_every_stream_ever_used(
    context: Context, redis_client: redis.Redis
) -> None:
    traffic, now = Traffic(6), now_ms(redis_client)
    redis_client.set(PARTITIONS_KEY, 1)
    redis_client.sadd(PARTITIONS_USED_KEY, 0, 5)
    send(redis_client, traffic.entry(now - 8 * DAY_MS))
    send(redis_client, traffic.entry(now - 9 * DAY_MS), traffic.entry(now), partition=5)
    for _ in range(2):
        pruning.prune(context)
        assert watermark(context) == now - 9 * DAY_MS
    count(context)
    assert backlog(redis_client, 6) == 0
    exact(context, traffic)


def test_an_entry_of_another_program_without_a_time_is_counted_too(
    context: Context, redis_client: redis.Redis
) -> None:
    traffic, now = Traffic(7), now_ms(redis_client)
    made = traffic.entry(now)
    redis_client.xadd(STREAM, {"rows": made.rows}, id=f"{now - 9 * DAY_MS}-0")
    pruning.prune(context)
    assert watermark(context) == now - 9 * DAY_MS
    count(context)
    exact(context, traffic)


def test_without_redis_nothing_is_pruned(context: Context, redis_client: redis.Redis) -> None:
    traffic, now = Traffic(8), now_ms(redis_client)
    send(redis_client, traffic.entry(now - 9 * DAY_MS))
    count(context)
    age(context)
    nowhere = replace(context, redis_url="redis://127.0.0.1:1/0")
    with pytest.raises(StreamUnavailable, match="nothing was pruned"):
        pruning.prune(nowhere)
    stopping = replace(context, stop=lambda: True)
    with pytest.raises(JobFailed, match="nothing was pruned"):
        pruning.prune(stopping)
    assert watermark(context) == 0
    with connect(context.mysql_url) as session:
        assert guard_count(session) == 1


def test_clocks_apart_prune_nothing(
    context: Context, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL's clock is set for the session of the run."""

    def ahead(mysql_url: str, *, read_timeout: float, lock_wait: int) -> Session:
        session = open_tables(mysql_url, read_timeout=read_timeout, lock_wait=lock_wait)
        session.execute("SET SESSION timestamp = %s", (now_ms(redis_client) // 1000 + 3600,))
        return session

    monkeypatch.setattr(pruning, "open_tables", ahead)
    with pytest.raises(Refused, match=r"clocks of MySQL and Redis differ by 3,[56]"):
        pruning.prune(context)
    assert watermark(context) == 0


def test_runs_that_ended_long_ago_go(mysql_url: str) -> None:
    with connect(mysql_url) as session:
        for days, state in ((1, "done"), (9, "done"), (10, "failed"), (11, "skipped")):
            for minute in range(3):
                add_run(session, timedelta(days=days, minutes=minute), state)
        for state in ("planned", "running"):
            add_run(session, timedelta(days=12), state)
        assert pruning.delete_runs(session, 8.5, Pace(), chunk=2) == (9, True)
        assert pruning.delete_runs(session, 8.5, Pace()) == (0, True)
        assert session.query("SELECT state, COUNT(*) FROM job_run GROUP BY state ORDER BY 1") == [
            ("done", 3),
            ("planned", 1),
            ("running", 1),
        ]
        assert pruning.delete_runs(session, 2.0**53 - 1, Pace()) == (0, True)
        assert pruning.delete_runs(session, 0, Pace()) == (3, True)


def test_it_rests_between_transactions_and_can_be_stopped_after_each(mysql_url: str) -> None:
    rests = 0

    def rest() -> None:
        nonlocal rests
        rests += 1

    with connect(mysql_url) as session:
        session.execute(
            "INSERT INTO applied_entry (entry_id, keep_from) VALUES "
            + ", ".join(f"(UNHEX('{number:032x}'), 1)" for number in range(10))
        )
        now = int(session.query("SELECT UNIX_TIMESTAMP()")[0][0]) * 1000
        done = guards.prune(
            session, keep_ms=0, now_ms=now, chunk=2, rest=rest, stop=lambda: rests == 2
        )
        assert (done.deleted, done.finished, rests) == (6, False, 2)
        done = guards.prune(session, keep_ms=0, now_ms=now, chunk=2, rest=rest)
        assert (done.deleted, done.finished, rests) == (4, True, 4)
        for minute in range(6):
            add_run(session, timedelta(days=9, minutes=minute), "done")
        assert pruning.delete_runs(session, 8, Pace(stop=lambda: True), chunk=2) == (2, False)


def test_a_run_that_is_cut_off_between_transactions_says_so(
    context: Context, redis_client: redis.Redis
) -> None:
    with connect(context.mysql_url) as session:
        values = ", ".join(f"(UNHEX('{number:032x}'), 1)" for number in range(10_001))
        session.execute(f"INSERT INTO applied_entry (entry_id, keep_from) VALUES {values}")

        def gone() -> bool:
            return guard_count(session) < 10_001

        done = pruning.prune(replace(context, stop=gone))
    assert (done.rows, done.finished) == (10_000, False)
    assert done.detail.endswith("0 runs deleted; stopped early, the next run goes on")


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
def test_dead_letters_older_than_the_dead_days_go(
    context: Context, redis_client: redis.Redis
) -> None:
    with connect(context.mysql_url) as session:
        set_aside(session, 350, timedelta(days=91), "bad_key")
        set_aside(session, 3, timedelta(days=89), "bad_minute")
        session.execute("INSERT INTO dead_group VALUES ('empty', '', 0, UTC_TIMESTAMP(3))")
        keeping = replace(context, options=JobOptions(dead_days=0, compact_share=1.0))
        assert pruning.prune(keeping).detail == "0 guard rows and 0 runs deleted"
        assert dead.count(session) == {"bad_key": 350, "bad_minute": 3}
        assert session.query("SELECT reason FROM dead_group ORDER BY reason") == [
            ("bad_key",),
            ("bad_minute",),
        ]
        done = pruning.prune(context)
        assert done == JobOutcome(350, "0 guard rows and 0 runs deleted, 350 dead letters")
        assert dead.count(session) == {"bad_minute": 3}
        assert dead.not_kept(session) == {("bad_minute", "bad_minute"): 3}


def test_pruning_of_dead_letters_rests_and_can_be_stopped(mysql_url: str) -> None:
    rests: list[int] = []
    with connect(mysql_url) as session:
        set_aside(session, 350, timedelta(days=2))
        half = dead.prune(session, 1, rest=lambda: rests.append(1), stop=lambda: len(rests) == 1)
        assert (half, len(rests)) == ((200, False), 1)
        assert dead.prune(session, 1, rest=lambda: rests.append(1)) == (150, True)
        assert len(rests) == 2


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
