"""`countersink runs`, `scheduler` and `jobs`: what they print and refuse, on the real servers."""

import csv
import io

from countersink.database.connection import connect
from tests.cli.command import Servers, one_sentence


def insert(servers: Servers, *rows: tuple[object, ...]) -> None:
    with connect(servers.mysql_url) as session:
        for row in rows:
            session.execute(
                "INSERT INTO job_run (job, planned_at, due_at, state, attempts, started_at,"
                " ended_at, row_count, detail)"
                " VALUES (%s, %s, UTC_TIMESTAMP(3), %s, %s, %s, %s, %s, %s)",
                row,
            )


def test_the_last_runs_in_every_format(servers: Servers) -> None:
    insert(
        servers,
        ("compact", "2026-11-21 08:00:00", "done", 1, "2026-11-21 08:00:00.5",
         "2026-11-21 08:00:01.25", 12, "12 rows to 3"),
        ("compact", "2026-11-21 08:10:00", "planned", 0, None, None, None, None),
        ("verify", "2026-11-21 04:50:00", "failed", 3, "2026-11-21 04:50:00",
         "2026-11-21 04:50:01", None, "=it broke: ñ"),
    )  # fmt: skip
    document = servers.json("runs")
    assert [(run["job"], run["planned"], run["state"]) for run in document["runs"]] == [
        ("compact", "2026-11-21T08:10:00Z", "planned"),
        ("compact", "2026-11-21T08:00:00Z", "done"),
        ("verify", "2026-11-21T04:50:00Z", "failed"),
    ]
    assert document["runs"][1] == {
        "job": "compact",
        "planned": "2026-11-21T08:00:00Z",
        "state": "done",
        "attempts": 1,
        "started": "2026-11-21T08:00:00.500Z",
        "ended": "2026-11-21T08:00:01.250Z",
        "rows": 12,
        "detail": "12 rows to 3",
    }
    one = servers.call("runs", "--job", "verify", "--limit", "1", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(one.out)))
    assert [row["detail"] for row in rows] == ["=it broke: ñ"]
    shown = servers.call("runs").out
    assert "12 rows to 3" in shown
    assert "it broke: ñ" in shown


def test_info_names_jobs_that_keep_failing_and_the_last_compaction(servers: Servers) -> None:
    done = ("done", 1, "2026-11-21 08:00:00", "2026-11-21 08:00:01", 12, "12 rows to 3")
    insert(
        servers,
        ("compact", "2026-11-21 08:00:00", *done),
        ("verify", "2026-11-16 04:50:00", "failed", 9, None, None, None, "before a success"),
        ("verify", "2026-11-17 04:50:00", *done),
        ("verify", "2026-11-18 04:50:00", "failed", 2, None, None, None, "the first"),
        *(("verify", f"2026-11-{day} 04:50:00", "failed", 1, *4 * [None]) for day in (19, 20)),
        ("verify", "2026-11-21 04:50:00", "failed", 1, None, None, None, "the last"),
        ("prune", "2026-11-21 04:00:00", *done),
        ("prune", "2026-11-21 05:00:00", "failed", 2, None, None, None, "only twice"),
    )
    schedules = servers.json("info")["schedules"]
    assert schedules["planning"] is False
    assert schedules["failing"] == [
        {"job": "verify", "times": 5, "since": "2026-11-18T04:50:00Z", "detail": "the last"}
    ]
    assert schedules["last_compaction"]["rows"] == 12
    shown = servers.call("info").out
    assert "verify failed 5 times in a row" in shown
    assert "only twice" not in shown


def plan(servers: Servers, job: str, cron: str) -> None:
    servers.execute(
        "INSERT INTO job (name, cron, time_zone, next_at) VALUES"
        f" ('{job}', '{cron}', 'UTC', '2099-11-21 08:00:00')"
    )


def test_a_job_is_paused_resumed_and_run_by_hand(servers: Servers) -> None:
    assert "There are no jobs" in servers.call("schedule", "list").out
    plan(servers, "compact", "0 8 * * *")
    insert(
        servers,
        ("compact", "2026-11-21 08:00:00", "failed", 3, "2026-11-21 08:00:00",
         "2026-11-21 08:00:01", None, "it broke"),
    )  # fmt: skip
    (listed,) = servers.json("schedule", "list")["jobs"]
    assert listed == {
        "job": "compact",
        "does": "moves closed and crowded buckets of the last days into slot 0",
        "at": "2099-11-21T08:00:00Z",
        "cron": "0 8 * * *",
        "time_zone": "UTC",
        "paused": False,
        "last": "failed",
        "started": "2026-11-21T08:00:00.000Z",
        "ended": "2026-11-21T08:00:01.000Z",
        "detail": "it broke",
    }
    paused = servers.json("schedule", "pause", "compact")
    assert (paused["paused"], paused["at"]) == (True, None)
    shown = servers.call("schedule", "list").out
    assert "paused" in shown
    assert "failed" in shown
    resumed = servers.json("schedule", "resume", "compact")
    assert (resumed["paused"], resumed["at"]) == (False, None)
    assert "soon" in servers.call("schedule", "list").out  # a scheduler is to say when
    planned = [servers.json("schedule", "run", "compact")["planned"] for _ in range(2)]
    assert planned[0] is not None
    assert planned[1] is None  # one waits already
    runs = servers.json("runs", "--job", "compact")["runs"]
    assert [run["state"] for run in runs] == ["planned", "failed"]
    for what in ("pause", "resume", "run"):
        said = one_sentence(servers.call("schedule", what, "nope"), 1)
        assert "there is no job 'nope'" in said
        assert servers.call("schedule", what, "compact").status == 0
    plan(servers, "verify", "off")
    assert servers.json("schedule", "pause", "verify")["paused"]
    assert servers.json("schedule", "resume", "verify")["at"] is None
