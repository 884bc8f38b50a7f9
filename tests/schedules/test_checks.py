"""The jobs that look: alarms say whatever needs a person, verification what differs."""

from dataclasses import replace

import pytest
import redis

from countersink.counting.apply import dead, queue_losses
from countersink.counting.apply.applier import Applier
from countersink.counting.apply.dead import DeadRow
from countersink.database.connection import connect
from countersink.database.errors import Unavailable
from countersink.database.url import Settings
from countersink.schedules.errors import Alarm, JobFailed, TablesDiffer
from countersink.schedules.jobs import Context, JobOutcome, checks
from countersink.schedules.jobs.checks import verification
from countersink.schedules.options import JobOptions
from countersink.store import Store
from tests.support.entries import entry, row
from tests.support.traffic import Traffic, add, now_ms


def alarm(context: Context) -> str:
    with pytest.raises(Alarm) as raised:
        checks.alarms(context)
    return str(raised.value)


def wait(client: redis.Redis, seconds: int, *, partition: int = 0, sent_ago_s: int = 0) -> None:
    """Put an entry into the queue that has lain there for so long."""
    now = now_ms(client)
    fields = Traffic(1).entry(now - sent_ago_s * 1000).fields()
    add(client, fields, partition=partition, stream_id=f"{now - seconds * 1000}-0")
    client.sadd("countersink:partitions:used", partition)


def bury(context: Context, number: int, reason: str = "bad_key") -> None:
    with connect(context.mysql_url) as session, session.transaction():
        dead.insert(
            session,
            [DeadRow(bytes(16), position, "s", 1, reason, "", b"[]") for position in range(number)],
        )


def plan(context: Context, job: str, hours_ago: float, state: str, cron: str = "0 * * * *") -> None:
    """A run of a job that was planned so long ago."""
    with connect(context.mysql_url) as session:
        session.execute(
            "INSERT IGNORE INTO job (name, cron, time_zone) VALUES (%s, %s, 'UTC')",
            (job, cron),
        )
        session.execute(
            "INSERT INTO job_run (job, planned_at, due_at, state)"
            " VALUES (%s, UTC_TIMESTAMP() - INTERVAL %s MINUTE, UTC_TIMESTAMP(3), %s)",
            (job, round(hours_ago * 60), state),
        )


def test_with_nothing_to_say_it_is_done(context: Context, redis_client: redis.Redis) -> None:
    wait(redis_client, 250, sent_ago_s=10**6)  # a spool replays: it has not waited here for long
    for ago in (30, 20, 10):
        plan(context, "compact", ago, "done")
    assert checks.alarms(context) == JobOutcome(rows=0, detail="nothing to report")


def test_an_entry_that_waits_too_long_in_any_stream(
    context: Context, redis_client: redis.Redis
) -> None:
    wait(redis_client, 1)
    wait(redis_client, 3600, partition=7)
    said = alarm(context)
    assert said.startswith("the oldest entry has waited in the queue for 3,60")
    assert "the limit is 300 s: see countersink info" in said
    patient = replace(context, options=JobOptions(alarm_lag_s=5000))
    assert checks.alarms(patient).detail == "nothing to report"


def test_entries_that_redis_lost_while_no_worker_ran(
    context: Context, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_losses, "LOOK_EVERY_MS", 0)
    for seconds in range(14, 0, -1):
        wait(redis_client, seconds)
    assert checks.alarms(context).detail == "nothing to report"
    redis_client.flushdb()
    assert checks.alarms(context).detail == "nothing to report"  # somebody may have them in hand
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)
    for _ in range(2):
        said = alarm(context)
        assert said.startswith(
            "Redis has lost at least 2 of the 14 entries that waited in {countersink:0}:events"
        )
        assert said.endswith(": see countersink doctor")


