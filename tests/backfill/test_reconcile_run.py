"""Reconciling from files, as a user does, with traffic that goes on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from countersink.backfill import correcting, reconcile
from countersink.backfill.options import BackfillError, Report
from countersink.backfill.run import backfill
from countersink.backfill.undo import undo
from countersink.store import Store
from countersink.store.apply import Applier
from countersink.store.connection import Session, connect
from countersink.store.merge import Incoming
from tests.backfill.helpers import NOON, line, log, options, write
from tests.backfill.truths import DAY, count, on_days, totals
from tests.store.helpers import entry, minute

TABLES = ("run", "source", "chunk", "truth", "drift", "journal", "reject")


@pytest.fixture
def session(mysql_url: str) -> Iterator[Session]:
    with connect(mysql_url) as opened:
        yield opened


@pytest.fixture
def applier(mysql_url: str) -> Iterator[Applier]:
    made = Applier(mysql_url, 17)
    yield made
    made.close()


def run(url: str, redis_url: str, *sources: Path, **given: Any) -> Report:
    asked = options(*sources, mode="reconcile", **given)
    return backfill(url, asked, redis_url=redis_url)


def rows(session: Session) -> dict[str, int]:
    """How many rows there are in each table of backfill that has some."""
    found = {
        name: int(session.query(f"SELECT COUNT(*) FROM backfill_{name}")[0][0]) for name in TABLES
    }
    return {name: number for name, number in found.items() if number}


def test_an_outage_is_made_good_to_the_last_hit(
    store: Store,
    session: Session,
    applier: Applier,
    mysql_url: str,
    redis_url: str,
    tmp_path: Path,
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

    would = run(mysql_url, redis_url, before, after, dry_run=True)
    assert {one.key: one.delta for one in would.drift} == lost
    assert (would.corrections, would.run) == (5, None)
    assert rows(session) == {}

    done = run(mysql_url, redis_url, before, after)
    assert (done.state, done.corrections, done.amount) == ("done", 5, 20)
    assert totals(session) == on_days({(DAY, f"/{number}"): 12 for number in range(5)})
    assert rows(session) == {"run": 1, "source": 2, "chunk": 2, "drift": 5}
    # The same once more, from the other end: nothing is left to be done.
    assert run(mysql_url, redis_url, after, before).corrections == 0
    # Adding it would double it.
    refused = backfill(mysql_url, options(before))
    assert refused.state == "failed"
    assert f"has set {DAY} of views" in refused.sources[0].detail

    count(applier, {(DAY, "/0"): 1})
    assert done.run is not None
    assert undo(mysql_url, done.run).amount == -20
    expected = {key: paths.count(key) - number for key, number in lost.items()}
    assert totals(session) == on_days(
        {(DAY, key): n + (key == "/0") for key, n in expected.items()}
    )


def test_killed_while_correcting_it_is_run_again(
    store: Store,
    session: Session,
    applier: Applier,
    mysql_url: str,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed(BaseException):
        pass

    original = correcting.correct_bucket
    days = [line("/", at=NOON + timedelta(days=number)) for number in range(4)]
    source = write(tmp_path / "a.log", b"".join(days))
    count(applier, {(DAY, "/"): 5})

    def dies(keeper: Any, work: Any, label: int, **others: Any) -> bool:
        if label == minute(DAY, 0) * 60 + 2 * 86_400:
            raise Killed
        return original(keeper, work, label, **others)

    monkeypatch.setattr(correcting, "correct_bucket", dies)
    with pytest.raises(Killed):
        run(mysql_url, redis_url, source)
    assert sorted(totals(session).values()) == [1, 1]
    monkeypatch.undo()
    done = run(mysql_url, redis_url, source)
    assert done.corrections == 2
    assert list(totals(session).values()) == [1, 1, 1, 1]


def test_what_could_not_be_read_whole_sets_nothing(
    store: Store,
    session: Session,
    applier: Applier,
    mysql_url: str,
    redis_url: str,
    tmp_path: Path,
) -> None:
    count(applier, {(DAY, "/"): 5})
    good = write(tmp_path / "good.log", log("/"))
    cut = write(tmp_path / "bad.log.gz", b"\x1f\x8b\x08\x00\x00")
    done = run(mysql_url, redis_url, good, cut, delete_missing=True)
    assert (done.state, done.corrections) == ("failed", 0)
    assert totals(session) == on_days({(DAY, "/"): 5})
    assert any("nothing was corrected" in notice for notice in done.notices)


def test_rejected_lines_are_in_no_total(
    store: Store,
    session: Session,
    applier: Applier,
    mysql_url: str,
    redis_url: str,
    tmp_path: Path,
) -> None:
    count(applier, {(DAY, "/"): 5})
    source = write(tmp_path / "a.log", log("/", "/") + b"nonsense\n")
    done = run(mysql_url, redis_url, source, rejects=tmp_path / "rejects.ndjson")
    assert (done.corrections, done.rejected) == (1, 1)
    assert totals(session) == on_days({(DAY, "/"): 2})
    assert any(notice.startswith("1 lines were rejected: ") for notice in done.notices)


def test_traffic_that_is_on_its_way_when_it_begins_is_waited_for(
    store: Store,
    session: Session,
    applier: Applier,
    mysql_url: str,
    redis_url: str,
    redis_client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = write(tmp_path / "a.log", log("/", "/", "/"))
    on_its_way = entry([(0, "views", "/", minute(DAY), 2)])
    stream = "{countersink:0}:events"
    redis_client.xadd(stream, {"id": on_its_way.id.hex(), "rows": "[]"})
    with pytest.raises(BackfillError, match="a worker must be running"):
        run(mysql_url, redis_url, source, wait_s=0.0)
    assert rows(session) == {}

    def worker(*_: object) -> None:
        applier.apply([Incoming(on_its_way.id, on_its_way.at, on_its_way.rows)])
        redis_client.delete(stream)

    asked = options(source, mode="reconcile")
    backfill(mysql_url, asked, redis_url=redis_url, on_progress=worker)
    assert totals(session) == on_days({(DAY, "/"): 3})
    assert reconcile.begin(redis_url, asked) > on_its_way.at
