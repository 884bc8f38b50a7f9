"""The table ``dead_row``: insert, list, count, delete, prune; how many rows of a reason and counter
are kept (``MOST_ROWS``, ``MOST_BYTES``, ``MOST_COUNTERS``); selection by name (REF), reason or all;
longest payload and detail; members of its JSON; retrying is in ``dead_retry.py``.

A dead row is written in the transaction that writes its entry's guard, so it is there exactly once
however often the entry comes back. (entry_id, position) names it; position -1 stands for a whole
entry. A row for which there is no room is added to a number in ``dead_group``, in the same
transaction.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final

from countersink.runtime.dead_letter import DeadReason
from countersink.runtime.times import iso, iso_ms
from countersink.store.connection import Session, rerun, rerun_transaction
from countersink.store.sql import marks, parts

MAX_PAYLOAD: Final = 4 * 1024 * 1024
"""Bytes of a payload that are kept."""
MAX_DETAIL: Final = 1000
"""Characters of a detail that are kept."""

MOST_ROWS: Final = 10_000
"""Dead rows of a reason and counter, beyond which further ones are only counted."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""The same in bytes of their payloads."""
MOST_COUNTERS: Final = 20
"""Counters of a reason, each with room of its own; those of all others share that of no counter."""
UNBOUNDED: Final = frozenset((DeadReason.NEWER_VERSION, DeadReason.NO_SKETCHES, DeadReason.TOO_OLD))
"""Reasons of which every row is kept: an operator mends the cause and retries them, and only who
writes to Redis can bring them about."""

_COLUMNS: Final = (
    "entry_id, position, stream, at, reason, detail, payload, truncated, created, counter"
)
_VALUES: Final = "(%s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(3), %s, %s)"
_INSERT: Final = f"INSERT INTO dead_row ({_COLUMNS}, size) VALUES "
_INSERT_GROUP: Final = "INSERT INTO dead_group (reason, counter, not_kept, last_at) VALUES "
_KEEP: Final = " ON DUPLICATE KEY UPDATE reason = reason"
_STATEMENT_BYTES: Final = 12 * 1024 * 1024
"""Of a statement that writes dead rows, at most."""
_ROWS_PER_STATEMENT: Final = 200
_ROWS_PER_PAGE: Final = 500
_PRUNED_AT_ONCE: Final = 100  # of up to 4 MiB each, which go to the binary log as well
_BIGINT: Final = (-(2**63), 2**63 - 1)


Key = tuple[bytes, int]
"""(entry id, position): the primary key of a dead row."""
Group = tuple[str, str]
"""(reason, counter): the primary key of ``dead_group``."""


@dataclass(frozen=True, slots=True)
class DeadRow:
    """One row, or one whole entry, that could not be counted.

    Attributes:
        entry_id: the entry's 16 bytes.
        position: the row's place in the entry from 0; -1 for the whole entry.
        stream: key of the stream it came from.
        at: Unix ms of the entry's first attempt to be sent.
        reason: the code of a :class:`~countersink.runtime.dead_letter.DeadReason`, or one that a
            newer version has written; ASCII, at most 64 characters.
        detail: a sentence for people.
        payload: the row as a JSON array, or the entry's ``rows`` field.
        truncated: the payload was cut off, so it cannot be retried.
        created: naive UTC; None for one that was not read from the table.
        counter: a valid name; empty if the row has none, or if many counters share its room.
    """

    entry_id: bytes
    position: int
    stream: str
    at: int
    reason: str
    detail: str
    payload: bytes
    truncated: bool = False
    created: datetime | None = None
    counter: str = ""

    @property
    def ref(self) -> str:
        """Its name for people, ``<hex id>:<position>``; the id alone names all of the entry's."""
        return f"{self.entry_id.hex()}:{self.position}"

    @property
    def primary_key(self) -> Key:
        """The primary key of its row."""
        return self.entry_id, self.position


def record(session: Session, rows: Iterable[DeadRow]) -> int:
    """Store the dead rows for which there is room, and count the others, in the open transaction.

    Whoever does holds the first row of each reason's ``dead_group`` from then on until the
    transaction ends, so that no two take the same room. It is the last thing to do in a
    transaction: others wait.

    Args:
        session: at READ COMMITTED, so that it sees what others have stored before.
        rows: that are not in the table.

    Returns:
        How many were only counted.
    """
    given: dict[Group, list[DeadRow]] = {}
    kept: list[DeadRow] = []
    for row in rows:
        if row.reason in UNBOUNDED:
            kept.append(row)
        else:
            given.setdefault((_code(row.reason), row.counter), []).append(row)
    over = _bounded(session, given, kept) if given else 0
    insert(session, kept)
    return over


