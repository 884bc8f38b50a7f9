"""Totals by values of dimensions: chooses the breakdown that answers a question
(``BreakdownView``), and gets the values of dimensions from the breakdown's keys.

A breakdown is stored as a counter, such as ``page_views#1``, whose keys are values of dimensions. A
question by dimensions becomes a question about that counter, which is answered like any other. A
breakdown's key ``__overflow__`` gives each dimension the value ``__overflow__``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from countersink.counting.counters import buckets
from countersink.counting.counters.breakdowns import (
    ALIKE,
    Breakdown,
    Dimensioned,
    read_dimensioned,
)
from countersink.counting.errors import UnknownDimension
from countersink.counting.totals.selection import KeyMatch, Selection
from countersink.counting.totals.series import UNITS
from countersink.counting.totals.snapshot import Snapshot
from countersink.database.errors import StoreError
from countersink.runtime.dimensions import SEPARATOR, part, values_of
from countersink.runtime.limits import OVERFLOW, text_bytes
from countersink.runtime.texts import did_you_mean


@dataclass(frozen=True, slots=True)
class BreakdownView:
    """The breakdown that answers a question about a counter.

    Attributes:
        counter: the counter that the question names.
        breakdown: the breakdown that is read.
        selection: the selection of the question, but its counter is the breakdown, and its keys are
            those that have the values in ``where``.
        by: the dimensions whose values each row has, in order.
        one_key_each: True if each row has a single key in the breakdown. Then keys need not be
            added up, and their order is that of the values.
    """

    counter: str
    breakdown: Breakdown
    selection: Selection
    by: tuple[str, ...]
    one_key_each: bool

    def values(self, key: str) -> tuple[str, ...]:
        """Return the values of the dimensions in ``by`` that a key of the breakdown has."""
        if key == OVERFLOW:
            return (OVERFLOW,) * len(self.by)
        values = values_of(key)
        names = self.breakdown.dimensions
        return tuple(
            values[place] if (place := names.index(name)) < len(values) else "" for name in self.by
        )

    def projected(self, amounts: Sequence[tuple[str, int]]) -> list[tuple[tuple[str, ...], int]]:
        """Add up the totals of keys that have the same values of the dimensions in ``by``. Return
        (values, total), the largest total first; equal totals are in the order of the values.

        Args:
            amounts: (key of the breakdown, total).
        """
        found: dict[tuple[str, ...], int] = {}
        for key, amount in amounts:
            values = self.values(key)
            found[values] = found.get(values, 0) + amount
        return sorted(found.items(), key=lambda pair: (-pair[1], [*map(text_bytes, pair[0])]))

    def since_if_after(self, snapshot: Snapshot, start: date | None) -> datetime | None:
        """Return the time from which on the breakdown counts events, if this is after the begin of
        a range, so that events are missing. Otherwise return None. The range begins with ``start``;
        if this is None, it begins with the counter's first bucket that has rows.
        """
        since = self.breakdown.since * 60
        if not since:
            return None
        view = snapshot.view(self.counter)
        if start is None:
            begins = min(map(view.scheme.starts_at, snapshot.edges(view)), default=None)
        elif isinstance(start, datetime):
            begins = buckets.unix(start)
        else:
            begins = buckets.day_begins(self.selection.time_zone or view.zone, start)
        cut = begins is not None and begins < since
        return datetime.fromtimestamp(since, UTC) if cut else None

    @contextmanager
    def renamed_errors(self) -> Iterator[None]:
        """Within the block, put the counter's name into StoreErrors instead of the breakdown's."""
        try:
            yield
        except StoreError as error:
            error.args = (str(error).replace(self.breakdown.name, self.counter), *error.args[1:])
            raise


def view_of(snapshot: Snapshot, selection: Selection, by: Sequence[str] = ()) -> BreakdownView:
    """Return the breakdown that answers a question by dimensions.

    The breakdown has all dimensions in ``by`` and ``where``, and counts all events of the range: it
    did not begin to count after the begin of the range. If there are several, it is the one with
    the fewest dimensions, and of these one that begins with the dimensions in ``where``. If all
    began to count later, it is the one that began first. (The start of a window such as
    ``last="24h"`` is not known here: it is taken as a range without start, which begins with the
    counter's first bucket that has rows.)

    Raises:
        UnknownCounter: there is no such counter.
        UnknownDimension: the counter has not declared a dimension, or has no breakdown by all of
            them.
    """
    counter = selection.counter
    assert counter is not None
    where = dict(selection.where)
    snapshot.require_known(counter)
    declared = read_dimensioned(snapshot.session, counter).get(counter, Dimensioned(counter, ()))
    for name in sorted({*by, *where}.difference(declared.dimensions)):
        # A hint to declare it would make a misspelling permanent.
        if hint := did_you_mean(name, [*UNITS, *declared.dimensions], ALIKE):
            raise UnknownDimension(f"{counter!r} has no dimension {name!r}: {hint}")
    views = [
        BreakdownView(
            counter,
            found,
            replace(selection, counter=found.name, keys=_match(found.dimensions, where), where=()),
            tuple(by),
            [name for name in found.dimensions if name not in where]
            == [name for name in by if name not in where],
        )
        for found in declared.answering({*by, *where}, where)
    ]
    complete = (each for each in views if each.since_if_after(snapshot, selection.start) is None)
    return next(complete, min(views, key=lambda each: each.breakdown.since))


def _match(names: Sequence[str], where: Mapping[str, str]) -> KeyMatch | None:
    """Return the rule that picks those keys of a breakdown that have the values in ``where``; None,
    which picks all keys, if ``where`` is empty. ``names`` are the dimensions of the breakdown.
    """
    if not where:
        return None
    parts = {name: part(value, len(names)) for name, value in where.items()}
    first = []
    for name in names:
        if name not in parts:
            break
        first.append(parts.pop(name))
    place = {name: number for number, name in enumerate(names)}
    others = tuple((place[name], value) for name, value in sorted(parts.items()))
    every = [OVERFLOW] if set(first) == {OVERFLOW} else []
    head = SEPARATOR.join(first)
    if len(first) == len(names):
        return KeyMatch(keys=[head, *every])
    prefix = head + SEPARATOR if first else ""
    return KeyMatch(keys=every, prefix=prefix, values=others)
