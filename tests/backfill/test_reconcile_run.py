"""Reconciling from files, as a user does, with traffic that goes on meanwhile."""

import gzip
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from countersink.backfill import reconcile
from countersink.backfill import run as running
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Progress
from countersink.backfill.run import BackfillRun
from countersink.stream.names import stream_key
from tests.backfill.format_helpers import where
from tests.backfill.helpers import NOON, Logs, details, line, log, long_log, options, outcomes
from tests.backfill.truths import DAY, Scene, on_days
from tests.support.entries import Killed, now_ms

pytestmark = pytest.mark.usefixtures("store")


def dies(*_: object) -> None:
    raise Killed


def test_an_outage_is_made_good_to_the_last_hit(
    logs: Logs, scene: Scene, redis_client: redis.Redis
) -> None:
    paths = [f"/{number % 5}" for number in range(60)]
    lines = log(*paths).splitlines(keepends=True)
    before = logs.write("a.log", b"".join(lines[:35]))
    after = logs.write("b.log", b"".join(lines[35:]))
    # Every third was lost.
    lost, all_of_them = Counter(paths[::3]), Counter(paths)
    scene.count({(DAY, path): n for path, n in (all_of_them - lost).items()})
    redis_client.xadd(stream_key(0), {"id": "on its way", "rows": "[]"})
    with pytest.raises(BackfillError, match=r"run a worker \(`countersink worker`\)"):
        logs.reconcile(before, after, wait_s=0.0)
    redis_client.delete(stream_key(0))

    would = logs.reconcile(before, after, dry_run=True)
    assert {one.key: one.delta for one in would.drift} == lost
    assert (would.corrections, would.run) == (5, None)
    assert logs.left() == {}

    done = logs.reconcile(before, after)
    assert (done.state, done.corrections, done.amount) == ("done", 5, 20)
    assert scene.totals() == on_days({(DAY, f"/{number}"): 12 for number in range(5)})
    # Nothing but what tells what was done.
    assert logs.left() == {"run": 1, "source": 2, "chunk": 2, "correction": 5}
    # The same once more, from the other end: nothing is left to be done.
    assert logs.reconcile(after, before).corrections == 0
    # Adding it would double it.
    refused = logs.add(before)
    assert refused.state == "failed"
    assert f"has set {DAY} of views" in refused.sources[0].detail

    scene.count({(DAY, "/0"): 1})
    assert logs.undo(done).amount == -20
    left = all_of_them - lost + Counter(["/0"])
    assert scene.totals() == on_days({(DAY, key): n for key, n in left.items()})


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_was_rejected_altogether_says_nothing(logs: Logs, scene: Scene, dry_run: bool) -> None:
    scene.count({(DAY, "/"): 5})
    good = logs.write("a.log", log("/", "/"))
    wrong = logs.write("b.log", b"nonsense\n" * 3)
    asked: dict[str, Any] = {"start": DAY, "end": DAY, "dry_run": dry_run}
    asked["rejects"] = logs.directory / "rejects.ndjson"
    for sources in ([wrong], [good, wrong]):
        done = logs.reconcile(*sources, **asked, max_rejects=100)
        assert (done.state, done.corrections, done.rejected) == ("failed", 0, 3)
        assert any("3 lines were rejected" in notice for notice in done.notices)
        assert any("--input-format" in notice for notice in done.notices)
    assert scene.totals() == on_days({(DAY, "/"): 5})
    assert logs.query("SELECT COUNT(*) FROM reconciled_day") == [(0,)]
    # Lines of other days are lines that were read.
    wrong.write_bytes(line("/", at=NOON + timedelta(days=9)) + b"nonsense\n")
    assert logs.reconcile(good, wrong, **asked).corrections == 1


def test_what_was_rejected_deletes_nothing(logs: Logs, scene: Scene) -> None:
    scene.count({(DAY, "/"): 5, (DAY, "/gone"): 1})
    source = logs.write("a.log", log("/", "/") + b"nonsense\n")
    asked: dict[str, Any] = {"delete_missing": True, "rejects": logs.directory / "rejects.ndjson"}
    done = logs.reconcile(source, **asked)
    assert (done.state, done.corrections) == ("failed", 0)
    assert any("--max-rejects" in notice for notice in done.notices)
    assert scene.totals() == on_days({(DAY, "/"): 5, (DAY, "/gone"): 1})
    assert logs.reconcile(source, **asked, max_rejects=0).state == "stopped"
    done = logs.reconcile(source, **asked, max_rejects=1)
    assert (done.corrections, done.rejected) == (2, 1)
    assert any(notice.startswith("1 line was rejected: ") for notice in done.notices)
    assert scene.totals() == on_days({(DAY, "/"): 2, (DAY, "/gone"): 0})


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("content", "given"),
    [
        (b"", {}),
        (b"\n\n", {}),
        (log("/"), {"where": (where("path", "=", "/misspelt"),)}),
    ],
)
def test_sources_of_which_nothing_counts_delete_nothing(
    logs: Logs, scene: Scene, content: bytes, given: dict[str, Any], dry_run: bool
) -> None:
    """As an export is whose program has failed."""
    scene.count({(DAY, "/"): 5})
    source = logs.write("a.log", content)
    asked = {"input_format": "combined", "start": DAY, "end": DAY, "delete_missing": True, **given}
    done = logs.reconcile(source, dry_run=dry_run, **asked)
    assert (done.state, done.corrections) == ("failed", 0)
    assert any("sources are complete" in notice for notice in done.notices)
    assert scene.totals() == on_days({(DAY, "/"): 5})
    # It may be one of several.
    other = logs.write("b.log", log("/misspelt"))
    assert logs.reconcile(source, other, dry_run=dry_run, **asked).state == "done"


