"""Totals, as queries on an open session, so that a caller can ask several in one snapshot.

Days are UTC and ranges include both ends; None means from, or to, where the data begins or ends.
Keys are str here and bytes in the table (undecodable bytes become lone surrogates, as in file
names). Each query names the index it goes by and reads no more of the table than the range it is
asked for: the primary key (counter, bucket, …) for whole days, ``by_key`` (counter, counter_key,
bucket) for single keys.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final

from countersink.store.connection import Session
from countersink.store.errors import UnknownCounter

MAX_DAYS: Final = 100_000
"""Longest daily series, in days: a single event dated 9999 would make millions of zeros."""
_KEYS_PER_QUERY: Final = 500
"""Ranges per query: far more than this and MySQL gives up on ranges and reads the index whole."""
_COUNTERS_PER_QUERY: Final = 200
_COUNTER: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_ONE_DAY: Final = timedelta(days=1)

Sums = Iterator[tuple[Any, ...]]


def require_counter(session: Session, counter: str) -> None:
    """Check that something was counted under this name, be it 0.

    Raises:
        UnknownCounter: nothing was.
    """
    found = session.query(
        "SELECT EXISTS (SELECT 1 FROM counter_ledger WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_slot WHERE counter = %s)",
        (_name(counter), _name(counter)),
    )
    if not found[0][0]:
        raise UnknownCounter(f"nothing was ever counted as {counter!r}")


def counter_names(session: Session) -> list[str]:
    """The names of all counters, in order, from the ledger, which is small."""
    return [
        name
        for (name,) in session.query("SELECT DISTINCT counter FROM counter_ledger ORDER BY counter")
    ]


def total(
    session: Session,
    counter: str,
    *,
    keys: Sequence[str] | None = None,
    start: date | None = None,
    end: date | None = None,
) -> int:
    """The sum over all keys, or over ``keys``.

    Raises:
        UnknownCounter: nothing was ever counted under this name.
        ValueError: the range ends before it begins.
    """
    require_counter(session, counter)
    return sum(_int(amount) for (amount,) in _sums(session, "", counter, keys, start, end))


def daily(
    session: Session,
    counter: str,
    *,
    keys: Sequence[str] | None = None,
    start: date | None = None,
    end: date | None = None,
) -> list[tuple[date, int]]:
    """(day, total) for each day of the range in order, 0 where nothing was counted.

    Raises:
        UnknownCounter: nothing was ever counted under this name.
        ValueError: the range ends before it begins, or has more than 100,000 days.
    """
    require_counter(session, counter)
    check_days(start, end)
    if start is None or end is None:
        found = span(session, counter, keys=keys)
        if found is None:
            return []
        start, end = start or found[0], end or found[1]
        if end < start:
            return []
    days = series_days(start, end)
    sums: dict[date, int] = {}
    for bucket, amount in _sums(session, "bucket", counter, keys, start, end):
        day = bucket.date()
        sums[day] = sums.get(day, 0) + _int(amount)
    return [(day, sums.get(day, 0)) for day in days]


def by_key(
    session: Session,
    counter: str,
    *,
    start: date | None = None,
    end: date | None = None,
    limit: int | None = None,
) -> list[tuple[str, int]]:
    """(key, total), largest first, then by key; all of them, or the first ``limit``.

    Raises:
        UnknownCounter: nothing was ever counted under this name.
        ValueError: the range ends before it begins, or ``limit`` is not above 0.
    """
    if limit is not None and limit < 1:
        raise ValueError("ask for 1 key or more")
    require_counter(session, counter)
    where, args = _where(counter, start, end)
    rows = session.query(
        "SELECT counter_key, SUM(amount) AS total FROM counter_slot FORCE INDEX (PRIMARY)"
        f" WHERE {where} GROUP BY counter_key ORDER BY total DESC, counter_key"
        + (" LIMIT %s" if limit else ""),
        (*args, limit) if limit else args,
    )
    return [(key_text(key), _int(amount)) for key, amount in rows]


def many(
    session: Session,
    counter: str,
    keys: Iterable[str],
    *,
    start: date | None = None,
    end: date | None = None,
) -> dict[str, int]:
    """The totals of ``keys``, in their order; 0 for those without counts.

    Raises:
        UnknownCounter: nothing was ever counted under this name.
        ValueError: the range ends before it begins.
    """
    require_counter(session, counter)
    wanted = list(keys)
    sums = {
        bytes(key): _int(amount)
        for key, amount in _sums(session, "counter_key", counter, wanted, start, end)
    }
    return {key: sums.get(key_bytes(key), 0) for key in wanted}


def counters(
    session: Session, *, start: date | None = None, end: date | None = None
) -> dict[str, int]:
    """The totals of all counters, by name.

    Raises:
        ValueError: the range ends before it begins.
    """
    days, args = _where_days(start, end)
    totals = dict.fromkeys(counter_names(session), 0)
    for names in _parts(list(totals), _COUNTERS_PER_QUERY):
        rows = session.query(
            "SELECT counter, SUM(amount) FROM counter_slot FORCE INDEX (PRIMARY)"
            f" WHERE counter IN ({_marks(names)}){days} GROUP BY counter",
            (*names, *args),
        )
        totals.update((name, _int(amount)) for name, amount in rows)
    return totals


def span(
    session: Session, counter: str, *, keys: Sequence[str] | None = None
) -> tuple[date, date] | None:
    """The first and the last day that has rows; None if none has."""
    if keys is None:
        rows = session.query(
            "SELECT MIN(bucket), MAX(bucket) FROM counter_slot WHERE counter = %s",
            (_name(counter),),
        )
    else:
        rows = [
            session.query(
                "SELECT MIN(bucket), MAX(bucket) FROM counter_slot"
                " WHERE counter = %s AND counter_key = %s",
                (_name(counter), key_bytes(key)),
            )[0]
            for key in dict.fromkeys(keys)
        ]
    found = [(first.date(), last.date()) for first, last in rows if first is not None]
    if not found:
        return None
    return min(first for first, _ in found), max(last for _, last in found)


def key_bytes(key: str) -> bytes:
    """A key as the table has it.

    Raises:
        ValueError: it holds a lone surrogate that stands for no byte.
    """
    return key.encode("utf-8", "surrogateescape")


def key_text(key: bytes) -> str:
    """A key of the table as text; :func:`key_bytes` undoes it, for bytes that are no UTF-8 too."""
    return bytes(key).decode("utf-8", "surrogateescape")


def _sums(
    session: Session,
    group: str,
    counter: str,
    keys: Sequence[str] | None,
    start: date | None,
    end: date | None,
) -> Sums:
    """SUM(amount), by the column ``group`` if given; with many keys a group may come twice."""
    where, args = _where(counter, start, end)
    select = f"SELECT {group + ', ' if group else ''}SUM(amount) FROM counter_slot"
    grouped = f" GROUP BY {group}" if group else ""
    if keys is None:
        yield from session.query(f"{select} FORCE INDEX (PRIMARY) WHERE {where}{grouped}", args)
        return
    for part in _parts(sorted({key_bytes(key) for key in keys}), _KEYS_PER_QUERY):
        yield from session.query(
            f"{select} FORCE INDEX (by_key)"
            f" WHERE {where} AND counter_key IN ({_marks(part)}){grouped}",
            (*args, *part),
        )


def _where(counter: str, start: date | None, end: date | None) -> tuple[str, tuple[object, ...]]:
    days, args = _where_days(start, end)
    return f"counter = %s{days}", (_name(counter), *args)


def _where_days(start: date | None, end: date | None) -> tuple[str, tuple[object, ...]]:
    check_days(start, end)
    where, args = "", []
    if start is not None:
        where += " AND bucket >= %s"
        args.append(datetime.combine(start, time.min))
    if end is not None and end < date.max:  # the day after the last one has no number
        where += " AND bucket < %s"
        args.append(datetime.combine(end + _ONE_DAY, time.min))
    return where, tuple(args)


def check_days(start: date | None, end: date | None) -> None:
    """Refuse what is no range of days.

    Raises:
        TypeError: not a ``date`` (a ``datetime`` is none).
        ValueError: it ends before it begins.
    """
    for day in (start, end):
        if isinstance(day, datetime) or not isinstance(day, date | None):
            raise TypeError(f"a range is given in days, as datetime.date, not {type(day).__name__}")
    if start is not None and end is not None and end < start:
        raise ValueError(f"the range ends ({end}) before it begins ({start})")


def series_days(start: date, end: date) -> list[date]:
    """The days of a series in order, both ends included.

    Raises:
        ValueError: there are more than :data:`MAX_DAYS`.
    """
    count = (end - start).days + 1
    if count > MAX_DAYS:
        raise ValueError(
            f"a daily series from {start} to {end} has {count:,} days;"
            f" give a range of at most {MAX_DAYS:,}"
        )
    return [start + index * _ONE_DAY for index in range(count)]


def chosen_keys(key: str | None, keys: Sequence[str] | None) -> Sequence[str] | None:
    """The keys asked for, by one name or several; ``None`` for all.

    Raises:
        ValueError: both were given. TypeError: ``keys`` is a single text.
    """
    if key is not None and keys is not None:
        raise ValueError("give key or keys, not both")
    if isinstance(keys, str):
        raise TypeError("keys is a sequence of str; for a single one say key=")
    return keys if key is None else [key]


def _name(counter: str) -> str:
    """``counter``; '' for what cannot be a counter's name, which is as unknown.

    The column would take 'c ' for 'c': it is compared with blanks added at the end.
    """
    return counter if _COUNTER.fullmatch(counter) else ""


def _int(amount: Any) -> int:
    return 0 if amount is None else int(amount)


def _marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))


def _parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
