"""Totals by dimensions: which breakdown answers, by which of its keys, and what they say
(``BreakdownView``).

A question of a counter with dimensions becomes one of the counter that holds a breakdown, which is
answered as any other. What is in its key for rows that had no room (``__overflow__``) has that
value in each dimension.
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
    """A breakdown as a question sees it.

    Attributes:
        counter: the counter that was asked about.
        breakdown: what answers.
        selection: the question, of the breakdown's own counter and of its keys.
        by: the dimensions that are asked for, in order.
        whole: each key stands for other values of these, so that nothing is to be added up, and
            keys are in the order of these values.
    """

    counter: str
    breakdown: Breakdown
    selection: Selection
    by: tuple[str, ...]
    whole: bool

    def values(self, key: str) -> tuple[str, ...]:
        """What a key of the breakdown says of the dimensions that are asked for."""
        if key == OVERFLOW:
            return (OVERFLOW,) * len(self.by)
        values = values_of(key)
        names = self.breakdown.dimensions
        return tuple(
            values[place] if (place := names.index(name)) < len(values) else "" for name in self.by
        )

    def projected(self, amounts: Sequence[tuple[str, int]]) -> list[tuple[tuple[str, ...], int]]:
        """(values, total) of (key, total), the largest first, then by the values."""
        found: dict[tuple[str, ...], int] = {}
        for key, amount in amounts:
            values = self.values(key)
            found[values] = found.get(values, 0) + amount
        return sorted(found.items(), key=lambda pair: (-pair[1], [*map(text_bytes, pair[0])]))

    def lacks(self, snapshot: Snapshot, start: date | None) -> datetime | None:
        """The time from which on the breakdown holds the events, if a range that begins so has
        times before it. One without a beginning begins with the first bucket that has counts.
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
    def named(self) -> Iterator[None]:
        """Errors within name the counter that was asked about."""
        try:
            yield
        except StoreError as error:
            error.args = (str(error).replace(self.breakdown.name, self.counter), *error.args[1:])
            raise


def view_of(snapshot: Snapshot, selection: Selection, by: Sequence[str] = ()) -> BreakdownView:
    """What answers a question by dimensions: the smallest breakdown that has those of ``by`` and
    of the selection's ``where``, and all events of the range; of such that which begins with those
    of the latter. Where none has all events, that which has them from the earliest time on.

    Raises:
        UnknownCounter: there is no such counter.
        UnknownDimension: the counter has not declared one of them, or no such breakdown.
    """
    counter = selection.counter
    assert counter is not None
    where = dict(selection.where)
    snapshot.require_known(counter)
    own = read_dimensioned(snapshot.session, counter).get(counter, Dimensioned(counter, ()))
    views = [
        BreakdownView(
            counter,
            found,
            replace(selection, counter=found.name, keys=_match(found.dimensions, where), where=()),
            tuple(by),
            [name for name in found.dimensions if name not in where]
            == [name for name in by if name not in where],
        )
        for found in own.answering({*by, *where}, where)
    ]
    whole = (each for each in views if each.lacks(snapshot, selection.start) is None)
    return next(whole, min(views, key=lambda each: each.breakdown.since))


def _match(names: Sequence[str], where: Mapping[str, str]) -> KeyMatch | None:
    """The keys that have some values."""
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
