"""Totals by dimensions: the breakdown that answers, and the values of its keys (``BreakdownView``).

A question by dimensions becomes a question about the counter that stores a breakdown, which is
answered as any other. Its overflow key (``__overflow__``) has that value in each dimension.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from countersink.counting.counters import buckets
from countersink.counting.counters.breakdowns import Breakdown, Dimensioned, read_dimensioned
from countersink.counting.totals.selection import KeyMatch, Selection
from countersink.counting.totals.snapshot import Snapshot
from countersink.database.errors import StoreError
from countersink.runtime.dimensions import SEPARATOR, part, values_of
from countersink.runtime.limits import OVERFLOW, text_bytes


@dataclass(frozen=True, slots=True)
class BreakdownView:
    """The breakdown that answers a question.

    Attributes:
        counter: the counter asked about.
        breakdown: the breakdown.
        selection: the selection, with counter and keys of the breakdown.
        by: the dimensions asked for, in order.
        one_key_each: each combination of their values has one key, so that keys need not be added
            up, and are in the order of the values.
    """

    counter: str
    breakdown: Breakdown
    selection: Selection
    by: tuple[str, ...]
    one_key_each: bool

    def values(self, key: str) -> tuple[str, ...]:
        """The values of the dimensions asked for, from a key of the breakdown."""
        if key == OVERFLOW:
            return (OVERFLOW,) * len(self.by)
        values = values_of(key)
        names = self.breakdown.dimensions
        return tuple(
            values[place] if (place := names.index(name)) < len(values) else "" for name in self.by
        )

    def projected(self, amounts: Sequence[tuple[str, int]]) -> list[tuple[tuple[str, ...], int]]:
        """(values, total) from (key, total), the largest first, then by the values."""
        found: dict[tuple[str, ...], int] = {}
        for key, amount in amounts:
            values = self.values(key)
            found[values] = found.get(values, 0) + amount
        return sorted(found.items(), key=lambda pair: (-pair[1], [*map(text_bytes, pair[0])]))

    def since_if_after(self, snapshot: Snapshot, start: date | None) -> datetime | None:
        """The time from which on the breakdown counts events, if a range from ``start`` on begins
        before it. A range without start begins with the first bucket that has rows.
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
        """Replace the breakdown's name in errors by the counter asked about."""
        try:
            yield
        except StoreError as error:
            error.args = (str(error).replace(self.breakdown.name, self.counter), *error.args[1:])
            raise


def view_of(snapshot: Snapshot, selection: Selection, by: Sequence[str] = ()) -> BreakdownView:
    """The breakdown that answers a question by dimensions: of those that have the dimensions of
    ``by`` and ``where`` and count all events of the range, the one with fewest dimensions, then one
    that begins with the dimensions of ``where``. If none counts all events, the earliest one.

    Raises:
        UnknownCounter: there is no such counter.
        UnknownDimension: the counter has not declared a dimension, or such a breakdown.
    """
    counter = selection.counter
    assert counter is not None
    where = dict(selection.where)
    snapshot.require_known(counter)
    declared = read_dimensioned(snapshot.session, counter).get(counter, Dimensioned(counter, ()))
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
    """The match of keys with the values ``where``; None: all keys."""
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