def test_dates_that_are_too_far_apart_are_refused_before_anything_is_read(logs: Logs) -> None:
    source = logs.write("a.log", log("/"))
    seen: list[Progress] = []
    days = {"start": date(1970, 1, 1), "end": date(2999, 1, 1)}
    with pytest.raises(BackfillError, match="reconcile fewer days at a time"):
        logs.reconcile(source, on_progress=seen.append, **days)
    assert (logs.left(), seen) == ({}, [])


@pytest.mark.parametrize("mode", ["add", "reconcile"])
def test_a_run_that_breaks_down_is_failed(logs: Logs, mode: str) -> None:
    def breaks(*_: object) -> None:
        raise KeyboardInterrupt

    logs.monkeypatch.setattr(running, "count_source", breaks)
    source = logs.write("a.log", log("/"))
    with pytest.raises(KeyboardInterrupt):
        getattr(logs, mode)(source)
    assert logs.query("SELECT state, error FROM backfill_run") == [("failed", "KeyboardInterrupt")]
    with pytest.raises(KeyboardInterrupt):
        logs.reconcile(source, dry_run=True)
    assert logs.left() == {"run": 1}


def killed(logs: Logs, source: Path) -> int:
    """A reconcile whose process was killed when it had read its sources; its number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackfillRun, "_correct", dies)
        patch.setattr(BackfillRun, "_end_failed", lambda *_: None)
        with pytest.raises(Killed):
            logs.reconcile(source)
    ((number,),) = logs.query("SELECT MAX(id) FROM backfill_run")
    return int(number)


def test_a_dry_run_writes_nothing_and_knows_its_sources_apart_from_those_that_were_added(
    logs: Logs,
) -> None:
    source = logs.write("a.log", long_log(40))
    copy = logs.write("copy.log.gz", gzip.compress(source.read_bytes()))
    half = logs.write("half.log", long_log(41, first=1))  # tells them again
    logs.add(source)
    before, seen = logs.left(), []
    days: dict[str, Any] = {"start": DAY, "end": DAY, "dry_run": True}
    would = logs.reconcile(
        source, copy, half, on_progress=lambda _: seen.append(logs.left()), **days
    )
    assert outcomes(would) == ["counted", "known", "failed"]
    assert "counted already, as lines of" in details(would)
    assert (would.state, would.lines, would.by_day) == ("failed", 40, ())
    assert [*seen, logs.left()] == [before] * (len(seen) + 1)
    would = logs.reconcile(half, **days)
    assert (would.state, would.run, would.lines) == ("done", None, 41)
    assert would.amount == 1
    assert logs.left() == before


def test_a_reconcile_that_was_not_seen_for_an_hour_has_failed(logs: Logs, scene: Scene) -> None:
    source = logs.write("a.log", log("/"))
    gone, lives = (killed(logs, source) for _ in range(2))
    logs.query("UPDATE backfill_run SET seen = seen - INTERVAL 61 MINUTE WHERE id = %s", gone)
    assert logs.reconcile(source).state == "done"
    assert (logs.state(gone), logs.state(lives)) == ("failed", "running")
    assert logs.query("SELECT DISTINCT run FROM backfill_correction WHERE had IS NULL") == [
        (lives,)
    ]
    assert logs.query(
        "SELECT DISTINCT truth_of FROM backfill_sample AS p"
        " JOIN backfill_source AS s ON s.id = p.source"
    ) == [(lives,)]
    # If it was there all the time, it corrects nothing.
    asked = options(source, start=DAY, end=DAY, delete_missing=True)
    with pytest.raises(BackfillError, match="is failed now"):
        reconcile.correct(logs.url, gone, asked, "day", now_ms())
    assert scene.totals() == on_days({(DAY, "/"): 1})
