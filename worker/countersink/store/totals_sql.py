"""Totals, as questions on an open session, so that a caller can ask several in one snapshot.

Each sums the buckets and the months of a counter, so it needs a snapshot (or nobody who moves rows
meanwhile). Ranges are local days and include both ends; None means from, or to, where the data
begins or ends. Without ``time_zone`` days are those of the zone a bucket was counted in. An answer
is exact, or an error (never for buckets that are days, shown as such):
:mod:`countersink.store.views`. What retention has rolled up is in :mod:`countersink.store.rollups`.
Keys are str here and bytes in the table (undecodable bytes become lone surrogates, as in file
names).

Every function raises, beside what it names:

    UnknownCounter: nothing was ever counted under this name, nor did anybody make it.
    ValueError: the range ends before it begins, or there is no such time zone.
    InexactZone: the buckets do not add up to days of ``time_zone``, or, where they are hours, of
        the zone they were counted in, which was then not whole hours from UTC.
    Refused: the machine does not know the counter's time zone, and the days of it are asked for.
    RolledUp: the range takes a part of days that are rolled up to a month.

``known`` says that the caller has heard of the counter elsewhere, such as in a queue, so that it is
no UnknownCounter. Series are in :mod:`countersink.store.series`.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import Any, Final

from countersink.store.connection import Session
from countersink.store.groups import SIZE, grouped
from countersink.store.key_match import ANY, KeyMatch
from countersink.store.keys import key_bytes
from countersink.store.periods import month_ends
from countersink.store.policies import DEFAULT
from countersink.store.ranges import check_days, condition
from countersink.store.shapes import Shape, counter_names, known_shape, shape, shaped_names
from countersink.store.sums import Scope, edges, marks, month_edges, parts, ranked, sums

_COUNTERS_PER_QUERY: Final = 500
_BESIDE_THE_LEDGER: Final = (
    "SELECT counter FROM app_counter UNION SELECT counter FROM tracked_table"
)


def require_counter(session: Session, counter: str) -> None:
    """Check that the counter was made, or something was counted, be it 0.

    Raises:
        UnknownCounter: neither.
    """
    known_shape(session, counter)


def total(
    session: Session,
    counter: str,
    *,
    keys: Sequence[str] | None = None,
    start: date | None = None,
    end: date | None = None,
    time_zone: str | None = None,
    known: bool = False,
) -> int:
    """The sum over all keys, or over ``keys``."""
    scope = _scope(session, counter, start, end, time_zone, known)
    return sum(_int(amount) for (amount,) in sums(session, scope, keys))


def by_key(
    session: Session,
    counter: str,
    *,
    start: date | None = None,
    end: date | None = None,
    time_zone: str | None = None,
    limit: int | None = None,
    match: KeyMatch = ANY,
    known: bool = False,
) -> list[tuple[str, int]]:
    """(key, total) of the keys that match, largest first, then by key; all of them, or the first
    ``limit``.

    Raises:
        ValueError: also where ``limit`` is not above 0.
    """
    if limit is not None and limit < 1:
        raise ValueError("ask for 1 key or more")
    scope = _scope(session, counter, start, end, time_zone, known)
    return ranked(session, scope, limit, match)


def many(
    session: Session,
    counter: str,
    keys: Iterable[str],
    *,
    start: date | None = None,
    end: date | None = None,
    time_zone: str | None = None,
    known: bool = False,
) -> dict[str, int]:
    """The totals of ``keys``, in their order; 0 for those without counts."""
    scope = _scope(session, counter, start, end, time_zone, known)
    wanted = list(keys)
    found: dict[bytes, int] = {}
    for key, amount in sums(session, scope, wanted, "counter_key"):
        found[bytes(key)] = found.get(bytes(key), 0) + int(amount)
    return {key: found.get(key_bytes(key), 0) for key in wanted}


def counters(
    session: Session,
    *,
    start: date | None = None,
    end: date | None = None,
    time_zone: str | None = None,
    known: Iterable[str] = (),
    visible: Callable[[str], bool] = lambda name: True,
) -> dict[str, int]:
    """The totals of all counters that are visible, and of those the caller knows of, by name."""
    check_days(start, end)
    names = filter(visible, {*counter_names(session), *known})
    totals = dict.fromkeys(sorted(names), 0)
    shaped = shaped_names(session)
    everything = start is None and end is None
    # All that was ever counted adds up whatever the buckets are, and so do UTC days.
    alike = [name for name in totals if everything or name not in shaped]
    if everything:
        totals |= totals_of(session, alike)
    elif alike:
        plain = Shape(alike[0], True, (DEFAULT,), None)
        where, args = condition(Scope.of(plain, plain.view(time_zone), start, end).ranges)
        totals |= _by_counter(session, "counter_slot", alike, where, args)
    for some in parts(sorted(totals.keys() - set(alike)), SIZE):
        with grouped(session, some):
            for name in some:
                totals[name] = total(
                    session, name, start=start, end=end, time_zone=time_zone, known=True
                )
    return totals


def totals_of(session: Session, names: Sequence[str]) -> dict[str, int]:
    """All that was ever counted as each of ``names``, in their order; 0 for unknown ones."""
    totals = dict.fromkeys(names, 0)
    for table in ("counter_slot", "counter_month"):
        for name, amount in _by_counter(session, table, names).items():
            totals[name] += amount
    return totals


def ledger_totals(session: Session, names: Sequence[str]) -> dict[str, int]:
    """What :func:`totals_of` gives, by the ledger: a row per slot instead of all rows.

    What applications and triggers have counted comes into it with compaction only, so the rows of
    their counters are added up.
    """
    beside = {name for (name,) in session.query(_BESIDE_THE_LEDGER)}
    totals = dict.fromkeys(names, 0)
    totals |= totals_of(session, [name for name in names if name in beside])
    plain = [name for name in names if name not in beside]
    return totals | _by_counter(session, "counter_ledger", plain)


def span(
    session: Session,
    counter: str,
    *,
    keys: Sequence[str] | None = None,
    time_zone: str | None = None,
) -> tuple[date, date] | None:
    """The first and the last day that has rows; None if none has, or the counter is unknown.

    What is in months counts from the first day of the first to the last rolled up day of the last.

    Raises:
        InexactZone: the first or the last bucket lies in more than one day of ``time_zone``.
        RolledUp: there are months, and they are not those of ``time_zone``.
    """
    own = shape(session, counter)
    view = own.view(time_zone)
    days: list[date] = []
    for label in edges(session, own, view, keys):
        if view.day(label) != view.last_day(label):
            view.require_days([view.last_day(label)])
        days += view.day(label), view.last_day(label)
    if own.rolled is not None and (months := month_edges(session, own, keys)):
        own.rolled.require_own(view)
        days += min(months), min(month_ends(max(months)), own.rolled.last_day)
    return (min(days), max(days)) if days else None


def _scope(
    session: Session,
    counter: str,
    start: date | None,
    end: date | None,
    time_zone: str | None,
    known: bool,
) -> Scope:
    check_days(start, end)
    own = shape(session, counter) if known else known_shape(session, counter)
    return Scope.of(own, own.view(time_zone), start, end)


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


def _int(amount: Any) -> int:
    return 0 if amount is None else int(amount)
