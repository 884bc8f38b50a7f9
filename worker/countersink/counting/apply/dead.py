"""Stores, lists, counts, deletes and prunes dead letters. See ``dead_retry.py`` for retries.

A dead letter is inserted in the transaction that inserts its entry's guard. So it exists exactly
once, however often the entry is delivered. Each reason and counter has room for ``MOST_ROWS``.
Further ones are only counted (``dead_group``), except those with the reasons in ``UNBOUNDED``.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final

from countersink.database.session import Session, rerun, rerun_transaction
from countersink.database.sql import marks, parts
from countersink.runtime.dead_letter import WHOLE_ENTRY, Bad, DeadReason
from countersink.runtime.texts import iso, iso_ms

MAX_PAYLOAD: Final = 4 * 1024 * 1024
MAX_DETAIL: Final = 1000
"""Maximum bytes of a payload, and characters of a detail, that are stored; the rest is cut off."""
MOST_ROWS: Final = 10_000
MOST_BYTES: Final = 64 * 1024 * 1024
"""Maximum number of dead letters, and bytes of payloads, stored for each reason and counter."""
MOST_COUNTERS: Final = 20
"""For each reason, so many counters have their own room; all others share the room of ``""``."""
UNBOUNDED: Final = frozenset((DeadReason.NEWER_VERSION, DeadReason.NO_SKETCHES, DeadReason.TOO_OLD))
"""Reasons without limit. Only writers to Redis cause them; operators retry such dead letters."""

_COLUMNS: Final = (
    "entry_id, position, stream, at, reason, detail, payload, truncated, created, counter"
)
_VALUES: Final = "(%s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(3), %s, %s)"
_INSERT: Final = f"INSERT INTO dead_row ({_COLUMNS}, size) VALUES "
_INSERT_GROUP: Final = "INSERT INTO dead_group (reason, counter, not_kept, last_at) VALUES "
_THIS: Final = "entry_id = %s AND position = %s"
_KEEP: Final = " ON DUPLICATE KEY UPDATE reason = reason"
_SMALL_PAYLOAD: Final = 32 * 1024  # bytes; an INSERT of several stays below 8 MB in hex
_ROWS_PER_STATEMENT: Final = 100
_ROWS_PER_PAGE: Final = 500
_PRUNED_AT_ONCE: Final = 100  # of up to 4 MiB each, which go to the binary log as well

Key = tuple[bytes, int]
"""(entry id, position): the primary key of a dead letter."""


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A dead letter: a row, or a whole entry, that could not be counted.

    Attributes:
        entry_id: the entry's id, 16 bytes.
        position: position of the row in the entry, from 0; -1 for the whole entry.
        stream: the stream's key in Redis.
        at: time of the first attempt to send the entry, in Unix ms.
        reason: code of a ``DeadReason``, maybe of a newer version; ASCII, at most 64 characters.
        detail: an explanation for people.
        payload: the row's JSON; of a whole entry its field ``rows``, or JSON of all its fields if
            the fault is in another field.
        truncated: True if the payload was cut off; then it cannot be retried.
        created: time of insertion, naive, in UTC; None if the row was not read from the table.
        counter: the row's counter; ``""`` for a whole entry, a bad name, or if the counter has no
            room of its own (see ``MOST_COUNTERS``).
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

    @staticmethod
    def from_bad(name: bytes, stream: str, at: int, bad: Bad) -> "DeadRow":
        """Return the dead letter for a bad row or entry. ``name`` is the id of the entry."""
        return DeadRow(
            name, bad.position, stream, at, bad.reason, bad.detail, bad.payload, counter=bad.counter
        )

    @property
    def ref(self) -> str:
        """The name by which users choose this dead letter: ``<hex id>:<position>``."""
        return f"{self.entry_id.hex()}:{self.position}"

    @property
    def primary_key(self) -> Key:
        return self.entry_id, self.position


def record(session: Session, rows: Iterable[DeadRow]) -> int:
    """Store dead letters, and return the number of those that were not stored for lack of room.
    These are only counted, in ``dead_group``. Call this last in a READ COMMITTED transaction: it
    locks rows of ``dead_group``, and other transactions wait for these locks."""
    given: dict[str, list[DeadRow]] = {}
    for row in rows:
        given.setdefault(_code(row.reason), []).append(row)
    kept: list[DeadRow] = []
    for reason, some in sorted(given.items()):
        kept += some if reason in UNBOUNDED else _with_room(session, reason, some)
    insert(session, kept)
    return sum(map(len, given.values())) - len(kept)


def _with_room(session: Session, reason: str, rows: Iterable[DeadRow]) -> list[DeadRow]:
    """Return those dead letters of a reason that have room. Count the others in ``dead_group``."""
    session.execute(f"{_INSERT_GROUP}(%s, '', 0, UTC_TIMESTAMP(3)){_KEEP}", (reason,))
    found = session.query("SELECT counter FROM dead_group WHERE reason = %s", (reason,))
    known = {counter for (counter,) in found}
    groups: dict[str, list[DeadRow]] = {}
    not_kept: Counter[str] = Counter()
    for row in rows:
        named = row
        if row.counter not in known:
            if len(known) > MOST_COUNTERS:  # '' is one of them
                named = replace(row, counter="")
            else:
                known.add(row.counter)
                not_kept[row.counter] = 0
        groups.setdefault(named.counter, []).append(named)
    used = session.query(
        "SELECT counter, COUNT(*), SUM(size) FROM dead_row FORCE INDEX (by_group)"
        f" WHERE reason = %s AND counter IN ({marks([*groups])}) GROUP BY counter",
        (reason, *groups),
    )
    room = {counter: (int(number), int(size)) for counter, number, size in used}
    kept: list[DeadRow] = []
    for counter, some in groups.items():
        number, size = room.get(counter, (0, 0))
        for row in some:
            length = min(len(row.payload), MAX_PAYLOAD)
            if number < MOST_ROWS and size + length <= MOST_BYTES:
                kept.append(row)
                number, size = number + 1, size + length
            else:
                not_kept[counter] += 1
    clause = session.dialect.upsert_add("dead_group", "not_kept")
    for counter, number in sorted(not_kept.items()):
        session.execute(
            f"{_INSERT_GROUP}(%s, %s, %s, UTC_TIMESTAMP(3)){clause}, last_at = UTC_TIMESTAMP(3)",
            (reason, counter, number),
        )
    return kept


def insert(session: Session, rows: Iterable[DeadRow]) -> None:
    """Store dead letters in the open transaction, without a limit. Existing ones stay unchanged."""
    small: list[tuple[object, ...]] = []
    large: list[tuple[object, ...]] = []
    for row in sorted(rows, key=attrgetter("primary_key")):
        (small if len(row.payload) <= _SMALL_PAYLOAD else large).append(_values(row))
    for part in (*parts(small, _ROWS_PER_STATEMENT), *parts(large, 1)):
        values = ", ".join([_VALUES] * len(part))
        session.execute(f"{_INSERT}{values}{_KEEP}", [value for row in part for value in row])


def list_rows(
    session: Session,
    *,
    reason: str | None = None,
    refs: Sequence[str] | None = None,
    limit: int = 100,
) -> list[DeadRow]:
    """Return up to ``limit`` dead letters, newest first: those with ``reason`` (if given) that
    ``refs`` name (if given). Raises ValueError if a text in ``refs`` is not a ref."""
    if refs is None:
        return _read(session, *_where(("reason = %s", reason)), limit)
    keys = _named(session, refs, reason)
    rows = [row for key in keys for row in _read(session, _THIS, key, 1)]
    return sorted(rows, key=attrgetter("created", "primary_key"), reverse=True)[:limit]


def count(session: Session, *, up_to: datetime | None = None) -> dict[str, int]:
    """Return the number of stored dead letters by reason, of those created by ``up_to`` (UTC)."""
    return counted(session, up_to=up_to)[0]


def counted(
    session: Session, *, up_to: datetime | None = None
) -> tuple[dict[str, int], datetime | None]:
    """Return the result of :func:`count` (numbers by reason), and a time (UTC): of the newest of
    these dead letters, or of the last one without room (at any time, whatever ``up_to`` is); the
    later of the two times. It is None if there is neither."""
    ((last,),) = session.query("SELECT MAX(last_at) FROM dead_group WHERE not_kept > 0")
    where, args = _where(("created <= %s", up_to))
    rows = session.query(
        f"SELECT reason, COUNT(*), MAX(created) FROM dead_row WHERE {where}"
        " GROUP BY reason ORDER BY reason",
        args,
    )
    times = [created for _, _, created in rows] + [last] * (last is not None)
    return {reason: int(number) for reason, number, _ in rows}, max(times, default=None)


def not_kept(session: Session) -> dict[tuple[str, str], int]:
    """Return the number of dead letters for which there was no room, by (reason, counter)."""
    found = session.query(
        "SELECT reason, counter, not_kept FROM dead_group WHERE not_kept > 0"
        " ORDER BY reason, counter"
    )
    return {(reason, counter): int(number) for reason, counter, number in found}


def not_kept_by_reason(session: Session) -> dict[str, int]:
    """Return the number of dead letters for which there was no room, by reason."""
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
    """Delete dead letters, and return their number: those that ``refs`` name; or, if it is None,
    all created by ``up_to`` (UTC; None: at any time). Those with another ``reason`` stay, if it is
    given. Without ``refs``, also delete the counts of dead letters without room (``dead_group``)
    with this reason that last grew by ``up_to``. Raises ValueError if a text is not a ref."""
    dropped = 0
    for page in pages(session, reason=reason, refs=refs, up_to=up_to):
        dropped += rerun_transaction(session, partial(_drop_page, session, page))
    if refs is None:
        where, args = _where(("reason = %s", reason), ("last_at <= %s", up_to))
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
    """Delete dead letters older than ``days`` days. Then delete counts of those without room that
    have not grown for so long, if no dead letter of their reason and counter is left. 0 keeps all.
    Return the number of deleted dead letters, and False if ``stop`` ended this early, else True.
    ``stop`` and ``rest`` are called between transactions; ``rest`` lets others work."""
    seconds, deleted = round(days * 86_400), 0
    before = "UTC_TIMESTAMP(3) - INTERVAL %s SECOND"
    while seconds:
        # A SELECT first: a DELETE of a range waits for transactions that insert the next row.
        oldest = f"WHERE created < {before} ORDER BY created LIMIT %s"
        page = sorted(_keys(session, oldest, (seconds, _PRUNED_AT_ONCE)))
        deleted += rerun_transaction(session, partial(_drop_page, session, page))
        if len(page) < _PRUNED_AT_ONCE:
            break
        if stop():
            return deleted, False
        rest()
    over = "not_kept = 0" + (f" OR last_at < {before}" if seconds else "")
    ages = (seconds,) if seconds else ()
    # Empty groups are deleted at any age: other counters may use their room.
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
    """Delete a dead letter in the open transaction. Return 1, or 0 if it does not exist."""
    return session.execute(f"DELETE FROM dead_row WHERE {_THIS}", key)


def lock(session: Session, key: Key) -> DeadRow | None:
    """Read a dead letter; lock it until the open transaction ends. Return None if there is none."""
    rows = session.query(f"SELECT {_COLUMNS} FROM dead_row WHERE {_THIS} FOR UPDATE", key)
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
    """Yield sorted primary keys of dead letters, in pages of ``size``. With ``refs``, these are the
    ones that ``refs`` name; otherwise all created by ``up_to`` (UTC; None: at any time), except
    reasons in ``but``. With ``reason``, dead letters with other reasons are left out."""
    if refs is not None:
        yield from parts(_named(session, refs, reason), size)
        return
    left_out = [("reason <> %s", each) for each in but]
    where, args = _where(("reason = %s", reason), ("created <= %s", up_to), *left_out)
    after: Key = (b"", WHOLE_ENTRY)
    while True:
        # A row constructor, (a, b) > (x, y), would read the whole table.
        page = _keys(
            session,
            "FORCE INDEX (PRIMARY) WHERE (entry_id > %s OR entry_id = %s AND position > %s)"
            f" AND {where} ORDER BY entry_id, position LIMIT %s",
            (after[0], *after, *args, size),
        )
        if not page:
            return
        yield page
        after = page[-1]


def parse_ref(ref: str) -> tuple[bytes, int | None]:
    """Parse a ref into (entry id, position); None is any position. Raises ValueError if invalid."""
    match = re.fullmatch(r"([0-9a-fA-F]{32})(?::(-1|\d{1,9}))?", ref)
    if match is None:
        raise ValueError(f"{ref!r} names no dead row: write 32 hex digits, or 32 and :POSITION")
    return bytes.fromhex(match[1]), None if match[2] is None else int(match[2])


def _named(session: Session, refs: Iterable[str], reason: str | None) -> list[Key]:
    """Return the sorted primary keys of dead letters with these refs and this reason (if given)."""
    keys: set[Key] = set()
    for entry_id, position in map(parse_ref, refs):
        named = ("entry_id = %s", entry_id), ("position = %s", position), ("reason = %s", reason)
        where, args = _where(*named)
        keys.update(_keys(session, f"WHERE {where}", args))
    return sorted(keys)


def _where(*conditions: tuple[str, object]) -> tuple[str, list[object]]:
    """Join conditions by AND, without those whose value is None. Return the SQL and the values."""
    given = [(condition, value) for condition, value in conditions if value is not None]
    return " AND ".join(["TRUE", *(text for text, _ in given)]), [value for _, value in given]


def _keys(session: Session, which: str, args: Sequence[object]) -> list[Key]:
    found = session.query(f"SELECT entry_id, position FROM dead_row {which}", args)
    return [(bytes(entry_id), int(position)) for entry_id, position in found]


def _read(session: Session, where: str, args: Sequence[object], limit: int) -> list[DeadRow]:
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
    """Return a row's values for INSERT, cut to lengths that every server accepts."""
    return (
        row.entry_id,
        row.position,
        _text(row.stream, 255),
        min(max(row.at, -(2**63)), 2**63 - 1),
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


def document(row: DeadRow) -> dict[str, object]:
    """Return a dead letter as a dict for JSON. Payload bytes not in UTF-8 become ``\\xNN``."""
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
