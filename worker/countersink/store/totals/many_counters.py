"""Totals of many counters with few queries (``SIZE`` counters, ``MAX_ROWS`` rows at a time), and
totals by the ledger.

Whoever asks many counters one after another would go to the server and back for each. Within
:func:`grouped` the functions of :mod:`countersink.store.totals.sums` and
:mod:`countersink.store.totals.series` take shapes and sums from one query for many counters. Their
answers are the same, as nothing changes within a snapshot.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from countersink.store.connection import Session
from countersink.store.sql import marks, parts
from countersink.store.totals.selection import (
    ChosenKeys,
    KeyMatch,
    Keys,
    Selection,
    chosen_keys,
    picked_keys,
)
from countersink.store.totals.shapes import Shape, counter_names, plain, shaped_names, shapes
from countersink.store.totals.sums import Scope, grouping, total
from countersink.store.totals.views import ROW_IN, condition
from countersink.store.totals.windows import settled

SIZE: Final = 500
"""Counters of one group, at most."""
MAX_ROWS: Final = 100_000
"""Rows that one query brings at most. A counter that has more by itself is asked by itself."""
_RANGES_PER_QUERY: Final = 2_000
"""Ranges of an index in one query: counters times keys."""

Rows = list[tuple[Any, ...]]


class CounterGroup:
    """Some counters, in one snapshot.

    Args:
        session: in the snapshot.
        names: theirs, in the order in which they will be asked.
    """

    def __init__(self, session: Session, names: Sequence[str]) -> None:
        self._session = session
        self._places = {name: place for place, name in enumerate(names)}
        self._names = list(self._places)
        self._shapes: dict[str, Shape] | None = None
        self._found: dict[object, dict[str, Rows]] = {}
        self._taken: dict[object, set[str]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def shape(self, name: str) -> Shape:
        """As :func:`countersink.store.totals.shapes.shape`."""
        if self._shapes is None:
            self._shapes = shapes(self._session, self._names)
        return self._shapes[name]

    def sums(self, scope: Scope, keys: Keys, group: str) -> Rows | None:
        """As :func:`countersink.store.totals.sums.sums`; None: ask for this counter by itself."""
        chosen = chosen_keys(keys)
        question = (_ranges(scope), chosen, group)
        return self._take(
            question, scope.counter, lambda names: self._sums(names, scope, chosen, group)
        )

    def ranked(self, scope: Scope, limit: int | None, match: KeyMatch) -> Rows | None:
        """As :func:`countersink.store.totals.sums.by_key`; None: ask for this counter by itself."""
        question = (_ranges(scope), limit, match)
        return self._take(
            question, scope.counter, lambda names: self._ranked(names, scope, limit, match)
        )

    def row_in(self, name: str, where: str, args: tuple[object, ...]) -> Rows | None:
        """As :func:`countersink.store.totals.views.row_in`; None: ask for this one by itself."""

        def ask(names: list[str]) -> dict[str, Rows]:
            some = names[: max(1, _RANGES_PER_QUERY // (1 + len(args)))]
            one = ROW_IN.replace("SELECT", "SELECT counter,", 1)
            rows = self._session.query(
                " UNION ALL ".join([f"({one}{where} LIMIT 1)"] * len(some)),
                [value for each in some for value in (each, *args)],
            )
            found: dict[str, Rows] = {each: [] for each in some}
            for each, label in rows:
                found[each].append((label,))
            return found

        return self._take((where, args), name, ask)

    def _take(self, question: object, name: str, ask: Any) -> Rows | None:
        """The rows of a counter, which are then forgotten."""
        taken = self._taken.setdefault(question, set())
        if name in taken:
            return None
        taken.add(name)
        found = self._found.setdefault(question, {})
        if name not in found:
            found |= ask(self._alike(name, taken, found))
        return found.pop(name, None)

    def _alike(self, name: str, taken: set[str], found: dict[str, Rows]) -> list[str]:
        """The counter and those after it that the same question is about."""
        own = self.shape(name)
        return [name] + [
            other
            for other in self._names[self._places[name] + 1 :]
            if other not in taken and other not in found and self.shape(other).scheme == own.scheme
        ]

    def _sums(
        self, names: list[str], scope: Scope, chosen: ChosenKeys, group: str
    ) -> dict[str, Rows]:
        """The rows of as many of the counters, from the first on, as are brought at once."""
        picked = picked_keys(chosen, _RANGES_PER_QUERY)
        widest = max((one.ranges for one in picked), default=0)
        complete = names if not widest else names[: max(1, _RANGES_PER_QUERY // widest)]
        found: dict[str, Rows] = {name: [] for name in complete}
        if scope.ranges is not None and not scope.ranges:
            return found
        where, args = condition(scope.ranges)
        for one in picked:
            if not complete:
                return {}
            select, by = grouping(scope, group, ordered=one.ordered)
            rows = self._session.query(
                f"SELECT counter, {select}SUM(amount) FROM counter_slot FORCE INDEX ({one.indexes})"
                f" WHERE counter IN ({marks(complete)}){where}{one.where}"
                f" GROUP BY counter{by and f', {by}'} ORDER BY counter LIMIT {MAX_ROWS}",
                (*complete, *args, *one.args),
            )
            complete = self._complete(complete, rows)
            for name, *row in rows:
                found[name].append(tuple(row))
        return {name: found[name] for name in complete}

    def _ranked(
        self, names: list[str], scope: Scope, limit: int | None, match: KeyMatch
    ) -> dict[str, Rows]:
        where, args = condition(scope.ranges)
        matching, matched = match.condition()
        source = (
            f"counter_slot FORCE INDEX ({match.indexes})"
            f" WHERE counter IN ({marks(names)}){where}{matching}"
        )
        values: tuple[object, ...] = (*names, *args, *matched)
        first = "" if limit is None else " WHERE place <= %s"
        rows = self._session.query(
            "SELECT counter, counter_key, total FROM (SELECT counter, counter_key,"
            " SUM(amount) AS total, ROW_NUMBER() OVER"
            " (PARTITION BY counter ORDER BY SUM(amount) DESC, counter_key) AS place"
            f" FROM {source} GROUP BY counter, counter_key) AS ranks{first}"
            f" ORDER BY counter, place LIMIT {MAX_ROWS}",
            values if limit is None else (*values, limit),
        )
        found: dict[str, Rows] = {name: [] for name in self._complete(names, rows)}
        for name, *row in rows:
            if name in found:
                found[name].append(tuple(row))
        return found

    def _complete(self, names: list[str], rows: Rows) -> list[str]:
        """Those of the counters, in order, of which no row is missing."""
        if len(rows) < MAX_ROWS:
            return names
        last = rows[-1][0]
        return [name for name in names if name < last]


@contextmanager
def grouped(session: Session, names: Sequence[str]) -> Iterator[None]:
    """Within the block these counters, at most :data:`SIZE`, are read together.

    Args:
        session: in a snapshot, to the end of the block.
        names: theirs, each a valid one, in order of bytes, in which they will be asked.
    """
    before, session.group = session.group, CounterGroup(session, names)
    try:
        yield
    finally:
        session.group = before


def _ranges(scope: Scope) -> object:
    return None if scope.ranges is None else tuple(scope.ranges)


_COUNTERS_PER_QUERY: Final = 500


def counters(session: Session, selection: Selection, known: Iterable[str] = ()) -> dict[str, int]:
    """The totals of all counters that are visible, and of those the caller knows of, by name."""
    names = filter(selection.visible, {*counter_names(session), *known})
    totals = dict.fromkeys(sorted(names), 0)
    shaped = shaped_names(session)
    everything = selection.everything
    # All that was ever counted adds up whatever the buckets are, and so do UTC days.
    # A window is of each counter's own buckets.
    own = shaped if selection.last is None else totals.keys()
    alike = [name for name in totals if everything or name not in own]
    if everything:
        totals |= totals_of(session, alike)
    elif alike:
        view = plain(alike[0]).view(selection.time_zone)
        scope = Scope.of(session, view, selection.start, selection.end)
        totals |= _by_counter(session, "counter_slot", alike, *condition(scope.ranges))
    for some in parts(sorted(totals.keys() - set(alike)), SIZE):
        with grouped(session, some):
            for name in some:
                wanted = replace(selection, counter=name, known=True)
                totals[name] = total(session, settled(session, wanted))
    return totals


def totals_of(session: Session, names: Sequence[str]) -> dict[str, int]:
    """All that was ever counted as each of ``names``, in their order; 0 for unknown ones."""
    return dict.fromkeys(names, 0) | _by_counter(session, "counter_slot", names)


def ledger_totals(session: Session, names: Sequence[str]) -> dict[str, int]:
    """What :func:`totals_of` gives, by the ledger: a row per slot instead of all rows.

    Triggers post nothing, so the rows of tracked tables' counters are added up.
    """
    beside = {name for (name,) in session.query("SELECT counter FROM tracked_table")}
    totals = dict.fromkeys(names, 0)
    totals |= totals_of(session, [name for name in names if name in beside])
    plain = [name for name in names if name not in beside]
    return totals | _by_counter(session, "counter_ledger", plain)


def _by_counter(
    session: Session, table: str, names: Sequence[str], where: str = "", args: Sequence[object] = ()
) -> dict[str, int]:
    """The sums of the rows of a table that a condition picks; only of counters that have any."""
    found: dict[str, int] = {}
    for some in parts(names, _COUNTERS_PER_QUERY):
        rows = session.query(
            f"SELECT counter, SUM(amount) FROM {table} FORCE INDEX (PRIMARY)"
            f" WHERE counter IN ({marks(some)}){where} GROUP BY counter",
            (*some, *args),
        )
        found |= {name: int(amount) for name, amount in rows}
    return found
