"""A snapshot of the tables, which answers any number of questions (``Snapshot``). For each counter
it reads the shape (its scheme, and whether the counter is known), the first and the last bucket,
and the first day that is not rolled up to a month. A snapshot also has the pending amounts.

Within :meth:`Snapshot.together`, one query reads the shapes, sums or rankings of many counters (up
to ``SIZE`` counters and ``MAX_ROWS`` rows), instead of one query for each counter. The answers are
the same, because nothing changes within a snapshot.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from countersink.counting.apply.guards import BUILT_IN, read_control
from countersink.counting.counters import buckets
from countersink.counting.counters.all_counters import counter_names, is_breakdown
from countersink.counting.counters.buckets import NUMBER, is_wider
from countersink.counting.counters.catalog import SCHEME_COLUMNS, Scheme, default_scheme, scheme_of
from countersink.counting.errors import UnknownCounter
from countersink.counting.totals.selection import KeyMatch, Keys, Selection
from countersink.counting.totals.views import NOTHING, Ranges, View
from countersink.database.errors import UnknownZone
from countersink.database.session import Session
from countersink.database.sql import (
    LABEL,
    NOW_MS,
    datetime_of,
    label_time,
    labels_where,
    marks,
    width_number,
)
from countersink.runtime.limits import is_name, key_bytes, stored_form

SIZE: Final = 500
"""Maximum number of counters that are read together."""
MAX_ROWS: Final = 100_000
"""Maximum number of rows of a query for several counters; a counter with more is read alone."""
ROW_IN: Final = (
    f"SELECT counter, {LABEL} FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s"
)
_MONTH: Final = NUMBER["month"]
_CONDITIONS_PER_QUERY: Final = 2_000

SumRows = list[tuple[Any, ...]]
Ask = Callable[[list[str]], dict[str, SumRows]]


@dataclass(frozen=True, slots=True)
class Pending:
    """Amounts that are still in the queue, and not in the tables yet.

    Attributes:
        entries: number of entries in the queue.
        cells: by counter, the amount of each (bucket's label, key). The inner mapping is empty if
            the counter has pending amounts, but none of a key that the question asks for.
    """

    entries: int = 0
    cells: Mapping[str, Mapping[tuple[int, str], int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a counter's settings that a snapshot remembers.

    Attributes:
        known: whether the counter was created or counted.
        scheme: the counter's scheme. Its attribute ``counter`` is the counter's name; or ``""`` if
            the name is invalid, so that no row has it.
        dimensions: the dimensions that the counter has declared.
        tracked: whether the counter belongs to a tracked table, so that the ledger lacks its sums.
    """

    known: bool
    scheme: Scheme
    dimensions: tuple[str, ...] = ()
    tracked: bool = False


class Snapshot:
    """A snapshot of the tables, together with pending amounts.

    Args:
        session: in a transaction that has a consistent snapshot.
        pending: amounts that are still in the queue; they are added to totals. None for none.
    """

    def __init__(self, session: Session, pending: Pending | None = None) -> None:
        self.session = session
        self.pending = pending or Pending()
        self._shapes: dict[str, Shape] = {}
        self._views: dict[tuple[str, str | None], View] = {}
        self._group: _Group | None = None
        self._now_ms: int | None = None

    @property
    def now_ms(self) -> int:
        """MySQL's time in Unix ms when it is first asked for; the same for all questions."""
        if self._now_ms is None:
            ((now_ms,),) = self.session.query(f"SELECT {NOW_MS}")
            self._now_ms = int(now_ms)
        return self._now_ms

    def shape(self, counter: str | None) -> Shape:
        """Return the shape of a counter. For an unknown or invalid name, and for None, the shape
        has the default scheme, and ``known`` is False.
        """
        # For the column 'c ' equals 'c': it is compared with trailing blanks added.
        name = counter if counter and (is_name(counter) or is_breakdown(counter)) else ""
        if name not in self._shapes:
            group = self._group
            names = group.names if group is not None and name in group.places else [name]
            self._shapes |= _shapes(self.session, names)
        return self._shapes[name]

    def view(self, counter: str | None, time_zone: str | None = None) -> View:
        """Return the buckets of a counter, seen in a time zone (None: the counter's own). The
        counter need not exist: it then has the default scheme. Raises ValueError if there is no
        such time zone.
        """
        scheme = self.shape(counter).scheme
        asked = scheme.counter, time_zone
        if asked not in self._views:
            self._views[asked] = View(self, scheme, time_zone)
        return self._views[asked]

    def require_known(self, counter: str | None) -> None:
        """Raise an error if a counter is unknown.

        Raises:
            UnknownCounter: it was neither created nor counted, and has no pending amounts; or
                ``counter`` is None.
        """
        if counter not in self.pending.cells and not self.shape(counter).known:
            raise UnknownCounter(f"nothing was ever counted as {counter!r}")

    def selected(self, selection: Selection) -> View:
        """Return the buckets of a selection's counter, seen in the selection's time zone.

        Raises:
            UnknownCounter: as for :meth:`require_known`.
            ValueError: there is no such time zone.
        """
        self.require_known(selection.counter)
        return self.view(selection.counter, selection.time_zone)

    def names(self, visible: Callable[[str], bool]) -> list[str]:
        """Return the sorted names of all counters, except breakdowns, for which ``visible`` returns
        True. Counters that have only pending amounts are included.
        """
        return sorted(filter(visible, {*counter_names(self.session), *self.pending.cells}))

    def added(self, counter: str, ranges: Ranges, keys: Keys) -> Iterator[tuple[int, str, int]]:
        """Yield (bucket's label, key, amount) of those pending cells of a counter that are in the
        ranges and have one of the keys. None for ``ranges`` or ``keys`` means all.
        """
        cells = self.pending.cells.get(counter, {})
        wanted: KeyMatch | frozenset[str] | None
        if keys is None or isinstance(keys, KeyMatch):
            wanted = keys
        else:
            wanted = frozenset(map(stored_form, keys if cells else ()))
        for (label, key), amount in cells.items():
            if (wanted is None or key in wanted) and (
                ranges is None or any(label in each for each in ranges)
            ):
                yield label, key, amount

    def pending_labels(self, counter: str) -> Collection[int]:
        """Return the labels of those buckets of a counter that have pending amounts."""
        return {label for label, _ in self.pending.cells.get(counter, ())}

    def rolled_up_to(
        self, counter: str | None = None, visible: Callable[[str], bool] = lambda name: True
    ) -> date | None:
        """Return the first day of a counter that is not rolled up to a month. Without a counter,
        return the latest such day of all counters for which ``visible`` returns True. Return None
        if no rows are rolled up to months.
        """
        if counter is not None:
            return self._months_to(self.shape(counter).scheme)
        # The first row of each counter belongs to the first month, or to a late event.
        found = self.session.query(
            f"SELECT (SELECT {LABEL} FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = name"
            f" ORDER BY counter, bucket LIMIT 1), name, {SCHEME_COLUMNS} FROM counter"
            " WHERE rolled_month IS NOT NULL"
        )
        days = (
            self._months_to(scheme_of(name, columns), int(first))
            for first, name, *columns in found
            if first is not None and visible(name)
        )
        return max((day for day in days if day is not None), default=None)

    def _months_to(self, scheme: Scheme, first: int | None = None) -> date | None:
        """Return the first day of one counter that is not rolled up to a month; None if no rows are
        rolled up to months.

        Args:
            scheme: the counter's scheme.
            first: label of the counter's first row, if it is known.
        """
        until = scheme.rolled_to("month")
        if until is None or (first is not None and first > until):
            return None
        if first is None or width_number(first) != _MONTH:
            within = f" AND bucket < %s AND width = {_MONTH:d}"
            if self.row_in(scheme.counter, within, (datetime_of(until),)) is None:
                return None
        try:
            return buckets.date_at(scheme.known_zone(), until)
        except UnknownZone:
            return buckets.date_at("UTC", until)

    def edges(self, view: View, keys: Sequence[str] | None = None) -> list[int]:
        """Return the labels of some buckets that have rows in the table: the bucket that begins
        first, the bucket that ends last, and perhaps others. With ``keys``, the list has these
        buckets of each of the keys. It is empty if there are no rows.
        """
        found: list[int] = []
        for key in [None] if keys is None else dict.fromkeys(keys):
            rows = "FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s"
            args: tuple[object, ...] = (view.counter,)
            if key is not None:
                rows = (
                    "FROM counter_slot FORCE INDEX (by_key) WHERE counter = %s AND counter_key = %s"
                )
                args += (key_bytes(key),)
            end = f"(SELECT {LABEL} {rows} ORDER BY bucket {{}} LIMIT 1)"
            ends = self.session.query(
                f"{end.format('ASC')} UNION ALL {end.format('DESC')}", args * 2
            )
            # The columns of days and months are in local time, those of other widths in UTC.
            for where, values in _edge_conditions(view, {int(label) for (label,) in ends}):
                ends += self.session.query(f"SELECT {LABEL} {rows}{where}", (*args, *values))
            found += [int(label) for (label,) in ends]
        return found

    @contextmanager
    def together(self, names: Sequence[str]) -> Iterator[None]:
        """Within the block, read several counters by one query where possible.

        Args:
            names: up to :data:`SIZE` valid names, in the order of their bytes. The caller asks its
                questions about the counters in this order.
        """
        before, self._group = self._group, _Group(names)
        try:
            yield
        finally:
            self._group = before
            # These may be many, and are not needed any more.
            self._shapes.clear()
            self._views.clear()

    def shared(self, question: object, counter: str, ask: Ask) -> SumRows:
        """Return the rows of a counter that answer a question.

        Within :meth:`together`, ``ask`` gets this counter and also the counters after it that have
        the same scheme. Their rows are kept until the same question is asked about them.

        Args:
            question: a hashable value; equal values mean the same question.
            counter: the counter's name.
            ask: gets names of counters, and returns the rows of each. If one query cannot return
                all rows, the last names may be missing in the result, or all. If ``counter`` is
                missing, ``ask`` is called again with this name alone. The others are asked for
                later. A single name is never missing.
        """
        group = self._group
        if group is None or counter not in group.places:
            return ask([counter])[counter]
        taken = group.taken.setdefault(question, set())
        found = group.found.setdefault(question, {})
        if counter not in taken and counter not in found:
            alike = self.shape(counter).scheme
            others = (
                each
                for each in group.names[group.places[counter] + 1 :]
                if each not in taken and each not in found and self.shape(each).scheme == alike
            )
            found |= ask([counter, *others])
        taken.add(counter)
        return found.pop(counter) if counter in found else ask([counter])[counter]

    def row_in(self, counter: str, where: str, args: Sequence[object]) -> int | None:
        """Find any row of a counter in the table that meets SQL conditions (``where``, which begins
        with AND and may end with ORDER BY; ``args`` are its values). Return the label of its
        bucket, or None if there is no such row.
        """
        if where.startswith(NOTHING):
            return None

        def ask(names: list[str]) -> dict[str, SumRows]:
            some = names[: max(1, _CONDITIONS_PER_QUERY // (1 + len(args)))]
            found: dict[str, SumRows] = {name: [] for name in some}
            for name, label in self.session.query(
                " UNION ALL ".join([f"({ROW_IN}{where} LIMIT 1)"] * len(some)),
                [value for each in some for value in (each, *args)],
            ):
                found[name].append((label,))
            return found

        rows = self.shared((where, tuple(args)), counter, ask)
        return int(rows[0][0]) if rows else None


class _Group:
    """Counters that are read together.

    Attributes:
        names: the names of the counters.
        places: the position of each name in ``names``.
        found: by question and counter, rows that were read together with an earlier counter and are
            not used yet.
        taken: by question, the counters about which the question was asked already.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}
        self.names = list(self.places)
        self.found: dict[object, dict[str, SumRows]] = {}
        self.taken: dict[object, set[str]] = {}


def _shapes(session: Session, names: Sequence[str]) -> dict[str, Shape]:
    """Return the shape of each of these counters by name, also of unknown ones."""
    found = {}
    for name, known, tracked, declared, *columns in session.query(
        "SELECT name, created IS NOT NULL"
        " OR EXISTS (SELECT 1 FROM counter_ledger WHERE counter = name),"
        " EXISTS (SELECT 1 FROM tracked_table WHERE counter = name),"
        f" dimensions, {SCHEME_COLUMNS} FROM counter WHERE name IN ({marks(names)})",
        names,
    ):
        dimensions = tuple(declared.split(",")) if declared else ()
        scheme = scheme_of(name, columns)
        found[name] = Shape(bool(known or tracked), scheme, dimensions, bool(tracked))
    others = [name for name in names if name and name not in found]
    defaults = read_control(session, lock="").defaults if others else BUILT_IN
    distinct = "SELECT DISTINCT counter FROM counter_ledger FORCE INDEX (PRIMARY) WHERE counter"
    rows = session.query(f"{distinct} IN ({marks(others)})", others) if others else []
    counted = {name for (name,) in rows}
    return {
        name: found.get(name) or Shape(name in counted, default_scheme(name, defaults))
        for name in names
    }


def _edge_conditions(view: View, labels: Iterable[int]) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield SQL conditions, with their values, for :meth:`Snapshot.edges`. They find buckets that
    may begin before the first of ``labels``, or end after the last of ``labels``.

    ``labels`` are the first and the last bucket in the order of the column ``bucket``. That column
    is local time for days and months, and UTC for other widths. So a bucket of another width may
    begin before the first bucket, or end after the last one.
    """
    scheme, around = view.scheme, set[int]()
    for label in labels:
        begins, width = scheme.starts_at(label), view.width(label)
        wider = [each for each in view.widths if is_wider(each, width)]
        for minute in (begins // 60, scheme.ends_at(label) // 60 - 1):
            around |= {scheme.label_in(each, minute) for each in wider}
        # West of UTC the last column may be of the next day.
        around |= {buckets.label("UTC", each, begins // 60) for each in wider}
        if begins > label:
            narrower = f" AND bucket >= %s AND bucket < %s AND width < {NUMBER[width]:d}"
            yield f"{narrower} ORDER BY bucket LIMIT 1", (label_time(label), datetime_of(begins))
    around = {label for label in around if view.may_hold(label)}
    if around:
        where, values = labels_where(around)
        yield f" AND {where} GROUP BY bucket, width", values