def _bounded(session: Session, given: Mapping[Group, list[DeadRow]], kept: list[DeadRow]) -> int:
    """Add those rows to ``kept`` for which there is room, and count the others; how many."""
    new, groups = _placed(session, given)
    used = _used(session, sorted(groups))
    over: Counter[Group] = Counter(dict.fromkeys(new, 0))
    for group, some in groups.items():
        number, size = used.get(group, (0, 0))
        for row in some:
            length = min(len(row.payload), MAX_PAYLOAD)
            if number < MOST_ROWS and size + length <= MOST_BYTES:
                kept.append(row)
                number, size = number + 1, size + length
            else:
                over[group] += 1
    if over:
        _add_not_kept(session, over)
    return over.total()


def _placed(
    session: Session, given: Mapping[Group, list[DeadRow]]
) -> tuple[list[Group], dict[Group, list[DeadRow]]]:
    """The rows by the group whose room they take, locked; and which groups are new."""
    reasons = sorted({reason for reason, _ in given})
    values = ", ".join(["(%s, '', 0, UTC_TIMESTAMP(3))"] * len(reasons))
    session.execute(f"{_INSERT_GROUP}{values}{_KEEP}", reasons)
    named: dict[str, set[str]] = {reason: set() for reason in reasons}
    for reason, counter in session.query(
        f"SELECT reason, counter FROM dead_group WHERE reason IN ({marks(reasons)})", reasons
    ):
        named[reason].add(counter)
    new: list[Group] = []
    groups: dict[Group, list[DeadRow]] = {}
    for (reason, counter), rows in given.items():
        known = named[reason]
        if counter not in known and len(known) > MOST_COUNTERS:  # '' is one of them
            shared = groups.setdefault((reason, ""), [])
            shared += [replace(row, counter="") for row in rows]
            continue
        if counter not in known:
            known.add(counter)
            new.append((reason, counter))
        groups.setdefault((reason, counter), []).extend(rows)
    return new, groups


def _used(session: Session, groups: Sequence[Group]) -> dict[Group, tuple[int, int]]:
    """How many dead rows of some groups there are, and the bytes of their payloads."""
    where = " OR ".join(["(reason = %s AND counter = %s)"] * len(groups))
    found = session.query(
        "SELECT reason, counter, COUNT(*), SUM(size) FROM dead_row FORCE INDEX (by_group)"
        f" WHERE {where} GROUP BY reason, counter",
        [value for group in groups for value in group],
    )
    return {(reason, counter): (int(number), int(size)) for reason, counter, number, size in found}


def _add_not_kept(session: Session, numbers: Mapping[Group, int]) -> None:
    values = ", ".join(["(%s, %s, %s, UTC_TIMESTAMP(3))"] * len(numbers))
    clause = session.dialect.upsert_add("dead_group", "not_kept")
    session.execute(
        f"{_INSERT_GROUP}{values}{clause}, last_at = UTC_TIMESTAMP(3)",
        [value for group, number in sorted(numbers.items()) for value in (*group, number)],
    )


def insert(session: Session, rows: Iterable[DeadRow]) -> None:
    """Store dead rows in the open transaction, whether there is room or not; those that are there
    already stay as they are.
    """
    ordered = sorted(rows, key=attrgetter("primary_key"))
    batch: list[object] = []
    count = size = 0
    for row in ordered:
        # The driver may write two characters for a byte.
        length = 2 * min(len(row.payload), MAX_PAYLOAD) + 8 * MAX_DETAIL
        if batch and (count == _ROWS_PER_STATEMENT or size + length > _STATEMENT_BYTES):
            _send(session, batch, count)
            batch, count, size = [], 0, 0
        batch += _values(row)
        count += 1
        size += length
    if batch:
        _send(session, batch, count)


def list_rows(
    session: Session,
    *,
    reason: str | None = None,
    refs: Sequence[str] | None = None,
    limit: int = 100,
) -> list[DeadRow]:
    """Dead rows, newest first: all, those with a reason, or those named by :func:`parse_ref`.

    Raises:
        ValueError: not a ref.
    """
    if refs is not None:
        named: dict[Key, DeadRow] = {}
        for ref in refs:
            for row in _read(session, *_where_ref(ref), limit=limit):
                named[row.primary_key] = row
        return [row for row in named.values() if reason in (None, row.reason)][:limit]
    if reason is not None:
        return _read(session, "reason = %s", (reason,), limit=limit)
    return _read(session, "TRUE", (), limit=limit)


def count(session: Session, *, up_to: datetime | None = None) -> dict[str, int]:
    """How many dead rows there are, by reason; with ``up_to`` of those created by then (UTC)."""
    return counted(session, up_to=up_to)[0]


