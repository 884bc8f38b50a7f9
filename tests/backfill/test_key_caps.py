"""Backfills and counters whose days may have so many keys only."""

from pathlib import Path
from typing import Any

import pytest

from countersink.backfill import reconcile
from countersink.backfill import undo as undoing
from countersink.backfill.errors import BackfillError
from countersink.store import Store
from countersink.store.apply.apply import Applier
from countersink.store.apply.key_caps import OVERFLOW
from countersink.store.connection import Session
from tests.backfill import helpers
from tests.backfill.helpers import add, keys_of, log, long_log, query, small_chunks, write
from tests.backfill.truths import DAY, NEXT, count, hour_ago, on_days, options, said_by, totals

pytestmark = pytest.mark.servers("mariadb", "mysql")

KEPT = """
    SELECT COUNT(DISTINCT counter_key) FROM counter_slot WHERE counter_key <> '__overflow__'
"""


def corrected(url: str, run: int, **asked: Any) -> int:
    return reconcile.correct(url, run, options(**asked), hour_ago()).corrections


def test_what_is_added_keeps_to_the_cap_and_is_taken_back_as_it_was_written(
    store: Store, mysql_url: str, tmp_path: Path
) -> None:
    store.counters.set("views", max_keys=2)
    source = write(tmp_path / "a.log", log("/a", "/b", "/c", "/c", "/d", "/a"))
    report = add(mysql_url, source)
    on = helpers.DAY
    assert helpers.totals(mysql_url) == {(on, "/a"): 2, (on, "/b"): 1, (on, OVERFLOW): 3}
    # Of a backfill it is the keys of each chunk, not its lines.
    assert query(mysql_url, "SELECT SUM(overflown) FROM counter_keys") == [(2,)]
    assert add(mysql_url, source).counted == 0
    store.counters.set("views", max_keys="none")
    assert report.run is not None
    undoing.undo(mysql_url, report.run)
    assert helpers.totals(mysql_url) == {}


def test_chunks_and_live_traffic_share_the_room(
    store: Store, mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    store.counters.set("views", max_keys=5)
    live = Applier(mysql_url, 17)
    count(live, {(DAY, "/live"): 1, (DAY, "/1"): 1})
    add(mysql_url, write(tmp_path / "a.log", long_log(3000)))
    count(live, {(DAY, "/late"): 1, (DAY, "/1"): 1})
    live.close()
    assert query(mysql_url, KEPT) == [(5,)]
    found = helpers.totals(mysql_url)
    assert sum(found.values()) == 3000 + 4
    assert found[helpers.DAY, "/1"] == keys_of(3000)[helpers.DAY, "/1"] + 2


def test_days_with_overflow_are_not_reconciled_unless_all_else_goes(
    store: Store, session: Session, applier: Applier, mysql_url: str
) -> None:
    store.counters.set("views", max_keys=1)
    count(applier, {(DAY, "/a"): 1, (DAY, "/b"): 2, (NEXT, "/a"): 4})
    said = {(DAY, "/a"): 1, (DAY, "/b"): 3}
    with pytest.raises(BackfillError, match=f"more keys than it may have on {DAY}: .*would be"):
        corrected(mysql_url, said_by(session, said))
    before = {(DAY, "/a"): 1, (DAY, OVERFLOW): 2, (NEXT, "/a"): 4}
    assert totals(session) == on_days(before)
    corrected(mysql_url, said_by(session, {(NEXT, "/a"): 5}))  # nothing is in the way there
    corrected(mysql_url, said_by(session, said), delete_missing=True)
    assert totals(session) == on_days(
        {(DAY, "/a"): 1, (DAY, "/b"): 3, (DAY, OVERFLOW): 0, (NEXT, "/a"): 5}
    )
    corrected(mysql_url, said_by(session, said))  # nothing is left of it
