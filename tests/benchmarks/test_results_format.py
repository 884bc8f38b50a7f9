"""The benchmarks run from start to end, and results.json has the shape that README.md promises.

With measurements of a fraction of a second: what the figures are is nothing for a test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.measuring import Measurement, Paced, Wrong, take_turns
from benchmarks.processes import PROJECT
from benchmarks.results import as_rows
from benchmarks.rows import GROUPS, NAMES, TARGETS, WHAT

SERVER = os.environ.get("COUNTERSINK_TEST_SERVER", "mariadb")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document that a quick run writes."""
    output = tmp_path_factory.mktemp("benchmarks") / "results.json"
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--server", SERVER, "--output", output],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    assert "end_to_end_zipf" in run.stdout
    document: dict[str, Any] = json.loads(output.read_text())
    return document


@pytest.mark.slow
def test_has_every_row_in_order(whole: dict[str, Any]) -> None:
    assert list(whole) == ["environment", "rows"]
    assert [row["name"] for row in whole["rows"]] == list(NAMES)


@pytest.mark.slow
def test_rows_have_a_rate_between_low_and_high(whole: dict[str, Any]) -> None:
    for row in whole["rows"]:
        assert 0 < row["low"] <= row["per_second"] <= row["high"], row
        assert len(row["runs"]) == len(row["seconds"]) == whole["environment"]["rounds"], row


@pytest.mark.slow
def test_rows_with_a_promise_have_a_ratio(whole: dict[str, Any]) -> None:
    promised = {row["name"] for row in whole["rows"] if "ratio" in row}
    assert promised == {target.row for target in TARGETS}
    end_to_end = [row for row in whole["rows"] if row["name"].startswith("end_to_end")]
    assert all(row["worker_megabytes"] > 0 for row in end_to_end)


@pytest.mark.slow
def test_environment_says_what_was_measured(whole: dict[str, Any]) -> None:
    environment = whole["environment"]
    for name in ("date", "cpu", "cores", "python", "redis", SERVER, "libraries"):
        assert environment[name], name
    assert "password" not in json.dumps(whole)
    assert "innodb-flush-log-at-trx-commit=1" in environment["mysql_settings"]


def test_every_row_is_described_and_measured_once() -> None:
    assert set(WHAT) == set(NAMES)
    assert sorted(name for group in GROUPS for name in group) == sorted(NAMES)


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
        Recorded("increment", [100, 300, 200], order),
        Recorded("bare", [210, 230, 220], order),
    ]
    results = take_turns(group, rounds=3, seconds=1.0, progress=lambda *_: None)
    assert order == ["increment", "bare", "bare", "increment", "increment", "bare"]
    bare, increment = as_rows(results)
    assert (bare["name"], bare["per_second"], bare["low"], bare["high"]) == ("bare", 220, 210, 230)
    assert (increment["per_second"], increment["low"], increment["high"]) == (200, 100, 300)
    assert increment["ratio"] == pytest.approx(1.1)
    assert increment["met"]


def test_a_run_that_was_too_short_is_repeated_with_more_events() -> None:
    asked: list[int] = []

    def work(events: int) -> Measurement:
        asked.append(events)
        return Measurement(events, events / 1_000)

    taken = Paced(10.0, multiple_of=100).run(2.0, work)
    assert taken.seconds >= 2.0
    assert asked == [100, 2_300]


def test_a_run_that_stays_too_short_is_an_error() -> None:
    with pytest.raises(Wrong, match="less than 5 s"):
        Paced(10.0).run(5.0, lambda events: Measurement(events, 0.1))
