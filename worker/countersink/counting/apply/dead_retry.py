"""Retries of dead letters (``countersink dead retry``). One transaction counts up to ``PAGE`` dead
letters and deletes them.

Dead letters with the reasons ``too_old`` and ``reconciled`` may have been counted already. They are
only retried if the operator gives their reason or their names.
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
"""Number of dead letters that one transaction retries."""


Decode = Callable[[bytes], tuple[Sequence[Row], Mapping[int, Seen], Sequence[Bad]]]
"""A function that decodes the field ``rows`` of an entry. It returns the good rows, the hashes of
their members by the row's position, and the bad rows."""


@dataclass(frozen=True, slots=True)
class Retried:
    """The result of a retry.

    Attributes:
        retried: number of dead letters that were counted and deleted. This includes whole entries
            of which only some rows were counted.
        failed: number of dead letters that failed and stay, and of new ones for the failed rows of
            whole entries.
        rows: number of rows that were counted.
        left_out: number of dead letters that were not retried, because their reason is ``too_old``
            or ``reconciled``, and neither a reason nor refs were given.
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
    """Count the rows in dead letters, and delete these dead letters. ``reason`` and ``refs`` choose
    the dead letters to retry. If both are given, a dead letter must fit both.

    If neither is given, all are retried except those with the reasons ``too_old`` and
    ``reconciled``. Those with ``too_old`` may have been counted already. Those with ``reconciled``
    are counted already if the sources of the reconcile were complete. So an operator has to make
    sure that they are not counted yet, and to choose them by reason or ref.

    A dead letter that fails again stays, with its new reason. If only some rows of a whole entry
    fail, the dead letter of the entry is replaced by dead letters of these rows. If two retries run
    at the same time, each dead letter is counted by one of them at most.

    Args:
        session: at READ COMMITTED, outside a transaction.
        slot: the slot to which amounts are added.
        decode: ``countersink.stream.decode.decode_payload``, which reads rows from a payload.
        reason: retry only dead letters with this reason.
        refs: retry only dead letters with these names (``<hex id>:<position>``, or ``<hex id>`` for
            all of an entry).
        up_to: without ``refs``, retry only dead letters that were created by this time (UTC).
        pause: sleeps for the given seconds before a transaction is run again.

    Raises:
        ValueError: a text in ``refs`` is not a ref.
        StoreError: a statement failed. Earlier transactions stay committed.
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
    """Retry some dead letters in one transaction. Those that do not exist any more, or have another
    reason now, are skipped.

    Args:
        session: outside a transaction.
        slot: the slot to which amounts are added.
        decode: reads rows from a payload; see :func:`retry`.
        reasons: the reason to retry (None for any), and the reasons not to retry.
        page: primary keys of the dead letters.
        left_out: rows that must not be counted, each with the reason.

    Returns:
        The result (with ``left_out`` 0), and the primary keys of the dead letters that stay or are
        new, which :func:`retry` skips in later pages.
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
    """Return what the payload of a dead letter contains: the good rows, the hashes of their members
    (such as visitors) by row position, and a dead letter for each bad row. If the payload was cut
    off, return ``row`` as the only dead letter. If the dead letter is not of a whole entry, and its
    row is bad, return ``row`` with the new reason.
    """
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