def test_a_redis_in_the_place_of_one_in_which_nothing_waited_is_no_alarm(
    context: Context, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_EVERY_MS", "UNSEEN_MS"):
        monkeypatch.setattr(queue_losses, name, 0)
    wait(redis_client, 1)
    redis_client.xtrim("{countersink:0}:events", maxlen=0)
    assert checks.alarms(context).detail == "nothing to report"
    redis_client.flushdb()
    assert checks.alarms(context).detail == "nothing to report"
    with connect(context.mysql_url) as session:
        assert [loss.waited for loss in queue_losses.recent(session)] == [0]


def test_dead_rows_beyond_the_limit(context: Context) -> None:
    bury(context, 3)
    assert alarm(context).startswith("dead letters have 3 rows (bad_key 3), and the limit is 0:")
    assert checks.alarms(replace(context, options=JobOptions(alarm_dead=3))).rows == 0
    with connect(context.mysql_url) as session:
        session.execute("INSERT INTO dead_group VALUES ('bad_key', 'c', 5, UTC_TIMESTAMP(3))")
    assert alarm(context).startswith("dead letters have 8 rows (bad_key 8), and the limit is 0:")


def test_a_job_that_has_not_succeeded_for_a_day(context: Context) -> None:
    plan(context, "compact", 30, "done")
    for ago in (29, 20, 10, 1):
        plan(context, "compact", ago, "failed")
    plan(context, "verify", 25, "failed")
    plan(context, "prune", 23, "failed")  # not for so long
    plan(context, "retention", 700, "done")  # no run since: once a month, say
    plan(context, "left_out", 50, "failed", cron="off")
    plan(context, "paused", 50, "failed")
    with connect(context.mysql_url) as session:
        session.execute("UPDATE job SET paused = 1 WHERE name = 'paused'")
    plan(context, "alarms", 50, "failed")
    plan(context, "skipped", 50, "skipped")
    for ago in (10, 5, 1):
        plan(context, "skipped", ago, "skipped")
    plan(context, "waits", 26, "planned")
    compact, skipped, verify, waits = alarm(context).split("; ")
    assert skipped.startswith("skipped has not succeeded since before ")
    assert waits.startswith("waits has not succeeded since before ")
    assert compact.startswith("compact has not succeeded since before ")
    assert verify.startswith("verify has not succeeded since before ")
    assert verify.endswith("see countersink runs for the reason")


def test_all_of_it_is_said_at_once_and_redis_may_be_away(context: Context) -> None:
    bury(context, 1)
    said = alarm(replace(context, redis_url="redis://:s3cret@127.0.0.1:1/0"))
    assert "Redis cannot be reached" in said
    assert "dead letters have 1 row (" in said
    assert "s3cret" not in said


def test_without_mysql_it_fails_as_any_job(context: Context) -> None:
    with pytest.raises(Unavailable):
        checks.alarms(replace(context, mysql_url="mysql://root:s3cret@127.0.0.1:1/nothing"))


def count(context: Context, counters: int) -> None:
    applier = Applier(context.mysql_url, 3)
    applier.apply([entry([row("/a", 1, counter=f"c{n:02}", position=n) for n in range(counters)])])
    applier.close()


def test_what_differs_is_named(context: Context) -> None:
    count(context, 30)
    assert verification(context) == JobOutcome(rows=30, detail="no difference in 30 counters")
    with connect(context.mysql_url) as session:
        session.execute("UPDATE counter_slot SET amount = 5 WHERE counter = 'c01'")
        with pytest.raises(TablesDiffer) as raised:
            verification(context)
        assert str(raised.value) == (
            "c01: the tables hold 4 more than the ledger: see countersink verify"
        )
        session.execute("DELETE FROM counter_slot")
        # Of many the first.
        with pytest.raises(
            TablesDiffer, match=r"^c00: .*; c09: .*; and 20 more: see countersink verify$"
        ):
            verification(context)


def test_tracked_tables_are_verified_and_nothing_is_repaired(
    context: Context, app_database_url: str
) -> None:
    count(context, 3)
    name = f"{Settings.parse(app_database_url).database}.orders"
    with connect(app_database_url) as app, Store(context.mysql_url) as store:
        app.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
        app.execute("INSERT INTO orders VALUES (1), (2)")
        store.tracked.track(name, counter="orders")
        assert verification(context).detail == ("no difference in 4 counters and 1 tracked table")
        app.execute("TRUNCATE TABLE orders")
    for _ in range(2):
        with pytest.raises(TablesDiffer) as raised:
            verification(context)
        assert str(raised.value) == f"orders ({name}): 2 counted, 0 rows: see countersink verify"


def test_a_run_that_is_told_to_stop_proves_nothing(context: Context) -> None:
    count(context, 3)
    stopping = replace(context, stop=lambda: True)
    with pytest.raises(JobFailed, match="stopped after 0 counters, without a diff"):
        verification(stopping)
