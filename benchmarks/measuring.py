"""What a measurement is, in which order they are taken, and which figure of them counts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from benchmarks.rows import (
    BACKFILL_MEGABYTES,
    BACKFILL_MEGABYTES_SMALL,
    DRIFT,
    WENT_DOWN,
    WORKER_MEGABYTES,
)

ATTEMPTS: Final = 5
"""How often a run that was given too few events for its time is repeated with more."""
WORST: Final = frozenset(
    (DRIFT, WENT_DOWN, WORKER_MEGABYTES, BACKFILL_MEGABYTES, BACKFILL_MEGABYTES_SMALL)
)
"""Extra figures of which the one that is farthest from 0 counts."""
MARGIN: Final = 1.15
"""How many more events than the last rate calls for."""


class Wrong(Exception):
    """A benchmark broke down, or lost count: its figure would be worth nothing."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one row.

    Attributes:
        events: how many increments (rows for `increment_many`, `raw_upserts` and all of
            compaction).
        seconds: what they took, by the clock that the row's definition names.
        extras: further figures by name, with the unit in the name.
    """

    events: int
    seconds: float
    extras: dict[str, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        """Events per second."""
        return self.events / self.seconds


class Benchmark(Protocol):
    """A row of the table."""

    @property
    def name(self) -> str:
        """The row's name, one of `rows.NAMES`."""

    def measure(self, seconds: float) -> Measurement:
        """Run for at least ``seconds``. Raises Wrong."""


@dataclass(frozen=True, slots=True)
class Result:
    """All runs of one row."""

    name: str
    runs: tuple[Measurement, ...]

    @property
    def rates(self) -> list[float]:
        """Events per second of each run, in the order they were taken."""
        return [run.per_second for run in self.runs]

    @property
    def per_second(self) -> float:
        """The median."""
        return statistics.median(self.rates)

    def extras(self) -> dict[str, float]:
        """The extra figures: the median of the runs, but the worst of what is to be 0 or small."""
        names = sorted({name for run in self.runs for name in run.extras})
        found = {}
        for name in names:
            each = [run.extras[name] for run in self.runs if name in run.extras]
            found[name] = max(each, key=abs) if name in WORST else statistics.median(each)
        return found


def take_turns(
    group: Sequence[Benchmark],
    *,
    rounds: int,
    seconds: float,
    progress: Callable[[str, int, Measurement], None],
) -> list[Result]:
    """Measure the rows of a group in turns, so that a slow minute of the machine is shared by all.

    Every second round goes backwards: neither of two rows is always the first. ``progress`` is
    told (row, round from 1, measurement).
    """
    runs: dict[str, list[Measurement]] = {benchmark.name: [] for benchmark in group}
    for number in range(1, rounds + 1):
        for benchmark in group if number % 2 else reversed(group):
            measurement = benchmark.measure(seconds)
            runs[benchmark.name].append(measurement)
            progress(benchmark.name, number, measurement)
    return [Result(name, tuple(taken)) for name, taken in runs.items()]


class Paced:
    """Finds how many events take a given time, for work whose amount must be known beforehand."""

    def __init__(self, guess_per_second: float, *, multiple_of: int = 1) -> None:
        self._rate = guess_per_second
        self._step = multiple_of

    def run(self, seconds: float, work: Callable[[int], Measurement]) -> Measurement:
        """Call ``work`` with a number of events until one call takes ``seconds``; that one counts.

        Raises Wrong when five calls were all too short.
        """
        for _ in range(ATTEMPTS):
            wanted = self._rate * seconds * MARGIN
            measurement = work(max(1, -int(-wanted // self._step)) * self._step)
            self._rate = measurement.per_second
            if measurement.seconds >= seconds:
                return measurement
        raise Wrong(f"the last of {ATTEMPTS} runs still took less than {seconds:g} s")