def counted(
    session: Session, *, up_to: datetime | None = None
) -> tuple[dict[str, int], datetime | None]:
    """The same, and when the newest of them was created, or of those that were not kept the last
    one came.
    """
    ((last,),) = session.query("SELECT MAX(last_at) FROM dead_group WHERE not_kept > 0")
    where, args = ("TRUE", ()) if up_to is None else ("created <= %s", (up_to,))
    rows = session.query(
        f"SELECT reason, COUNT(*), MAX(created) FROM dead_row WHERE {where}"
        " GROUP BY reason ORDER BY reason",
        args,
    )
    times = [created for _, _, created in rows] + [last] * (last is not None)
    newest = max(times, default=None)
    return {reason: int(number) for reason, number, _ in rows}, newest


def not_kept(session: Session) -> dict[Group, int]:
    """How many dead rows were only counted, by reason and counter."""
    found = session.query(
        "SELECT reason, counter, not_kept FROM dead_group WHERE not_kept > 0"
        " ORDER BY reason, counter"
    )
    return {(reason, counter): int(number) for reason, counter, number in found}


def not_kept_by_reason(session: Session) -> dict[str, int]:
    """The same by reason."""
    found: Counter[str] = Counter()
    for (reason, _), number in not_kept(session).items():
        found[reason] += number
    return dict(found)


def drop(
    session: Session,
    *,
    reason: str | None = None,
    refs: Sequence[str] | None = None,
    up_to: datetime | None = None,
) -> int:
    """Delete dead rows for good: all, those with a reason, or those named. Returns how many.

    But for those named, the numbers of those that were not kept are forgotten as well. ``up_to`` is
    as for :func:`pages`.

    Raises:
        ValueError: not a ref.
    """
    dropped = 0
    for page in pages(session, reason=reason, refs=refs, up_to=up_to):
        dropped += rerun_transaction(session, partial(_drop_page, session, page))
    if refs is None:
        where = "TRUE" if reason is None else "reason = %s"
        args: list[object] = [] if reason is None else [reason]
        if up_to is not None:
            where, args = f"{where} AND last_at <= %s", [*args, up_to]
        rerun(partial(session.execute, f"DELETE FROM dead_group WHERE {where}", args))
    return dropped


def _drop_page(session: Session, page: Sequence[Key]) -> int:
    return sum(delete(session, key) for key in page)


def prune(
    session: Session,
    days: float,
    *,
    stop: Callable[[], bool] = lambda: False,
    rest: Callable[[], object] = lambda: None,
) -> tuple[int, bool]:
    """Delete dead rows that were set aside more than ``days`` ago, and forget numbers of those that
    were not kept for as long; 0 days: none. How many rows, and whether these were all.

    Raises:
        StoreError: as any statement.
    """
    seconds, deleted = round(days * 86_400), 0
    before = "UTC_TIMESTAMP(3) - INTERVAL %s SECOND"
    while seconds:
        # Looked up first: a DELETE of a range waits for whoever writes the row behind it.
        found = session.query(
            f"SELECT entry_id, position FROM dead_row WHERE created < {before}"
            " ORDER BY created LIMIT %s",
            (seconds, _PRUNED_AT_ONCE),
        )
        page = sorted((bytes(entry_id), int(position)) for entry_id, position in found)
        deleted += rerun_transaction(session, partial(_drop_page, session, page))
        if len(page) < _PRUNED_AT_ONCE:
            break
        if stop():
            return deleted, False
        rest()
    over = "not_kept = 0" + (f" OR last_at < {before}" if seconds else "")
    ages = (seconds,) if seconds else ()
    # Empty groups go whatever their age: other counters may have their room.
    for group in session.query(
        f"SELECT reason, counter FROM dead_group WHERE ({over}) AND NOT EXISTS (SELECT 1"
        " FROM dead_row WHERE dead_row.reason = dead_group.reason"
        " AND dead_row.counter = dead_group.counter)",
        ages,
    ):
        delete_one = f"DELETE FROM dead_group WHERE reason = %s AND counter = %s AND ({over})"
        rerun(partial(session.execute, delete_one, (*group, *ages)))
    return deleted, True


def delete(session: Session, key: Key) -> int:
    """Delete one dead row in the open transaction; 0 if somebody else did."""
    return session.execute("DELETE FROM dead_row WHERE entry_id = %s AND position = %s", key)


def lock(session: Session, key: Key) -> DeadRow | None:
    """Read one dead row and lock it for the open transaction; None if it is gone."""
    rows = session.query(
        f"SELECT {_COLUMNS} FROM dead_row WHERE entry_id = %s AND position = %s FOR UPDATE", key
    )
    return _row(rows[0]) if rows else None


