"""The benchmarks run from start to end, and results.json has the shape that README.md promises.

With measurements of a fraction of a second: what the figures are is nothing for a test. Of rows
that are measured by the same code there is one here; `make soak` runs all of them like this.
"""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import parse
from benchmarks.http_reads import NAMES as HTTP_QUESTIONS
from benchmarks.measuring import Measurement, Paced, Wrong, take_turns
from benchmarks.processes import PROJECT
from benchmarks.results import Unfinished, as_rows
from benchmarks.row_counts import QUESTIONS
from benchmarks.rows import (
    BESIDE,
    DRIFT,
    FLOORS,
    GROUPS,
    HTTP_READS,
    NAMES,
    READS,
    ROW_COUNTS,
    SERVERS,
    SHARE_KEPT,
    TARGETS,
    TRANSACTIONS,
    UNIQUE_YEAR,
    WENT_DOWN,
    WHAT,
    on,
    server_of,
)
from benchmarks.series import QUERIES
from benchmarks.unique_year import DAYS
from tests.support.servers import Kind

SERVER: Kind = "mysql" if os.environ.get("COUNTERSINK_TEST_SERVER") == "mysql" else "mariadb"
OTHER = next(server for server in SERVERS if server != SERVER)
SAMPLE = (
    "bare",
    "increment",
    "end_to_end_zipf",
    "raw_upserts",
    "peer_slotted_upsert",
    "peer_folded_stream",
    "peer_statsd_udp",
    "peer_hincrby",
    "seen_repeated",
    "peer_pfadd_repeated",
    "backfill",
    "peer_awk",
    *(on(server, "compact") for server in SERVERS),
    *(on(server, row) for server in SERVERS for row in ("peer_compact_rc", "peer_compact_rr")),
    *(on(server, "writers") for server in SERVERS),
    *(on(server, row) for server in SERVERS for row in ("sequence_one", "peer_for_update_one")),
    *(on(server, row) for server in SERVERS for row in ("insert_one", "insert_one_tracked")),
    *(on(server, row) for server in SERVERS for row in TRANSACTIONS),
    *READS,
    *ROW_COUNTS,
    *HTTP_READS,
    *UNIQUE_YEAR,
)
"""At least a row of each kind; those that take their time to set up are left to `make soak`."""
QUICK_RUN_S = 300
QUICK = pytest.mark.long("needs a quick run of the benchmarks")
pytestmark = pytest.mark.timeout(QUICK_RUN_S + 60)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document that a quick run writes; one run for all processes of a test session."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    output = shared / "benchmarks.json"
    with (shared / "benchmarks.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not output.exists():
            quick_run(output)
    document: dict[str, Any] = json.loads(output.read_text())
    return document


def quick_run(output: Path) -> None:
    """Run all rows, and keep what was written if all went well."""
    written = output.with_suffix(".new")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "--quick", "--output", written),
            *("--server", SERVER, "--without", OTHER),  # two servers to start are enough here
            *("--only", *SAMPLE),
        ],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=QUICK_RUN_S,
    )
    assert run.returncode == 0, run.stderr
    assert "end_to_end_zipf" in run.stdout
    written.rename(output)


