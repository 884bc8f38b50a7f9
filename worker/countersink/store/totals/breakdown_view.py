"""Totals by dimensions: which breakdown answers a question, which of its keys that is, and what
they say of the dimensions that are asked for; from when on it holds all.

A question of a counter with dimensions becomes one of the counter that holds a breakdown, which is
answered as any other. What is in its key for rows that had no room (``__overflow__``) has that
value in each dimension.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from countersink.runtime.dimensions import SEPARATOR, part, values_of
from countersink.runtime.limits import OVERFLOW
from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.breakdowns import Breakdown, Dimensioned, read_dimensioned
from countersink.store.counters.policies import load_own
from countersink.store.errors import StoreError
from countersink.store.totals.selection import KeyMatch, Selection
from countersink.store.totals.shapes import known_shape


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
        return sorted(found.items(), key=lambda pair: (-pair[1], _bytes(pair[0])))

    @property
    def since(self) -> datetime | None:
        """The time from which on the breakdown holds the events; None: it holds all."""
        since = self.breakdown.since
        return datetime.fromtimestamp(since * 60, UTC) if since else None

    def lacks(self, session: Session, start: date | None) -> datetime | None:
        """:attr:`since`, if a range that begins so has times before it."""
        since = self.since
        if since is None or start is None:
            return since
        if isinstance(start, datetime):
            return since if start < since else None
        own = load_own(session, self.counter)
        zones = [self.selection.time_zone or policy.known_zone() for policy in own]
        begins = min(buckets.day_begins(zone, start) for zone in zones)
        return since if begins < since.timestamp() else None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors within name the counter that was asked about."""
        try:
            yield
        except StoreError as error:
            error.args = (str(error).replace(self.breakdown.name, self.counter), *error.args[1:])
            raise


def view_of(session: Session, selection: Selection, by: Sequence[str] = ()) -> BreakdownView:
    """What answers a question by dimensions: the smallest breakdown that has those of ``by`` and
    of the selection's ``where``; of such that which begins with those of the latter.

    Raises:
        UnknownCounter: there is no such counter.
        UnknownDimension: the counter has not declared one of them, or no such breakdown.
    """
    counter = selection.counter
    assert counter is not None
    where = dict(selection.where)
    known_shape(session, counter)
    own = read_dimensioned(session, counter).get(counter, Dimensioned(counter, ()))
    found = own.answering({*by, *where}, where)
    names = found.dimensions
    rest = tuple(name for name in names if name not in where)
    return BreakdownView(
        counter,
        found,
        replace(selection, counter=found.name, keys=_match(names, where), where=()),
        tuple(by),
        rest == tuple(name for name in by if name not in where),
    )


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


def _bytes(values: Sequence[str]) -> list[bytes]:
    return [value.encode("utf-8", "surrogateescape") for value in values]
