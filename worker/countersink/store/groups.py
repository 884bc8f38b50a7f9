"""Counters that are all asked the same, in one snapshot: what is read of one is read of all.

Whoever asks many counters one after another would go to the server and back for each. Within
:func:`grouped` the functions of :mod:`countersink.store.totals_sql`,
:mod:`countersink.store.series` and :mod:`countersink.store.sums` take shapes and sums from one
query for many counters. Their answers are the same, as nothing changes within a snapshot.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from countersink.store.connection import Session
from countersink.store.key_match import KeyMatch
from countersink.store.keys import key_bytes
from countersink.store.ranges import condition
from countersink.store.shapes import Shape, shapes
from countersink.store.sums import MONTHS, Scope, grouping, marks, parts

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
        """As :func:`countersink.store.shapes.shape`."""
        if self._shapes is None:
            self._shapes = shapes(self._session, self._names)
        return self._shapes[name]

    def sums(self, scope: Scope, keys: Sequence[str] | None, group: str) -> Rows | None:
        """As :func:`countersink.store.sums.sums`; None: ask for this counter by itself."""
        chosen = None if keys is None else tuple(sorted({key_bytes(key) for key in keys}))
        question = (_ranges(scope), scope.months, chosen, group)
        return self._take(
            question, scope.counter, lambda names: self._sums(names, scope, chosen, group)
        )

    def ranked(self, scope: Scope, limit: int | None, match: KeyMatch) -> Rows | None:
        """As :func:`countersink.store.sums.ranked`; None: ask for this counter by itself."""
        question = (_ranges(scope), scope.months, limit, match)
        return self._take(
            question, scope.counter, lambda names: self._ranked(names, scope, limit, match)
        )

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
            if other not in taken
            and other not in found
            and self.shape(other).policies == own.policies
            and self.shape(other).rolled == own.rolled
        ]

    def _sums(
        self, names: list[str], scope: Scope, keys: tuple[bytes, ...] | None, group: str
    ) -> dict[str, Rows]:
        """The rows of as many of the counters, from the first on, as are brought at once."""
        complete = names if keys is None else names[: max(1, _RANGES_PER_QUERY // (len(keys) or 1))]
        sources: list[tuple[str, str, Sequence[object]]] = []
        if scope.ranges is None or scope.ranges:
            sources.append(("counter_slot", *condition(scope.ranges)))
        if scope.months is not None:
            sources.append(("counter_month", MONTHS, scope.months))
        found: dict[str, Rows] = {name: [] for name in complete}
        index = "PRIMARY" if keys is None else "by_key"
        for table, where, args in sources:
            for part in [None] if keys is None else parts(keys, _RANGES_PER_QUERY):
                if not complete:
                    return {}
                having = "" if part is None else f" AND counter_key IN ({marks(part)})"
                select, by = grouping(group)
                rows = self._session.query(
                    f"SELECT counter, {select}SUM(amount) FROM {table} FORCE INDEX ({index})"
                    f" WHERE counter IN ({marks(complete)}){where}{having}"
                    f" GROUP BY counter{by and f', {by}'} ORDER BY counter LIMIT {MAX_ROWS}",
                    (*complete, *args, *(part or ())),
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
        inside = f"counter IN ({marks(names)})"
        source = f"counter_slot FORCE INDEX (PRIMARY) WHERE {inside}{where}{matching}"
        values: tuple[object, ...] = (*names, *args, *matched)
        if scope.months is not None:
            source = (
                f"(SELECT counter, counter_key, amount FROM {source} UNION ALL"
                " SELECT counter, counter_key, amount FROM counter_month FORCE INDEX (PRIMARY)"
                f" WHERE {inside}{MONTHS}{matching}) AS sources"
            )
            values += (*names, *scope.months, *matched)
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
