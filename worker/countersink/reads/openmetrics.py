"""Totals of chosen counters in the OpenMetrics text format, for Prometheus to scrape.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md: label values are
UTF-8 with backslash, quote and newline escaped; a counter's samples end in ``_total`` and are never
below zero; the text ends with ``# EOF``. No two samples have the same labels: a key that is no
UTF-8 looks like another one, and has its bytes in a label of its own.

A Prometheus counter cannot be negative, and one of ours can: a total below zero goes to a gauge
instead for as long as it is so.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

EVENTS: Final = "countersink_events"
BALANCE: Final = "countersink_balance"
COMPLETE: Final = "countersink_events_complete_up_to_timestamp_seconds"


@dataclass(frozen=True, slots=True)
class Sample:
    """A total: of a key of a counter, or, where that is None, of the whole counter."""

    counter: str
    key: str | None
    total: int


def text(samples: Iterable[Sample], complete_up_to: datetime | None) -> str:
    """The document; ``complete_up_to`` is a metric of its own, left out where it is not known."""
    above: list[Sample] = []
    below: list[Sample] = []
    for sample in samples:
        (below if sample.total < 0 else above).append(sample)
    return "".join(f"{line}\n" for line in _lines(above, below, complete_up_to))


def _lines(
    above: list[Sample], below: list[Sample], complete_up_to: datetime | None
) -> Iterator[str]:
    yield f"# TYPE {EVENTS} counter"
    yield f"# HELP {EVENTS} What was counted."
    for sample in above:
        yield f"{EVENTS}_total{_labels(sample)} {sample.total}"
    if below:
        yield f"# TYPE {BALANCE} gauge"
        yield f"# HELP {BALANCE} Totals below zero, which no Prometheus counter can be."
        for sample in below:
            yield f"{BALANCE}{_labels(sample)} {sample.total}"
    if complete_up_to is not None:
        yield f"# TYPE {COMPLETE} gauge"
        yield f"# UNIT {COMPLETE} seconds"
        yield f"# HELP {COMPLETE} What reached Redis before this time is in the totals."
        yield f"{COMPLETE} {complete_up_to.timestamp():.3f}"
    yield "# EOF"


def _labels(sample: Sample) -> str:
    labels = [("counter", sample.counter)]
    if sample.key is not None:
        # Prometheus takes UTF-8 alone: a byte of a key that is none is shown as \xff.
        raw = sample.key.encode("utf-8", "surrogateescape")
        shown = raw.decode("utf-8", "backslashreplace")
        labels.append(("key", shown))
        if shown != sample.key:
            labels.append(("key_bytes", raw.hex()))
    written = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{written}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
