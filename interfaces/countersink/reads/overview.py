"""The list of all counters with totals and last days: sorting (``SORTS``), paging, search, and at
most how many days (``MAX_DAYS``)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import islice
from math import inf
from typing import Final

from countersink.counting.counters import buckets
from countersink.counting.counters.all_counters import (
    counter_names,
    known_names,
    ledger_totals,
    names_in_parts,
)
from countersink.counting.errors import InexactZone, RolledUp
from countersink.counting.totals.selection import Selection
from countersink.counting.totals.series import series
from countersink.counting.totals.snapshot import SIZE, Snapshot
from countersink.database.errors import UnknownZone
from countersink.database.sql import parts
from countersink.runtime.limits import is_name

MAX_DAYS: Final = 92
"""Days at a glance, at most."""
WEEK: Final = 7
"""Days of a change: the last whole ones are held against as many before them. Today, which is not
over, is left out."""
SORTS: Final = ("counter", "today", "total", "change")
"""What counters may be sorted by: their names, or a number of :func:`standing`."""

Standing = Mapping[str, tuple[float, ...]]
"""By what all counters are sorted, larger ones first; empty for those that do not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """A question for the list of counters: search, page, days, sorting.

    Attributes:
        search: a part of their names; empty for all.
        after: only those after this one; empty for all.
        limit: so many of them at most, 1 or more.
        days: last days, at most :data:`MAX_DAYS`, today's included, of each counter's own time
            zone; 0 for none.
        totals: whether all that was ever counted is asked for.
        visible: tells which names may be seen.
        standing: all of them, and what they are sorted by, from :func:`standing`; None: by name, in
            order of bytes.
        only: these, which exist, and no others; None: all.
        reverse: the other way round.
    """

    search: str = ""
    after: str = ""
    limit: int = 100
    days: int = 14
    totals: bool = True
    visible: Callable[[str], bool] = field(default=lambda name: True, repr=False)
    standing: Standing | None = field(default=None, repr=False)
    only: Sequence[str] | None = None
    reverse: bool = False

    def fits(self, name: str) -> bool:
        """Whether a counter is in the list."""
        return self.search in name and self.visible(name)

    def is_beyond(self, name: str) -> bool:
        """Whether a counter comes after ``after``, by name."""
        return not self.after or (name < self.after if self.reverse else name > self.after)


@dataclass(slots=True, kw_only=True)
class OverviewLine:
    """One counter of the list, with its total and its last days.

    Attributes:
        counter: its name.
        time_zone, resolution: its own.
        total: all that was ever counted; None where it was not asked for.
        days: (day, total) of the last days, today's as the last; None where its buckets do not
            tell, the days are in months by now, or this machine does not know its time zone.
    """

    counter: str
    time_zone: str
    resolution: str
    total: int | None
    days: list[tuple[date, int]] | None


@dataclass(slots=True, kw_only=True)
class Overview:
    """A page of the list of counters.

    Attributes:
        lines: in the order that was asked for.
        counters: how many counters there are, before ``after`` and ``limit``; None: more than are
            counted for a page.
        more: there are others after the last line.
    """

    lines: list[OverviewLine]
    counters: int | None
    more: bool


def overview(snapshot: Snapshot, glance: Glance) -> Overview:
    """Counters with their totals and last days.

    Raises:
        StoreError: as any query.
        ValueError: ``after`` is no counter's name; or none of the counters, and they are not sorted
            by name.
    """
    page: list[str]
    number: int | None
    if glance.only is not None:
        page, number = list(glance.only), len(glance.only)
    elif glance.standing is None:
        page, number = _page_by_name(snapshot, glance)
    else:
        page, number = _page_by_number(glance.standing, glance)
    more = len(page) > glance.limit
    page = page[: glance.limit]
    totals = _totals(snapshot, page) if glance.totals else {}
    days = _days(snapshot, page, glance.days)
    with snapshot.together(sorted(page)):
        schemes = [snapshot.shape(name).scheme for name in page]
    lines = [
        OverviewLine(
            counter=name,
            time_zone=scheme.time_zone,
            resolution=scheme.resolution,
            total=totals.get(name),
            days=days[name],
        )
        for name, scheme in zip(page, schemes, strict=True)
    ]
    return Overview(lines=lines, counters=number, more=more)


