"""What of a counter can be asked for: how its events go into buckets, whether it is known, which
buckets it has, and up to when they are in months; and totals by dimensions: which breakdown
answers, by which of its keys, and what they say (``BreakdownView``).

A question of a counter with dimensions becomes one of the counter that holds a breakdown, which is
answered as any other. What is in its key for rows that had no room (``__overflow__``) has that
value in each dimension.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Final

from countersink.runtime.dimensions import SEPARATOR, part, values_of
from countersink.runtime.limits import OVERFLOW, key_bytes
from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.breakdowns import (
    Breakdown,
    Dimensioned,
    is_breakdown,
    is_stored,
    read_dimensioned,
)
from countersink.store.counters.buckets import NUMBER, is_wider
from countersink.store.counters.catalog import (
    DEFAULT,
    SCHEME_COLUMNS,
    Scheme,
    read_schemes,
    scheme_of,
)
from countersink.store.errors import StoreError, UnknownCounter, UnknownZone
from countersink.store.sql import (
    LABEL,
    datetime_of,
    label_time,
    labels_where,
    marks,
    width_number,
)
from countersink.store.totals.selection import KeyMatch, Selection
from countersink.store.totals.views import View, row_in

NAMES_PER_QUERY: Final = 10_000
"""Names of counters that are read at a time, at most."""
_NAMED: Final = (
    ("counter_ledger", "counter"),
    ("counter_slot FORCE INDEX (PRIMARY)", "counter"),
    ("counter", "name"),
)
"""Tables that have names of counters, and the column, by which each has an index."""
_MADE: Final = {"counter": " AND created IS NOT NULL"}
"""What else is to be true of their rows: a deleted counter keeps its time zone."""
_MONTH: Final = NUMBER["month"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a counter in one snapshot.

    Attributes:
        counter: its name, '' where it cannot be one: no row has it.
        known: somebody has made it, or something was counted, be it 0.
        scheme: how its events go into buckets.
    """

    counter: str
    known: bool
    scheme: Scheme

    def view(self, time_zone: str | None) -> View:
        """Its buckets in a time zone; ValueError where there is none of that name."""
        return View(self.scheme, time_zone)


def plain(counter: str, *, known: bool = True) -> Shape:
    """A counter that nobody has said anything about."""
    return Shape(counter, known, replace(DEFAULT, counter=counter))


def shape(session: Session, counter: str | None) -> Shape:
    """What is known of a counter; also of one that is not known."""
    name = _name(counter)
    if session.group is not None and name in session.group:
        return session.group.shape(name)
    ((known, there, *columns),) = session.query(
        "SELECT created IS NOT NULL OR EXISTS (SELECT 1 FROM counter_ledger WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_slot WHERE counter = %s),"
        f" name, {SCHEME_COLUMNS} FROM (SELECT 1) AS one LEFT JOIN counter ON name = %s",
        (name,) * 3,
    )
    if there is None:
        return plain(name, known=bool(known))
    return Shape(name, bool(known), scheme_of(name, columns))


def shapes(session: Session, names: Sequence[str]) -> dict[str, Shape]:
    """What is known of each of some counters, of which no query asks for one alone."""
    if not names:
        return {}
    schemes = read_schemes(session, names)
    made = f"SELECT name FROM counter WHERE created IS NOT NULL AND name IN ({marks(names)})"
    known = {name for (name,) in session.query(made, names)}
    for table in ("counter_ledger", "counter_slot"):
        # Hardly any counter has rows, and none in the ledger: only these are looked up there.
        if left := [name for name in names if name not in known]:
            found = session.query(
                f"SELECT DISTINCT counter FROM {table} FORCE INDEX (PRIMARY)"
                f" WHERE counter IN ({marks(left)})",
                left,
            )
            known |= {name for (name,) in found}
    return {
        name: Shape(name, name in known, schemes[name])
        if name in schemes
        else plain(name, known=name in known)
        for name in names
    }


def known_shape(session: Session, counter: str | None) -> Shape:
    """What is known of a counter.

    Raises:
        UnknownCounter: nothing.
    """
    found = shape(session, counter)
    if not found.known:
        raise UnknownCounter(f"nothing was ever counted as {counter!r}")
    return found


def selected(session: Session, selection: Selection) -> Shape:
    """What is known of the counter of a selection.

    Raises:
        UnknownCounter: nothing, here or by whoever made the selection.
    """
    find = shape if selection.known else known_shape
    return find(session, selection.counter)


def rolled_up_to(
    session: Session,
    counter: str | None = None,
    visible: Callable[[str], bool] = lambda name: True,
) -> date | None:
    """The day before which days of a counter are in months, of all that are visible the latest such
    day; None where nothing is in months.
    """
    if counter is not None:
        return _months_to(session, shape(session, counter).scheme)
    # Of each counter its first row is looked up: it is of the first month, or of what comes late.
    found = session.query(
        f"SELECT (SELECT {LABEL} FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = name"
        f" ORDER BY counter, bucket LIMIT 1), name, {SCHEME_COLUMNS} FROM counter"
        " WHERE rolled_month IS NOT NULL"
    )
    days = (
        _months_to(session, scheme_of(name, columns), int(first))
        for first, name, *columns in found
        if first is not None and visible(name)
    )
    return max((day for day in days if day is not None), default=None)


