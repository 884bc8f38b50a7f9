"""Reconciling from files, as a user does, with traffic that goes on meanwhile."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from countersink.backfill import history, reconcile
from countersink.backfill import run as running
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import BackfillReport, Progress
from countersink.backfill.reconcile import correction
from countersink.backfill.run import BackfillRun, backfill
from countersink.backfill.undo import undo
from countersink.store.apply.amounts import Incoming
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from tests.backfill.format_helpers import where
from tests.backfill.helpers import (
    NOON,
    Killed,
    details,
    line,
    log,
    long_log,
    options,
    outcomes,
    run_of,
    write,
)
from tests.backfill.truths import DAY, count, on_days, totals
from tests.store.helpers import entry, minute, now_ms

TABLES = ("run", "source", "chunk", "sample", "correction", "journal")


Run = Callable[..., BackfillReport]

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def run(mysql_url: str, redis_url: str) -> Run:
    """Reconciles from sources."""

    def reconciled(*sources: Path, **given: Any) -> BackfillReport:
        asked = options(*sources, mode="reconcile", **given)
        return backfill(mysql_url, asked, redis_url=redis_url)

    return reconciled


def dies(*_: object) -> None:
    raise Killed


def rows(session: Session) -> dict[str, int]:
    """How many rows there are in each table of backfill that has some."""
    found = {
        name: int(session.query(f"SELECT COUNT(*) FROM backfill_{name}")[0][0]) for name in TABLES
    }
    return {name: number for name, number in found.items() if number}


def test_an_outage_is_made_good_to_the_last_hit(
    session: Session, applier: Applier, mysql_url: str, tmp_path: Path, run: Run
) -> None:
    paths = [f"/{number % 5}" for number in range(60)]
    lines = log(*paths).splitlines(keepends=True)
    before = write(tmp_path / "a.log", b"".join(lines[:35]))
    after = write(tmp_path / "b.log", b"".join(lines[35:]))
    # Every third was lost.
    lived = [path for number, path in enumerate(paths) if number % 3]
    applier.apply([entry([(n, "views", p, minute(DAY), 1) for n, p in enumerate(lived)])])
    lost: dict[str, int] = {}
    for path in paths[::3]:
        lost[path] = lost.get(path, 0) + 1

    would = run(before, after, dry_run=True)
    assert {one.key: one.delta for one in would.drift} == lost
    assert (would.corrections, would.run) == (5, None)
    assert rows(session) == {}

    done = run(before, after)
    assert (done.state, done.corrections, done.amount) == ("done", 5, 20)
    assert totals(session) == on_days({(DAY, f"/{number}"): 12 for number in range(5)})
    # Nothing but what tells what was done.
    assert rows(session) == {"run": 1, "source": 2, "chunk": 2, "correction": 5}
    # The same once more, from the other end: nothing is left to be done.
    assert run(after, before).corrections == 0
    # Adding it would double it.
    refused = backfill(mysql_url, options(before))
    assert refused.state == "failed"
    assert f"has set {DAY} of views" in refused.sources[0].detail

    count(applier, {(DAY, "/0"): 1})
    assert undo(mysql_url, run_of(done)).amount == -20
    expected = {key: paths.count(key) - number for key, number in lost.items()}
    assert totals(session) == on_days(
        {(DAY, key): n + (key == "/0") for key, n in expected.items()}
    )


def test_killed_while_correcting_it_is_run_again(
    session: Session, applier: Applier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    original = correction.correct_day
    days = [line("/", at=NOON + timedelta(days=number)) for number in range(4)]
    source = write(tmp_path / "a.log", b"".join(days))
    count(applier, {(DAY, "/"): 5})

    def dies(keeper: Any, work: Any, day: date, **others: Any) -> bool:
        if day == DAY + timedelta(days=2):
            raise Killed
        return original(keeper, work, day, **others)

    monkeypatch.setattr(correction, "correct_day", dies)
    with pytest.raises(Killed):
        run(source)
    assert sorted(totals(session).values()) == [1, 1]
    monkeypatch.undo()
    done = run(source)
    assert done.corrections == 2
    assert list(totals(session).values()) == [1, 1, 1, 1]


def test_what_could_not_be_read_whole_sets_nothing(
    session: Session, applier: Applier, tmp_path: Path, run: Run
) -> None:
    count(applier, {(DAY, "/"): 5})
    good = write(tmp_path / "good.log", log("/"))
    cut = write(tmp_path / "bad.log.gz", b"\x1f\x8b\x08\x00\x00")
    done = run(good, cut, delete_missing=True)
    assert (done.state, done.corrections) == ("failed", 0)
    assert totals(session) == on_days({(DAY, "/"): 5})
    assert any("nothing was corrected" in notice for notice in done.notices)


def test_rejected_lines_are_in_no_total(
    session: Session, applier: Applier, tmp_path: Path, run: Run
) -> None:
    count(applier, {(DAY, "/"): 5})
    source = write(tmp_path / "a.log", log("/", "/") + b"nonsense\n")
    done = run(source, rejects=tmp_path / "rejects.ndjson")
    assert (done.corrections, done.rejected) == (1, 1)
    assert totals(session) == on_days({(DAY, "/"): 2})
    assert any(notice.startswith("1 lines were rejected: ") for notice in done.notices)


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_was_rejected_altogether_says_nothing(
    session: Session, applier: Applier, tmp_path: Path, dry_run: bool, run: Run
) -> None:
    count(applier, {(DAY, "/"): 5})
    good = write(tmp_path / "a.log", log("/", "/"))
    wrong = write(tmp_path / "b.log", b"nonsense\n" * 3)
    asked: dict[str, Any] = {"start": DAY, "end": DAY, "dry_run": dry_run}
    asked["rejects"] = tmp_path / "rejects.ndjson"
    for sources in ([wrong], [good, wrong]):
        done = run(*sources, **asked, max_rejects=100)
        assert (done.state, done.corrections, done.rejected) == ("failed", 0, 3)
        assert any("3 lines were rejected" in notice for notice in done.notices)
        assert any("--input-format" in notice for notice in done.notices)
    assert totals(session) == on_days({(DAY, "/"): 5})
    assert session.query("SELECT COUNT(*) FROM reconciled_day") == [(0,)]
    # Lines of other days are lines that were read.
    wrong.write_bytes(line("/", at=NOON + timedelta(days=9)) + b"nonsense\n")
    assert run(good, wrong, **asked).corrections == 1


def test_what_was_rejected_deletes_nothing(
    session: Session, applier: Applier, tmp_path: Path, run: Run
) -> None:
    count(applier, {(DAY, "/"): 5, (DAY, "/gone"): 1})
    source = write(tmp_path / "a.log", log("/", "/") + b"nonsense\n")
    asked: dict[str, Any] = {"delete_missing": True, "rejects": tmp_path / "rejects.ndjson"}
    done = run(source, **asked)
    assert (done.state, done.corrections) == ("failed", 0)
    assert any("--max-rejects" in notice for notice in done.notices)
    assert totals(session) == on_days({(DAY, "/"): 5, (DAY, "/gone"): 1})
    assert run(source, **asked, max_rejects=0).state == "stopped"
    assert run(source, **asked, max_rejects=1).corrections == 2
    assert totals(session) == on_days({(DAY, "/"): 2, (DAY, "/gone"): 0})


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
    session: Session,
    applier: Applier,
    tmp_path: Path,
    content: bytes,
    given: dict[str, Any],
    dry_run: bool,
    run: Run,
) -> None:
    """As an export is whose program has failed."""
    count(applier, {(DAY, "/"): 5})
    source = write(tmp_path / "a.log", content)
    asked = {"input_format": "combined", "start": DAY, "end": DAY, "delete_missing": True, **given}
    done = run(source, dry_run=dry_run, **asked)
    assert (done.state, done.corrections) == ("failed", 0)
    assert any("written whole" in notice for notice in done.notices)
    assert totals(session) == on_days({(DAY, "/"): 5})
    # It may be one of several.
    other = write(tmp_path / "b.log", log("/misspelt"))
    assert run(source, other, dry_run=dry_run, **asked).state == "done"


def test_dates_that_are_too_far_apart_are_refused_before_anything_is_read(
    session: Session, mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.log", log("/"))
    seen: list[Progress] = []
    asked = options(source, mode="reconcile", start=date(1970, 1, 1), end=date(2999, 1, 1))
    with pytest.raises(BackfillError, match="reconcile fewer days at a time"):
        backfill(mysql_url, asked, redis_url=redis_url, on_progress=seen.append)
    assert (rows(session), seen) == ({}, [])


@pytest.mark.parametrize("mode", ["add", "reconcile"])
def test_a_run_that_breaks_down_is_failed(
    session: Session,
    mysql_url: str,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    run: Run,
) -> None:
    def breaks(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "count_source", breaks)
    source = write(tmp_path / "a.log", log("/"))
    with pytest.raises(KeyboardInterrupt):
        backfill(mysql_url, options(source, mode=mode), redis_url=redis_url)
    assert session.query("SELECT state, error FROM backfill_run") == [
        ("failed", "KeyboardInterrupt")
    ]
    with pytest.raises(KeyboardInterrupt):
        run(source, dry_run=True)
    assert rows(session) == {"run": 1}


def killed(run: Run, session: Session, source: Path, **given: Any) -> int:
    """A reconcile whose process was killed when it had read its sources; its number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackfillRun, "_correct", dies)
        patch.setattr(BackfillRun, "_failed", lambda *_: None)
        with pytest.raises(Killed):
            run(source, **given)
    ((number,),) = session.query("SELECT MAX(id) FROM backfill_run")
    return int(number)


