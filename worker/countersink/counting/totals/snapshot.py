"""One moment of the tables, of which any number of questions can be asked (``Snapshot``): the shape
of each counter, read once (how its events go into buckets, whether it is known), its first and last
buckets, up to when days are in months, and what is pending.

Whoever asks many counters one after another would go to the server and back for each. Within
:meth:`Snapshot.together` shapes, sums and rankings come from one query for many counters (``SIZE``
counters, ``MAX_ROWS`` rows at a time). The answers are the same, as nothing changes within a
snapshot.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Final

from countersink.counting.counters import buckets
from countersink.counting.counters.all_counters import counter_names
from countersink.counting.counters.breakdowns import is_breakdown
from countersink.counting.counters.buckets import NUMBER, is_wider
from countersink.counting.counters.catalog import DEFAULT, SCHEME_COLUMNS, Scheme, scheme_of
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
"""Counters that are read together, at most."""
MAX_ROWS: Final = 100_000
"""Rows that one query brings at most. A counter that has more by itself is asked by itself."""
ROW_IN: Final = (
    f"SELECT counter, {LABEL} FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s"
)
_MONTH: Final = NUMBER["month"]
_CONDITIONS_PER_QUERY: Final = 2_000

SumRows = list[tuple[Any, ...]]
Ask = Callable[[list[str]], dict[str, SumRows]]


@dataclass(frozen=True, slots=True)
class Pending:
    """What is not in the tables yet.

    Attributes:
        entries: how many entries of the queue it is.
        cells: counter to (label of the bucket, key) to amount; of a counter of which none of the
            wanted keys are pending, nothing.
    """

    entries: int = 0
    cells: Mapping[str, Mapping[tuple[int, str], int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a counter in one snapshot.

    Attributes:
        known: somebody has made it, or something was counted, be it 0.
        scheme: how its events go into buckets; with its name, '' where it cannot be one: no row has
            it.
    """

    known: bool
    scheme: Scheme


class Snapshot:
    """One moment.

    Args:
        session: in a snapshot of the database.
        pending: what is not in it yet, and is to be added.
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
        """The time of the server, in Unix ms; the same for all questions."""
        if self._now_ms is None:
            ((now_ms,),) = self.session.query(f"SELECT {NOW_MS}")
            self._now_ms = int(now_ms)
        return self._now_ms

    def shape(self, counter: str | None) -> Shape:
        """What is known of a counter; also of one that is not known."""
        # The column would take 'c ' for 'c': it is compared with blanks added at the end.
        name = counter if counter and (is_name(counter) or is_breakdown(counter)) else ""
        if name not in self._shapes:
            group = self._group
            names = group.names if group is not None and name in group.places else [name]
            self._shapes |= _shapes(self.session, names)
        return self._shapes[name]

    def view(self, counter: str | None, time_zone: str | None = None) -> View:
        """The buckets of a counter, known or not, in a time zone; ValueError: there is none of that
        name.
        """
        scheme = self.shape(counter).scheme
        asked = scheme.counter, time_zone
        if asked not in self._views:
            self._views[asked] = View(self, scheme, time_zone)
        return self._views[asked]

    def require_known(self, counter: str | None) -> None:
        """Refuse a counter of which nothing is known, nor pending.

        Raises:
            UnknownCounter: it is one.
        """
        if counter not in self.pending.cells and not self.shape(counter).known:
            raise UnknownCounter(f"nothing was ever counted as {counter!r}")

    def selected(self, selection: Selection) -> View:
        """The buckets of the counter of a selection, in its time zone.

        Raises:
            UnknownCounter: nothing is known of it.
            ValueError: there is no such time zone.
        """
        self.require_known(selection.counter)
        return self.view(selection.counter, selection.time_zone)

    def names(self, visible: Callable[[str], bool]) -> list[str]:
        """The names of all counters that may be seen, in order."""
        return sorted(filter(visible, {*counter_names(self.session), *self.pending.cells}))

    def added(self, counter: str, ranges: Ranges, keys: Keys) -> Iterator[tuple[int, str, int]]:
        """(label, key, amount) of what is pending in some buckets and keys of a counter."""
        cells = self.pending.cells.get(counter, {})
        wanted: KeyMatch | frozenset[str] | None
        if keys is None or isinstance(keys, KeyMatch):
            wanted = keys
        else:
            wanted = frozenset(map(stored_form, keys if cells else ()))
        for (label, key), amount in cells.items():
            if (wanted is None or key in wanted) and (
                ranges is None or any(label in one for one in ranges)
            ):
                yield label, key, amount

    def pending_labels(self, counter: str) -> Collection[int]:
        """The labels of the buckets of a counter in which something is pending."""
        return {label for label, _ in self.pending.cells.get(counter, ())}

    def rolled_up_to(
        self, counter: str | None = None, visible: Callable[[str], bool] = lambda name: True
    ) -> date | None:
        """The day before which days of a counter are in months, of all that are visible the latest
        such day; None where nothing is in months.
        """
        if counter is not None:
            return self._months_to(self.shape(counter).scheme)
        # Of each counter its first row is looked up: it is of the first month, or of what comes
        # late.
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
        """The day before which days of one counter are in months.

        Args:
            scheme: the counter's.
            first: the label of its first row, where that is known.
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
        """Labels of buckets that have rows, with those that begin first and end last, for each
        key.
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
            one = f"(SELECT {LABEL} {rows} ORDER BY bucket {{}} LIMIT 1)"
            ends = self.session.query(
                f"{one.format('ASC')} UNION ALL {one.format('DESC')}", args * 2
            )
            # The columns of days and months are local, those of others are not.
            for where, values in _beside(view, {int(label) for (label,) in ends}):
                ends += self.session.query(f"SELECT {LABEL} {rows}{where}", (*args, *values))
            found += [int(label) for (label,) in ends]
        return found

    @contextmanager
    def together(self, names: Sequence[str]) -> Iterator[None]:
        """Within the block these counters, at most :data:`SIZE`, are read together.

        Args:
            names: theirs, each a valid one, in order of bytes, in which they will be asked.
        """
        before, self._group = self._group, _Group(names)
        try:
            yield
        finally:
            self._group = before
            # There may be many, and each was asked about.
            self._shapes.clear()
            self._views.clear()

    def shared(self, question: object, counter: str, ask: Ask) -> SumRows:
        """The rows of a counter for a question that the others of its group will ask, too.

        Args:
            question: which; the same for all that are asked together.
            counter: whose rows.
            ask: finds the rows of as many of some counters, from the first on, as are brought at
                once; of one alone all.
        """
        group = self._group
        if group is None or counter not in group.places:
            return ask([counter])[counter]
        taken = group.taken.setdefault(question, set())
        found = group.found.setdefault(question, {})
        if counter not in taken and counter not in found:
            own = self.shape(counter).scheme
            found |= ask(
                [counter]
                + [
                    other
                    for other in group.names[group.places[counter] + 1 :]
                    if other not in taken and other not in found and self.shape(other).scheme == own
                ]
            )
        taken.add(counter)
        return found.pop(counter) if counter in found else ask([counter])[counter]

    def row_in(self, counter: str, where: str, args: Sequence[object]) -> int | None:
        """The label of one of a counter's rows that a condition, from AND on, picks; None: none
        is.
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
        names: theirs.
        places: theirs in ``names``.
        found: question to counter to rows that were not taken yet.
        taken: question to the counters that have asked it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}
        self.names = list(self.places)
        self.found: dict[object, dict[str, SumRows]] = {}
        self.taken: dict[object, set[str]] = {}