def pages(
    session: Session,
    *,
    reason: str | None = None,
    refs: Sequence[str] | None = None,
    but: Sequence[str] = (),
    up_to: datetime | None = None,
    size: int = _ROWS_PER_PAGE,
) -> Iterator[Sequence[Key]]:
    """The keys of the chosen dead rows in order, page by page; each is met once.

    Without a reason or refs, ``but`` are reasons to leave out. Without refs, ``up_to`` leaves out
    what was created after it (UTC).
    """
    if refs is not None:
        keys = sorted({key for ref in refs for key in _named(session, ref, reason)})
        yield from parts(keys, size)
        return
    chosen = _chosen(reason, but, up_to)
    after: Key | None = None
    while True:
        page = _next_keys(session, after, chosen, size)
        if not page:
            return
        yield page
        after = page[-1]


def _chosen(
    reason: str | None, but: Sequence[str], up_to: datetime | None
) -> tuple[str, tuple[object, ...]]:
    """More conditions, and their values."""
    reasons = tuple(but) if reason is None else (reason,)
    where = "".join(f" AND reason {'<>' if reason is None else '='} %s" for _ in reasons)
    if up_to is None:
        return where, reasons
    return f"{where} AND created <= %s", (*reasons, up_to)


def _next_keys(
    session: Session, after: Key | None, chosen: tuple[str, tuple[object, ...]], size: int
) -> list[Key]:
    """The first ``size`` keys after one, by ranges of the primary key.

    Not by a row constructor, (a, b) > (x, y), which would read the whole table.
    """
    select = "SELECT entry_id, position FROM dead_row WHERE "
    where, args = chosen
    tail = f"{where} ORDER BY entry_id, position LIMIT %s"
    rest = (*args, size)
    found: list[tuple[Any, ...]] = []
    if after is not None:
        found += session.query(f"{select}entry_id = %s AND position > %s{tail}", (*after, *rest))
    if len(found) < size:
        beyond = b"" if after is None else after[0]
        found += session.query(f"{select}entry_id > %s{tail}", (beyond, *rest))
    return [(bytes(entry_id), int(position)) for entry_id, position in found[:size]]


def parse_ref(ref: str) -> tuple[bytes, int | None]:
    """``<32 hex digits>`` (all dead rows of that entry) or ``<32 hex digits>:<position>``.

    Raises:
        ValueError: neither.
    """
    match = re.fullmatch(r"([0-9a-fA-F]{32})(?::(-1|\d{1,9}))?", ref)
    if match is None:
        raise ValueError(f"{ref!r} names no dead row: write 32 hex digits, or those and :POSITION")
    return bytes.fromhex(match[1]), None if match[2] is None else int(match[2])


def _named(session: Session, ref: str, reason: str | None) -> list[Key]:
    where, args = _where_ref(ref)
    found = session.query(f"SELECT entry_id, position, reason FROM dead_row WHERE {where}", args)
    return [(bytes(name), int(place)) for name, place, why in found if reason in (None, why)]


def _where_ref(ref: str) -> tuple[str, tuple[object, ...]]:
    entry_id, position = parse_ref(ref)
    if position is None:
        return "entry_id = %s", (entry_id,)
    return "entry_id = %s AND position = %s", (entry_id, position)


def _read(session: Session, where: str, args: Sequence[object], *, limit: int) -> list[DeadRow]:
    rows = session.query(
        f"SELECT {_COLUMNS} FROM dead_row WHERE {where}"
        " ORDER BY created DESC, entry_id DESC, position DESC LIMIT %s",
        (*args, limit),
    )
    return [_row(row) for row in rows]


def _row(columns: Sequence[Any]) -> DeadRow:
    row = DeadRow(*columns)
    return replace(row, truncated=bool(row.truncated))


def _values(row: DeadRow) -> tuple[object, ...]:
    """Values that no server refuses: a dead row that cannot be stored would hold up its batch."""
    low, high = _BIGINT
    return (
        row.entry_id,
        row.position,
        _text(row.stream, 255),
        min(max(row.at, low), high),
        _code(row.reason),
        _text(row.detail, MAX_DETAIL),
        row.payload[:MAX_PAYLOAD],
        row.truncated or len(row.payload) > MAX_PAYLOAD,
        row.counter,
        min(len(row.payload), MAX_PAYLOAD),
    )


def _code(reason: str) -> str:
    return reason.encode("ascii", "replace").decode()[:64]


def _text(text: str, length: int) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:length]


def _send(session: Session, batch: list[object], count: int) -> None:
    session.execute(_INSERT + ", ".join([_VALUES] * count) + _KEEP, batch)


def document(row: DeadRow) -> dict[str, object]:
    """Its members, in order; times are ISO 8601 in UTC, the payload is text.

    Bytes of the payload that are no UTF-8 are shown as ``\\xNN``.
    """
    return {
        "ref": row.ref,
        "reason": row.reason,
        "detail": row.detail,
        "stream": row.stream,
        "at": iso_ms(row.at),
        "created": iso(row.created),
        "payload": row.payload.decode("utf-8", "backslashreplace"),
        "truncated": row.truncated,
    }
