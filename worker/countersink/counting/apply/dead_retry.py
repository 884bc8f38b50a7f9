"""Retries of dead letters (``countersink dead retry``): one transaction counts and deletes ``PAGE``
dead rows; ``too_old`` and ``reconciled`` are left out unless named. See ``dead.py`` for selection.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from countersink.counting.apply import dead
from countersink.counting.apply.amounts import Incoming, Row
from countersink.counting.apply.cells import RowName, run_again, upsert
from countersink.counting.apply.dead import DeadRow, Key
from countersink.counting.apply.guards import read_control
from countersink.counting.apply.refusals import refuse
from countersink.counting.counters.catalog import load
from countersink.database.session import Session, rerun
from countersink.runtime.dead_letter import MAYBE_COUNTED, WHOLE_ENTRY, Bad, DeadReason, RowRefusal
from countersink.runtime.members import Seen

PAGE: Final = 25
"""Dead rows per transaction."""


Decode = Callable[[bytes], tuple[Sequence[Row], Mapping[int, Seen], Sequence[Bad]]]
"""Decodes the ``rows`` field of an entry: good rows, hashed members by the row's position, and bad
rows."""


@dataclass(frozen=True, slots=True)
class Retried:
    """Outcome of a retry.

    Attributes:
        retried: dead rows counted and deleted (a whole entry at least in part).
        failed: dead rows that stay, or that a partly counted entry left.
        rows: rows counted.
        left_out: dead rows not retried as ``too_old`` or ``reconciled``, where neither a reason nor
            refs were given.
    """

    retried: int = 0
    failed: int = 0
    rows: int = 0
    left_out: int = 0


def retry(
    session: Session,
    *,
    slot: int,
    decode: Decode,
    reason: str | None = None,
    refs: Sequence[str] | None = None,
    up_to: datetime | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Retried:
    """Count dead rows: by reason, by refs, or all but ``too_old`` and ``reconciled``.

    Dead rows that fail again stay, with their new reason. ``too_old`` ones may have been counted
    already, and ``reconciled`` ones are counted if the reconcile's sources were complete: so an
    operator has to name them, and decides that they are new. Dead rows that a concurrent retry
    takes are left to it.

    Args:
        session: at READ COMMITTED, outside a transaction.
        slot: slot to add to.
        decode: ``countersink.stream.decode.decode_payload``.
        up_to: without refs, leaves out dead rows created after it (UTC).
        pause: sleeps for some seconds before a rerun.

    Raises:
        ValueError: not a ref.
        StoreError: as any statement; pages retried before it are committed.
    """
    retried = failed = rows = 0
    failed_now: set[Key] = set()
    but = MAYBE_COUNTED if reason is None and refs is None else ()
    for page in dead.pages(session, reason=reason, refs=refs, but=but, up_to=up_to, size=PAGE):
        # Rows that a partly counted entry left come after it in the order of the pages.
        keys = [key for key in page if key not in failed_now]
        attempt = partial(_retry_page, session, slot, decode, (reason, but), keys)
        part, stay = rerun(partial(run_again, session, attempt), pause=pause)
        retried += part.retried
        failed += part.failed
        rows += part.rows
        failed_now |= stay
    left = dead.count(session, up_to=up_to) if but else {}
    left_out = sum(left.get(each, 0) for each in but)
    return Retried(retried, failed, rows, left_out)


def _retry_page(
    session: Session,
    slot: int,
    decode: Decode,
    reasons: tuple[str | None, Sequence[str]],
    page: Sequence[Key],
    left_out: Mapping[RowName, RowRefusal],
) -> tuple[Retried, set[Key]]:
    """Retry a page of dead rows in one transaction.

    Args:
        session: outside a transaction.
        slot: slot to add to.
        decode: as for :func:`retry`.
        reasons: the reason to retry (None: any), and the reasons to leave out.
        page: primary keys of dead rows.
        left_out: rows that are not to be counted, and why.

    Returns:
        The outcome, and the primary keys of dead rows that stay.
    """
    reason, but = reasons
    with session.transaction():
        found = [row for row in (dead.lock(session, key) for key in page) if row is not None]
        chosen = [row for row in found if reason in (None, row.reason) and row.reason not in but]
        attempts = [(row, *_read(row, decode)) for row in chosen]
        read_control(session)  # its lock keeps the catalog unchanged
        in_force = load(session, old_marks=True)
        entries: list[Incoming] = []
        not_counted: list[DeadRow] = []
        for late in False, True:
            # Rows retried as reconciled are not refused as reconciled again.
            part = [
                Incoming(row.entry_id, row.at, rows, stream=row.stream, seen=seen, checked=True)
                for row, rows, seen, _ in attempts
                if (row.reason == DeadReason.RECONCILED) is late
            ]
            kept, refused_now = refuse(session, part, in_force, late=late, left_out=left_out)
            entries += kept
            not_counted += refused_now
        upsert(session, slot, entries, in_force)
        refused: dict[Key, DeadRow] = {row.primary_key: row for row in not_counted}
        stay: list[DeadRow] = []
        parts: list[DeadRow] = []
        for row, rows, _, bad in attempts:
            keys = [(row.entry_id, position) for position, *_ in rows]
            left = [*bad, *(refused.pop(key) for key in keys if key in refused)]
            if left and len(left) == len(rows) + len(bad):
                # No row was counted: the dead row stays, with the new reason.
                stay.append(replace(row, reason=left[0].reason, detail=left[0].detail))
            else:
                parts += left
        for row in chosen:
            dead.delete(session, row.primary_key)
        dead.insert(session, stay)
        if parts:
            dead.record(session, parts)
        left_keys = {row.primary_key for row in (*stay, *parts)}
        deleted = {row.primary_key for row in chosen} - left_keys
        counted = sum(len(entry.rows) for entry in entries)
        return Retried(len(deleted), len(left_keys), counted), left_keys


def _read(row: DeadRow, decode: Decode) -> tuple[list[Row], Mapping[int, Seen], list[DeadRow]]:
    """The rows of a dead row's payload, their hashed members, and the parts that stay dead."""
    if row.truncated:
        return [], {}, [row]
    is_entry = row.position == WHOLE_ENTRY
    rows, seen, bad = decode(row.payload if is_entry else b"[" + row.payload + b"]")
    if is_entry:
        left = [DeadRow.from_bad(row.entry_id, row.stream, row.at, fault) for fault in bad]
        return list(rows), seen, left
    if bad:
        return [], {}, [replace(row, reason=bad[0].reason, detail=bad[0].detail)]
    if len(rows) != 1:
        detail = "the payload is not one row"
        return [], {}, [replace(row, reason=DeadReason.NOT_A_ROW, detail=detail)]
    place, counter, key, minute, amount = rows[0]
    members = {row.position: seen[place]} if place in seen else {}
    return [(row.position, counter, key, minute, amount)], members, []