def _shapes(session: Session, names: Sequence[str]) -> dict[str, Shape]:
    """What is known of each of some counters."""
    found = {
        name: Shape(bool(known), scheme_of(name, columns))
        for name, known, *columns in session.query(
            "SELECT name, created IS NOT NULL"
            " OR EXISTS (SELECT 1 FROM counter_ledger WHERE counter = name)"
            " OR EXISTS (SELECT 1 FROM counter_slot WHERE counter = name),"
            f" {SCHEME_COLUMNS} FROM counter WHERE name IN ({marks(names)})",
            names,
        )
    }
    left = [name for name in names if name and name not in found]
    counted: set[str] = set()
    for table in ("counter_ledger", "counter_slot") if left else ():
        distinct = f"SELECT DISTINCT counter FROM {table} FORCE INDEX (PRIMARY)"
        rows = session.query(f"{distinct} WHERE counter IN ({marks(left)})", left)
        counted |= {name for (name,) in rows}
    return {
        name: found.get(name) or Shape(name in counted, replace(DEFAULT, counter=name))
        for name in names
    }


def _beside(view: View, labels: Iterable[int]) -> Iterator[tuple[str, Sequence[object]]]:
    """Conditions for the rows that may begin before, or end behind, the first and the last in the
    order of the column.
    """
    scheme, around = view.scheme, set[int]()
    for label in labels:
        begins, width = scheme.starts_at(label), view.width(label)
        wider = [each for each in view.widths if is_wider(each, width)]
        for at in (begins // 60, scheme.ends_at(label) // 60 - 1):
            around |= {scheme.label_in(each, at) for each in wider}
        # West of UTC the column may have reached the day after, which is the last then.
        around |= {buckets.label("UTC", each, begins // 60) for each in wider}
        if begins > label:
            narrower = f" AND bucket >= %s AND bucket < %s AND width < {NUMBER[width]:d}"
            yield f"{narrower} ORDER BY bucket LIMIT 1", (label_time(label), datetime_of(begins))
    around = {label for label in around if view.may_hold(label)}
    if around:
        where, values = labels_where(around)
        yield f" AND {where} GROUP BY bucket, width", values