def today(snapshot: Snapshot, wanted: Sequence[str]) -> tuple[list[str] | None, Overview]:
    """All names, where one query brings them, and today's totals of those ``wanted`` that exist.

    Raises:
        StoreError: as any query.
    """
    names, *others = islice(names_in_parts(snapshot.session, ""), 2)
    known = sorted(known_names(snapshot.session, wanted))
    glance = Glance(only=known, limit=len(known), days=1, totals=False)
    seen = overview(snapshot, glance)
    return None if others else names, seen


def standing(snapshot: Snapshot, by: str) -> Standing:
    """What all counters are sorted by: ``today``, ``total``, or ``change`` as a part of the
    :data:`WEEK` before, which is infinite where that had nothing.

    Raises:
        StoreError: as any query.
    """
    names = counter_names(snapshot.session)
    if by == "total":
        return {name: (total,) for name, total in _totals(snapshot, names).items()}
    number = 1 if by == "today" else 2 * WEEK + 1
    found: dict[str, tuple[float, ...]] = dict.fromkeys(names, ())
    for name, days in _days(snapshot, names, number).items():
        if days is None:
            continue
        totals = [total for _, total in days]
        if by == "today":
            found[name] = (totals[-1],)
            continue
        week, before = sum(totals[WEEK:-1]), sum(totals[:WEEK])
        if before > 0:
            found[name] = (week / before - 1, week)
        elif week > 0 and before == 0:
            found[name] = (inf, week)
    return found


def _page_by_name(snapshot: Snapshot, glance: Glance) -> tuple[list[str], int | None]:
    """The counters after ``after``, at least one more than the page has if there is one, and how
    many there are in all, if one query brings them."""
    if glance.after and not is_name(glance.after):
        raise ValueError("`after` is the name of a counter: `next` of the page before")
    session, pending = snapshot.session, snapshot.pending.cells
    first, *others = islice(names_in_parts(session, "", reverse=glance.reverse), 2)
    if not others:
        names = list(filter(glance.fits, {*first, *pending}))
        page = sorted(filter(glance.is_beyond, names), reverse=glance.reverse)
        return page, len(names)
    found = list(filter(glance.is_beyond, filter(glance.fits, pending)))
    number = 0
    for some in names_in_parts(session, glance.after, reverse=glance.reverse):
        fitting = list(filter(glance.fits, some))
        found += fitting
        number += len(fitting)
        if number > glance.limit:
            break
    return sorted(set(found), reverse=glance.reverse), None


def _page_by_number(known: Standing, glance: Glance) -> tuple[list[str], int]:
    names = list(filter(glance.fits, known))
    have = sorted(name for name in names if known[name])
    have.sort(key=known.__getitem__, reverse=not glance.reverse)
    page = have + sorted(name for name in names if not known[name])
    if not glance.after:
        return page, len(names)
    if glance.after not in names:
        raise ValueError(f"no counter {glance.after!r} is in the list: begin anew, without `after`")
    return page[page.index(glance.after) + 1 :], len(names)


def _totals(snapshot: Snapshot, names: Sequence[str]) -> dict[str, int]:
    found = ledger_totals(snapshot.session, names)
    for name in found.keys() & snapshot.pending.cells.keys():
        found[name] += sum(snapshot.pending.cells[name].values())
    return found


def _days(
    snapshot: Snapshot, names: Sequence[str], number: int
) -> dict[str, list[tuple[date, int]] | None]:
    """The last days of each counter; None where they cannot be told, or none are asked for."""
    found: dict[str, list[tuple[date, int]] | None] = dict.fromkeys(names)
    for some in parts(sorted(names) if number else [], SIZE):
        with snapshot.together(some):
            for name in some:
                with suppress(InexactZone, RolledUp, UnknownZone):
                    zone = snapshot.shape(name).scheme.known_zone()
                    today = buckets.date_at(zone, snapshot.now_ms // 1000)
                    wanted = Selection(name, start=today - timedelta(days=number - 1), end=today)
                    found[name] = series(snapshot, wanted, "day", strict=True).rows
    return found
