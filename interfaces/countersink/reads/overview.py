"""The list of counters with their totals and last days: search, sort orders and pages."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import islice
from math import inf
from typing import Final, TypeVar

from countersink.counting.counters import buckets
from countersink.counting.counters.all_counters import (
    counter_names,
    known_names,
    names_in_parts,
    totals_of,
)
from countersink.counting.errors import InexactZone, RolledUp
from countersink.counting.totals.selection import Selection
from countersink.counting.totals.series import series
from countersink.counting.totals.snapshot import SIZE, Snapshot
from countersink.counting.totals.sums import total
from countersink.database.errors import UnknownZone
from countersink.database.sql import parts
from countersink.runtime.limits import is_name

MAX_DAYS: Final = 92
"""Maximum number of last days that are shown of each counter."""
CHANGES: Final = (7, 30, 90)
"""Days of each of the two periods that a change may be of: the last complete days, and the days
before them. Today is incomplete, and belongs to neither. 7 is the default."""
SORTS: Final = ("counter", "today", "total", "change")
"""Sort orders of counters: by name (``counter``), or by a number of :func:`sort_values`."""

T = TypeVar("T")
SortValues = Mapping[str, tuple[float, ...]]
"""The numbers by which counters are sorted, by counter name. The counter with the largest first
number comes first. A second number decides between counters with equal first numbers. A counter
without a number has an empty tuple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQuery:
    """A query for a page of the list of counters.

    Attributes:
        search: text that the names contain; empty for all counters.
        after: the last counter of the previous page; empty for the first page.
        limit: maximum number of counters on the page, 1 or more.
        days: number of last days, today included, in each counter's time zone; at most
            :data:`MAX_DAYS`, 0 for none.
        totals: whether the page has the counters' totals of all time.
        change: number of days in each of the two periods of ``OverviewLine.change``; 0 for none.
        visible: gets the name of a counter, and returns whether the counter may be listed.
        sort_values: the numbers of all counters, from :func:`sort_values`; None sorts by name, in
            the order of bytes.
        only: names of existing counters: the list has exactly these counters, in this order.
            ``search``, ``after``, ``visible``, ``sort_values`` and ``reverse`` are ignored then.
            None for a list of all counters.
        reverse: whether the order is reversed. Counters without a number stay at its end.
    """

    search: str = ""
    after: str = ""
    limit: int = 100
    days: int = 14
    totals: bool = True
    change: int = 0
    visible: Callable[[str], bool] = field(default=lambda name: True, repr=False)
    sort_values: SortValues | None = field(default=None, repr=False)
    only: Sequence[str] | None = None
    reverse: bool = False

    def fits(self, name: str) -> bool:
        """Return whether ``search`` and ``visible`` admit the counter ``name`` to the list."""
        return self.search in name and self.visible(name)

    def is_beyond(self, name: str) -> bool:
        """Return whether a name comes after ``after`` in the list sorted by name, in reverse order
        if ``reverse`` is set; True for each name if ``after`` is empty."""
        return not self.after or (name < self.after if self.reverse else name > self.after)


@dataclass(slots=True, kw_only=True)
class OverviewLine:
    """One counter of the list, with its total and its last days.

    Attributes:
        counter: the counter's name.
        time_zone, resolution: settings of the counter.
        total: the total of all time; None where the query does not ask for totals.
        days: (day, total) of the last days, today last; None where the query asks for no days, the
            buckets are wider than days, some of the days are rolled up to months, or this machine
            does not know the time zone.
        change: the totals of the last complete days and of as many days before them; None where
            the query does not ask for them, or they are unknown.
    """

    counter: str
    time_zone: str
    resolution: str
    total: int | None
    days: list[tuple[date, int]] | None
    change: tuple[int, int] | None = None


@dataclass(slots=True, kw_only=True)
class Overview:
    """A page of the list of counters.

    Attributes:
        lines: the counters of the page, in the requested order.
        counters: number of counters on all pages. It is None if the list is sorted by name and
            there are more names than one query returns.
        more: whether another page follows.
    """

    lines: list[OverviewLine]
    counters: int | None
    more: bool


def overview(snapshot: Snapshot, query: OverviewQuery) -> Overview:
    """Return a page of the list of counters, with their totals and last days; at most
    ``query.limit`` counters.

    Raises:
        StoreError: a query failed.
        ValueError: ``after`` cannot be a counter's name; or the list is sorted by a number, and
            does not include ``after``.
    """
    page: list[str]
    number: int | None
    if query.only is not None:
        page, number = list(query.only), len(query.only)
    elif query.sort_values is None:
        page, number = _page_by_name(snapshot, query)
    else:
        page, number = _page_by_number(query.sort_values, query)
    more = len(page) > query.limit
    page = page[: query.limit]
    totals = _totals(snapshot, page) if query.totals else {}
    days = _days(snapshot, page, query.days)
    changes = _changes(snapshot, page, query.change)
    with snapshot.together(sorted(page)):
        schemes = [snapshot.shape(name).scheme for name in page]
    lines = [
        OverviewLine(
            counter=name,
            time_zone=scheme.time_zone,
            resolution=scheme.resolution,
            total=totals.get(name),
            days=days[name],
            change=changes[name],
        )
        for name, scheme in zip(page, schemes, strict=True)
    ]
    return Overview(lines=lines, counters=number, more=more)


