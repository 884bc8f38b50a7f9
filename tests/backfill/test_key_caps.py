"""Backfills and counters whose days may have so many keys only."""

import pytest

from countersink.backfill.errors import BackfillError
from countersink.store.apply.key_caps import OVERFLOW
from tests.backfill import helpers
from tests.backfill.helpers import Logs, keys_of, log, long_log
from tests.backfill.truths import DAY, NEXT, Scene, on_days

KEPT = """
    SELECT COUNT(DISTINCT counter_key) FROM counter_slot WHERE counter_key <> '__overflow__'
"""


def test_what_is_added_keeps_to_the_cap_and_is_taken_back_as_it_was_written(
    logs: Logs, scene: Scene
) -> None:
    scene.set_counter(max_keys=2)
    source = logs.write("a.log", log("/a", "/b", "/c", "/c", "/d", "/a"))
    report = logs.add(source)
    on = helpers.DAY
    assert logs.totals() == {(on, "/a"): 2, (on, "/b"): 1, (on, OVERFLOW): 3}
    assert logs.add(source).counted == 0
    scene.set_counter(max_keys="none")
    logs.undo(report)
    assert logs.totals() == {}


@pytest.mark.servers("mariadb", "mysql")
def test_chunks_and_live_traffic_share_the_room(logs: Logs, scene: Scene) -> None:
    logs.small_chunks()
    scene.set_counter(max_keys=5)
    scene.count({(DAY, "/live"): 1, (DAY, "/1"): 1})
    logs.add(logs.write("a.log", long_log(3000)))
    scene.count({(DAY, "/late"): 1, (DAY, "/1"): 1})
    assert logs.query(KEPT) == [(5,)]
    found = logs.totals()
    assert sum(found.values()) == 3000 + 4
    assert found[helpers.DAY, "/1"] == keys_of(3000)[helpers.DAY, "/1"] + 2


def test_days_with_overflow_are_not_reconciled_unless_all_else_goes(scene: Scene) -> None:
    scene.set_counter(max_keys=1)
    scene.count({(DAY, "/a"): 1, (DAY, "/b"): 2, (NEXT, "/a"): 4})
    said = {(DAY, "/a"): 1, (DAY, "/b"): 3}
    with pytest.raises(BackfillError, match=f"more keys than it may have on {DAY}: .*would be"):
        scene.correct(scene.said_by(said))
    before = {(DAY, "/a"): 1, (DAY, OVERFLOW): 2, (NEXT, "/a"): 4}
    assert scene.totals() == on_days(before)
    scene.correct(scene.said_by({(NEXT, "/a"): 5}))  # nothing is in the way there
    scene.correct(scene.said_by(said), delete_missing=True)
    assert scene.totals() == on_days(
        {(DAY, "/a"): 1, (DAY, "/b"): 3, (DAY, OVERFLOW): 0, (NEXT, "/a"): 5}
    )
    scene.correct(scene.said_by(said))  # nothing is left of it