def _months_to(session: Session, scheme: Scheme, first: int | None = None) -> date | None:
    """The day before which days of one counter are in months.

    Args:
        session: in a snapshot.
        scheme: the counter's.
        first: the label of its first row, where that is known.
    """
    until = scheme.rolled_to("month")
    if until is None or (first is not None and first > until):
        return None
    if first is None or width_number(first) != _MONTH:
        within = f" AND bucket < %s AND width = {_MONTH:d}"
        if row_in(session, scheme.counter, within, (datetime_of(until),)) is None:
            return None
    try:
        return buckets.date_at(scheme.known_zone(), until)
    except UnknownZone:
        return buckets.date_at("UTC", until)


def counter_names(session: Session) -> list[str]:
    """The names of all counters that were made or counted, in order, without those of
    breakdowns.
    """
    return sorted(name for some in names_in_parts(session, "") for name in some)


def names_in_parts(session: Session, after: str, *, reverse: bool = False) -> Iterator[list[str]]:
    """The names of counters, :data:`NAMES_PER_QUERY` or so at a time, each time by an index.

    Args:
        session: in a snapshot.
        after: the names behind this one; empty: all.
        reverse: the last one first, and those before ``after``.
    """
    order = "DESC" if reverse else "ASC"
    while True:
        beyond = f"{{}} {'<' if reverse else '>'} %s" if after else "%s = ''"
        each = [
            f"(SELECT {name} AS counter FROM {table} WHERE {beyond.format(name)}"
            f"{_MADE.get(table, '')} GROUP BY {name} ORDER BY {name} {order}"
            f" LIMIT {NAMES_PER_QUERY})"
            for table, name in _NAMED
        ]
        found = session.query(
            f"SELECT counter FROM ({' UNION '.join(each)}) AS named"
            f" ORDER BY counter {order} LIMIT {NAMES_PER_QUERY}",
            [after] * len(each),
        )
        yield [name for (name,) in found if not is_breakdown(name)]
        if len(found) < NAMES_PER_QUERY:
            return
        ((after,),) = found[-1:]


def known_names(session: Session, wanted: Sequence[str]) -> list[str]:
    """Those of ``wanted``, valid names, that were made or counted, in order."""
    if not wanted:
        return []
    each = [
        f"SELECT {name} FROM {table} WHERE {name} IN ({marks(wanted)}){_MADE.get(table, '')}"
        for table, name in _NAMED
    ]
    return sorted(name for (name,) in session.query(" UNION ".join(each), [*wanted] * len(each)))


def shaped_names(session: Session) -> set[str]:
    """The counters whose rows do not simply add up by UTC day."""
    _, _, *times = SCHEME_COLUMNS.split(", ")
    found = session.query(
        "SELECT name FROM counter WHERE time_zone <> 'UTC' OR resolution <> 'day'"
        f" OR COALESCE({', '.join(times)}) IS NOT NULL"
    )
    return {name for (name,) in found}


def edges(session: Session, view: View, keys: Sequence[str] | None = None) -> list[int]:
    """Labels of buckets that have rows, with those that begin first and end last, for each key."""
    found: list[int] = []
    for key in [None] if keys is None else dict.fromkeys(keys):
        rows = "FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s"
        args: tuple[object, ...] = (view.counter,)
        if key is not None:
            rows = "FROM counter_slot FORCE INDEX (by_key) WHERE counter = %s AND counter_key = %s"
            args += (key_bytes(key),)
        one = f"(SELECT {LABEL} {rows} ORDER BY bucket {{}} LIMIT 1)"
        ends = session.query(f"{one.format('ASC')} UNION ALL {one.format('DESC')}", args * 2)
        # The columns of days and months are local, those of others are not.
        for where, values in _beside(view, {int(label) for (label,) in ends}):
            ends += session.query(f"SELECT {LABEL} {rows}{where}", (*args, *values))
        found += [int(label) for (label,) in ends]
    return found


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


def _name(counter: str | None) -> str:
    """``counter``; '' for what cannot be a counter's name, which is as unknown.

    The column would take 'c ' for 'c': it is compared with blanks added at the end.
    """
    return counter if counter is not None and is_stored(counter) else ""


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
        """:attr:`since`, if a range that begins so has times before it. One without a beginning
        begins with the first day that has counts.
        """
        since = self.since
        if since is None:
            return None
        view = shape(session, self.counter).view(None)
        start = start or min(map(view.day, edges(session, view)), default=None)
        if start is None:
            return None
        if isinstance(start, datetime):
            return since if start < since else None
        begins = buckets.day_begins(self.selection.time_zone or view.zone, start)
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
    of the selection's ``where``, and all events of the range; of such that which begins with those
    of the latter. Where none has all events, that which has them from the earliest time on.

    Raises:
        UnknownCounter: there is no such counter.
        UnknownDimension: the counter has not declared one of them, or no such breakdown.
    """
    counter = selection.counter
    assert counter is not None
    where = dict(selection.where)
    known_shape(session, counter)
    own = read_dimensioned(session, counter).get(counter, Dimensioned(counter, ()))
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
    whole = (each for each in views if each.lacks(session, selection.start) is None)
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


def _bytes(values: Sequence[str]) -> list[bytes]:
    return [value.encode("utf-8", "surrogateescape") for value in values]