def today(snapshot: Snapshot, wanted: Sequence[str]) -> tuple[list[str] | None, Overview]:
    """Return the sorted names of all counters, and a page with today's totals (``days``) of the
    ``wanted`` counters, also sorted by name. Of these, counters that do not exist are left out.
    The first result is None if there are more counters than one query returns (10,000).

    Raises:
        StoreError: a query failed.
    """
    names, *others = islice(names_in_parts(snapshot.session, ""), 2)
    known = sorted(known_names(snapshot.session, wanted))
    query = OverviewQuery(only=known, limit=len(known), days=1, totals=False)
    return None if others else names, overview(snapshot, query)


def sort_values(snapshot: Snapshot, by: str, change: int = CHANGES[0]) -> SortValues:
    """Return the numbers by which all counters are sorted in the order ``by``: ``today``, ``total``
    or ``change``. By ``today``, a counter has no number if its last day is unknown (None in
    ``days`` of :class:`OverviewLine`).

    The order ``change`` compares two totals: ``last``, of as many last complete days as the
    argument ``change`` says, and ``before``, of as many days before them. The number is
    ``last / before - 1`` if ``before`` is above 0, and infinite if ``before`` is 0 and ``last`` is
    above 0; ``last`` decides between equal numbers. In all other cases the counter has no number,
    also if these totals are unknown.

    Raises:
        StoreError: a query failed.
    """
    names = counter_names(snapshot.session)
    if by == "total":
        return {name: (total,) for name, total in _totals(snapshot, names).items()}
    found: dict[str, tuple[float, ...]] = dict.fromkeys(names, ())
    if by == "today":
        days = _days(snapshot, names, 1)
        return found | {name: (one[-1][1],) for name, one in days.items() if one is not None}
    for name, totals in _changes(snapshot, names, change).items():
        last, before = totals or (0, 0)
        if before > 0:
            found[name] = (last / before - 1, last)
        elif last > 0 and before == 0:
            found[name] = (inf, last)
    return found


def _page_by_name(snapshot: Snapshot, query: OverviewQuery) -> tuple[list[str], int | None]:
    """Return the counters after ``query.after``, sorted by name, and the number of counters on all
    pages. If another page follows, the list has more than ``query.limit`` counters, and the caller
    cuts it. The number is None if there are too many counters to read all names in
    one SQL query."""
    if query.after and not is_name(query.after):
        raise ValueError("`after` must be a counter's name: `next` of the previous page")
    session, pending = snapshot.session, snapshot.pending.cells
    first, *others = islice(names_in_parts(session, "", reverse=query.reverse), 2)
    if not others:
        names = list(filter(query.fits, {*first, *pending}))
        page = sorted(filter(query.is_beyond, names), reverse=query.reverse)
        return page, len(names)
    found = list(filter(query.is_beyond, filter(query.fits, pending)))
    number = 0
    for part in names_in_parts(session, query.after, reverse=query.reverse):
        fitting = list(filter(query.fits, part))
        found += fitting
        number += len(fitting)
        if number > query.limit:
            break
    return sorted(set(found), reverse=query.reverse), None


def _page_by_number(values: SortValues, query: OverviewQuery) -> tuple[list[str], int]:
    names = list(filter(query.fits, values))
    with_value = sorted(name for name in names if values[name])
    with_value.sort(key=values.__getitem__, reverse=not query.reverse)
    page = with_value + sorted(name for name in names if not values[name])
    if not query.after:
        return page, len(names)
    if query.after not in names:
        raise ValueError(f"counter {query.after!r} is not in the list: start again without `after`")
    return page[page.index(query.after) + 1 :], len(names)


def _totals(snapshot: Snapshot, names: Sequence[str]) -> dict[str, int]:
    found = totals_of(snapshot.session, names)
    for name in found.keys() & snapshot.pending.cells.keys():
        found[name] += sum(snapshot.pending.cells[name].values())
    return found


def _days(
    snapshot: Snapshot, names: Sequence[str], number: int
) -> dict[str, list[tuple[date, int]] | None]:
    """Return the last ``number`` days of each counter with their totals. A counter has None where
    its buckets are wider than days, some of the days are rolled up to months, its time zone is
    unknown, or ``number`` is 0."""

    def days(name: str, today: date) -> list[tuple[date, int]]:
        wanted = Selection(name, start=today - timedelta(days=number - 1), end=today)
        return series(snapshot, wanted, "day", strict=True).rows

    return _answers(snapshot, names, days) if number else dict.fromkeys(names)


def _changes(
    snapshot: Snapshot, names: Sequence[str], number: int
) -> dict[str, tuple[int, int] | None]:
    """Return the totals of the last ``number`` complete days of each counter, and of as many days
    before them. A counter has None where they are unknown, or ``number`` is 0."""

    def change(name: str, today: date) -> tuple[int, int]:
        first, middle = (today - timedelta(days=number * back) for back in (2, 1))
        last = Selection(name, start=middle, end=today - buckets.ONE_DAY)
        before = Selection(name, start=first, end=middle - buckets.ONE_DAY)
        return total(snapshot, last), total(snapshot, before)

    return _answers(snapshot, names, change) if number else dict.fromkeys(names)


def _answers(
    snapshot: Snapshot, names: Sequence[str], question: Callable[[str, date], T]
) -> dict[str, T | None]:
    """Return the result of ``question`` for each counter. It is called with the counter's name and
    today's date in the counter's time zone. A counter has None where its buckets cannot answer, or
    its time zone is unknown."""
    found: dict[str, T | None] = dict.fromkeys(names)
    for part in parts(sorted(names), SIZE):
        with snapshot.together(part):
            for name in part:
                with suppress(InexactZone, RolledUp, UnknownZone):
                    zone = snapshot.shape(name).scheme.known_zone()
                    found[name] = question(name, buckets.date_at(zone, snapshot.now_ms // 1000))
    return found
