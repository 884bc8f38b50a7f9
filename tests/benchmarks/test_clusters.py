"""The rows of clusters and the constants are measured, with backlogs that take no time."""

import pytest

from benchmarks import clusters, constants
from benchmarks.rows import PLACES

QUICK_SECONDS = 0.2
LONG = pytest.mark.long("measures, with servers of its own")
pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, marks=LONG if place == "mariadb" else pytest.mark.clusters)
        for place in PLACES
    ],
)
def test_a_backlog_is_applied_by_more_and_more_workers(place: str) -> None:
    if why := clusters.why_missing(place):
        pytest.skip(why)
    rows = clusters.measure(place, QUICK_SECONDS, workers=(1, 2))
    assert [row["name"] for row in rows] == [f"apply_{n}_{place}" for n in (1, 2)]
    for row in rows:
        assert row["rows"] == clusters.QUICK_ENTRIES * clusters.ROWS_PER_ENTRY
        assert 0 < row["low"] <= row["rows_per_second"] <= row["high"]
        cost = row["cpu_seconds_per_million_rows"]
        assert set(cost) == {"worker", "redis", "mysql"}
        assert min(cost.values()) >= 0


@LONG
def test_constants_are_of_entries_rows_and_cells() -> None:
    found = constants.measure("mariadb", QUICK_SECONDS)
    assert found["name"] == "constants_mariadb"
    assert found["per_entry"]["producer_us"] > 0
    assert found["per_entry"]["redis_bytes"] > 100
    assert 20 < found["per_row"]["redis_bytes"] < 100
    assert found["per_cell"]["table_bytes"] > 100
    assert found["per_cell"]["binlog_bytes"] > 0
    assert found["per_row"]["binlog_bytes"] < 10  # what is folded is not logged
