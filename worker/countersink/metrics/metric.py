"""What a metric is, and a sample of one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "summary"]
Where = Literal[
    "every process", "worker", "scheduler", "jobs", "tail", "producer", "statsd", "web", "whole"
]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: in full, as queries name it; of a summary without ``_sum`` and ``_count``.
        kind: its type.
        where: what shows it; ``producer``: web and statsd, ``whole``: web, of all processes
            together.
        help: a sentence, with the unit.
        labels: names of its labels.
    """

    name: str
    kind: Kind
    where: Where
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """A metric's value now; of a summary its sum, and ``observations``."""

    name: str
    value: float
    labels: Mapping[str, str] = {}
    observations: int = 0


Samples = Iterable[Sample]

WORKER_STATES: Final = ("starting", "idle", "applying", "waiting", "stopping")
SCHEDULER_STATES: Final = ("starting", "leading", "standby", "waiting")
JOBS_STATES: Final = ("starting", "idle", "running", "waiting")
RUN_STATES: Final = ("planned", "running", "done", "failed", "skipped")


def one_of(name: str, states: Iterable[str], state: str) -> Samples:
    """The samples of a metric with the label ``state``: 1 for the one that it is in, else 0."""
    for each in states:
        yield Sample(name, float(each == state), {"state": each})
