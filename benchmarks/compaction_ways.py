"""The ways to compact that are compared, each as one pass that can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from benchmarks.database import Connected, Isolation, connect
from benchmarks.peers import textbook
from benchmarks.workload import COUNTER
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.schedules.options import JobOptions

Way = Literal["scheduled", "nonstop", "peer_rc", "peer_rr"]
"""Ours at the pace of the scheduled job; ours, and the textbook's, without pauses."""

ISOLATION: Final[dict[Way, Isolation]] = {
    "peer_rc": "READ COMMITTED",
    "peer_rr": "REPEATABLE READ",
}


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass did.

    Attributes:
        removed: how many slot rows there are fewer.
        refused: keys (ours) or passes (the textbook's) that others were in the way of.
    """

    removed: int
    refused: int


@contextmanager
def open_way(
    way: Way, url: str, *, bucket: str, stop: Callable[[], bool] = lambda: False
) -> Iterator[Callable[[], Pass]]:
    """One pass over the workload's counter, to be called as often as one likes.

    Args:
        way: which.
        url: the database.
        bucket: the closed bucket that the textbook's is bounded to; ours finds out by itself.
        stop: true once a pass of ours should end early; the textbook's is one transaction.
    """
    if way in ISOLATION:
        connection = connect(url, isolation=ISOLATION[way])
        try:
            yield partial(_textbook, connection, bucket)
        finally:
            connection.close()
    else:
        yield partial(_ours, url, way, stop)


def _ours(url: str, way: Way, stop: Callable[[], bool]) -> Pass:
    options = JobOptions()
    done = compact(
        partial(open_tables, url),
        CompactOptions(
            counter=COUNTER,
            grace_s=options.compact_grace_s,
            threshold=options.compact_threshold,
            rows=options.compact_rows,
            share=options.compact_share if way == "scheduled" else 1.0,
        ),
        stop=stop,
    )
    return Pass(done.rows_before - done.rows_after, len(done.busy))


def _textbook(connection: Connected, bucket: str) -> Pass:
    deleted = textbook.compact_if_free(connection, COUNTER, bucket)
    return Pass(deleted or 0, deleted is None)