def test_a_dry_run_writes_nothing_and_knows_its_sources_apart_from_those_that_were_added(
    session: Session, mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.log", long_log(40))
    copy = write(tmp_path / "copy.log.gz", gzip.compress(source.read_bytes()))
    half = write(tmp_path / "half.log", long_log(41, first=1))  # tells them again
    backfill(mysql_url, options(source))
    before, seen = rows(session), []
    asked = options(source, copy, half, mode="reconcile", dry_run=True)
    would = backfill(
        mysql_url,
        asked,
        redis_url=redis_url,
        on_progress=lambda progress: seen.append(rows(session)),
    )
    assert outcomes(would) == ["counted", "known", "failed"]
    assert "counted already, as lines of" in details(would)
    assert (would.state, would.lines, would.by_day) == ("failed", 40, ())
    assert [*seen, rows(session)] == [before] * (len(seen) + 1)
    would = backfill(mysql_url, replace(asked, sources=(str(half),)), redis_url=redis_url)
    assert (would.state, would.run, would.lines) == ("done", None, 41)
    assert would.amount == 1
    assert rows(session) == before


def test_a_reconcile_that_was_not_seen_for_an_hour_has_failed(
    session: Session, mysql_url: str, redis_url: str, tmp_path: Path, run: Run
) -> None:
    source = write(tmp_path / "a.log", log("/"))
    gone, lives = (killed(run, session, source) for _ in range(2))
    session.execute(
        "UPDATE backfill_run SET seen = seen - INTERVAL 61 MINUTE WHERE id = %s", (gone,)
    )
    assert run(source).state == "done"
    states = {one.id: one.state for one in history.runs(session)}
    assert (states[gone], states[lives]) == ("failed", "running")
    assert session.query("SELECT DISTINCT run FROM backfill_correction WHERE had IS NULL") == [
        (lives,)
    ]
    assert session.query(
        "SELECT DISTINCT truth_of FROM backfill_sample AS p"
        " JOIN backfill_source AS s ON s.id = p.source"
    ) == [(lives,)]
    # If it was there all the time, it corrects nothing.
    asked = options(source, start=DAY, end=DAY, delete_missing=True)
    with pytest.raises(BackfillError, match="is failed by now"):
        reconcile.correct(mysql_url, gone, asked, "day", now_ms())
    assert totals(session) == on_days({(DAY, "/"): 1})


def test_traffic_that_is_on_its_way_when_it_begins_is_waited_for(
    session: Session,
    applier: Applier,
    mysql_url: str,
    redis_url: str,
    redis_client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
) -> None:
    source = write(tmp_path / "a.log", log("/", "/", "/"))
    on_its_way = entry([(0, "views", "/", minute(DAY), 2)])
    stream = "{countersink:0}:events"
    redis_client.xadd(stream, {"id": on_its_way.id.hex(), "rows": "[]"})
    with pytest.raises(BackfillError, match="a worker must be running"):
        run(source, wait_s=0.0)
    assert rows(session) == {}

    def worker(*_: object) -> None:
        applier.apply([Incoming(on_its_way.id, on_its_way.at, on_its_way.rows)])
        redis_client.delete(stream)

    asked = options(source, mode="reconcile")
    backfill(mysql_url, asked, redis_url=redis_url, on_progress=worker)
    assert totals(session) == on_days({(DAY, "/"): 3})
    began = reconcile.begin(redis_url, asked)
    assert began is not None
    assert began > on_its_way.at