def measured(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that were not left out."""
    return [row for row in whole["rows"] if "missing" not in row]


def ours_of(whole: dict[str, Any], part: str) -> dict[str, Any]:
    """What there is of a part in which each server has one row; the other says why it has none."""
    ours, other = whole[part]
    assert (ours["name"], other["name"]) == (on(SERVER, part), on(OTHER, part))
    assert other["missing"] == f"left out by --without {OTHER}"
    return dict(ours)


@QUICK
def test_has_its_rows_in_order(whole: dict[str, Any]) -> None:
    assert list(whole) == [
        "environment",
        "rows",
        "reads",
        "row_counts",
        "http_reads",
        "unique_year",
        "clusters",
        "constants",
        "kills",
    ]
    assert [row["name"] for row in whole["rows"]] == [name for name in NAMES if name in SAMPLE]


@QUICK
def test_rows_have_a_rate_between_low_and_high(whole: dict[str, Any]) -> None:
    for row in measured(whole):
        assert 0 < row["low"] <= row["per_second"] <= row["high"], row
        assert len(row["runs"]) == len(row["seconds"]) == whole["environment"]["rounds"], row


@QUICK
def test_rows_with_a_promise_have_a_ratio(whole: dict[str, Any]) -> None:
    promised = {row["name"] for row in measured(whole) if "ratio" in row}
    with_promise = {target.row for target in TARGETS} | {floor.row for floor in FLOORS}
    assert promised == {
        name for name in with_promise if name in SAMPLE and server_of(name) != OTHER
    }
    end_to_end = [row for row in whole["rows"] if row["name"].startswith("end_to_end")]
    assert all(row["worker_megabytes"] > 0 for row in end_to_end)


@QUICK
def test_writers_beside_our_compaction_lose_nothing(whole: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in measured(whole)}
    for name in BESIDE:
        if on(SERVER, name) not in rows:
            continue
        row = rows[on(SERVER, name)]
        assert row["alone_per_second"] > 0
        assert row["passes"] > 0
        assert row["reads"] > 0
        assert row[SHARE_KEPT] > 0
        if "peer" not in name:
            assert (row[DRIFT], row[WENT_DOWN], row["errors"]) == (0, 0, 0)


@QUICK
def test_reads_are_timed_before_and_after_compaction(whole: dict[str, Any]) -> None:
    assert [row["name"] for row in whole["reads"]] == [
        on(server, query) for server in (SERVER, OTHER) for query in QUERIES
    ]
    for row in whole["reads"][: len(QUERIES)]:
        assert row["slot_rows_before"] > row["slot_rows_after"] > 0
        for figures in (row["before_ms"], row["after_ms"]):
            assert 0 < figures["low"] <= figures["median"] <= figures["high"]
            assert figures["repetitions"] >= 5


@QUICK
def test_reads_by_http_are_timed_against_the_bare_query(whole: dict[str, Any]) -> None:
    assert [row["name"] for row in whole["http_reads"]] == [
        on(server, question) for server in (SERVER, OTHER) for question in HTTP_QUESTIONS
    ]
    for row in whole["http_reads"][: len(HTTP_QUESTIONS)]:
        # What one worker has counted of the window is one row of each key and bucket already.
        assert row["slot_rows_before"] > 0
        if row["name"] == on(SERVER, "http_top_last"):
            assert row["slot_rows_before"] == row["slot_rows_after"]
        else:
            assert row["slot_rows_before"] > row["slot_rows_after"] > 0
        for when in ("before", "after"):
            for figures in (row[when]["http_ms"], row[when]["sql_ms"]):
                assert 0 < figures["median"] <= figures["p99"] <= figures["high"]
                assert figures["repetitions"] >= 5
            assert row[when]["met"] is (row[when]["ratio"] <= 1.5)


@QUICK
def test_a_year_of_members_is_answered(whole: dict[str, Any]) -> None:
    ours = ours_of(whole, "unique_year")
    assert ours["sketches"] == DAYS
    assert 0.9 < ours["answer"] / ours["members"] < 1.1
    assert 0 < ours["ms"]["low"] <= ours["ms"]["median"] <= ours["ms"]["p99"]
    assert ours["ms"]["repetitions"] >= 5
    assert ours["met"] is (ours["ms"]["median"] <= 50)


@QUICK
def test_rows_are_counted_both_ways(whole: dict[str, Any]) -> None:
    ours = ours_of(whole, "row_counts")
    assert [asked["question"] for asked in ours["questions"]] == list(QUESTIONS)
    assert ours["questions"][0]["rows"] >= ours["table_rows"] > 0
    assert all(asked["ratio"] > 0 and asked["rows"] > 0 for asked in ours["questions"])
    assert 0 < ours["median_insert_ms"] <= ours["worst_insert_ms"]
    assert ours["track_seconds"] > 0


def test_every_row_is_described_and_measured_once_in_a_group_of_one_server() -> None:
    assert set(WHAT) == set(NAMES)
    assert sorted(name for group in GROUPS for name in group) == sorted(NAMES)
    for group in GROUPS:
        assert len({server_of(name) for name in group}) == 1, group


class Recorded:
    """A row whose figures are known."""

    def __init__(self, name: str, rates: list[int], order: list[str]) -> None:
        self.name = name
        self._rates = iter(rates)
        self._order = order

    def measure(self, seconds: float) -> Measurement:
        self._order.append(self.name)
        return Measurement(next(self._rates), 1.0)


def test_median_and_range_of_runs_taken_in_turns() -> None:
    order: list[str] = []
    group = [
        Recorded("increment", [300, 500, 400], order),
        Recorded("bare", [210, 230, 220], order),
    ]
    results = take_turns(group, rounds=3, seconds=1.0, progress=lambda *_: None)
    assert order == ["increment", "bare", "bare", "increment", "increment", "bare"]
    bare, increment = as_rows(results)
    assert (bare["name"], bare["per_second"], bare["low"], bare["high"]) == ("bare", 220, 210, 230)
    assert (increment["per_second"], increment["low"], increment["high"]) == (400, 300, 500)
    assert increment["ratio"] == pytest.approx(0.55)
    assert increment["met"]


def test_a_row_may_have_several_promises() -> None:
    names = {"end_to_end_zipf": 140, "peer_folded_dict": 100, "peer_hincrby": 20}
    group = [Recorded(name, [rate], []) for name, rate in names.items()]
    ours, *_ = as_rows(take_turns(group, rounds=1, seconds=1.0, progress=lambda *_: None))
    assert (ours["ratio"], ours["met"]) == (7.0, False)
    assert ours["also"] == [{"ratio": 1.4, "target": "≥ 1.4× peer_folded_dict", "met": True}]


def test_a_run_that_was_broken_off_goes_on_unless_its_arguments_differ(tmp_path: Path) -> None:
    arguments = ["--only", "bare", "increment", "--output", str(tmp_path / "results.json")]
    first = Unfinished(parse(arguments))
    first.add("rows", [{"name": "bare"}], ["bare"], 60.0)
    again = Unfinished(parse(arguments))
    assert (again.done, again.document["rows"]) == (["bare"], [{"name": "bare"}])
    assert again.document["environment"]["minutes"] == 1.0
    for other in (["--rounds", "9"], ["--afresh"]):
        assert Unfinished(parse([*arguments, *other])).done == []
    Unfinished.forget(parse(arguments))
    assert Unfinished(parse(arguments)).done == []


def test_the_faster_of_two_peers_is_compared_with() -> None:
    names = {"compact_mysql": 260, "peer_compact_rc_mysql": 100, "peer_compact_rr_mysql": 200}
    group = [Recorded(name, [rate], []) for name, rate in names.items()]
    results = take_turns(group, rounds=1, seconds=1.0, progress=lambda *_: None)
    ours, *_ = as_rows(results)
    assert ours["ratio"] == pytest.approx(1.3)
    assert ours["met"]


def test_a_run_that_was_too_short_is_repeated_with_more_events_or_an_error() -> None:
    asked: list[int] = []

    def work(events: int) -> Measurement:
        asked.append(events)
        return Measurement(events, events / 1_000)

    taken = Paced(10.0, multiple_of=100).run(2.0, work)
    assert taken.seconds >= 2.0
    assert asked == [100, 2_300]
    with pytest.raises(Wrong, match="less than 5 s"):  # however many there are
        Paced(10.0).run(5.0, lambda events: Measurement(events, 0.1))
