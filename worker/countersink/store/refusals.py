"""Rows that are not counted for their counter's sake: they go to the dead letters instead.

Those of the counters of tracked tables, which triggers count and nobody else may, and in strict
mode those of counters that nobody has made.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from countersink.store.connection import Session
from countersink.store.dead import DeadRow
from countersink.store.errors import BadData
from countersink.store.merge import Incoming
from countersink.store.policies import Policies
from countersink.store.strict import known
from countersink.store.upserts import dead_row

TRACKED_COUNTER: Final = "tracked_counter"
UNKNOWN_COUNTER: Final = "unknown_counter"
"""Reasons of the dead rows."""


def refuse(
    session: Session, entries: Sequence[Incoming], policies: Policies
) -> tuple[list[Incoming], list[DeadRow]]:
    """Take the rows that may not be counted out of ``entries``.

    Args:
        session: in a transaction that holds the lock on control.
        entries: what is to be counted.
        policies: those in force.

    Returns:
        the entries with what is left of them, and a dead row for each row taken out.
    """
    if not (policies.strict or policies.tracked):
        return list(entries), []
    names = {row[1] for entry in entries for row in entry.rows}
    refused = {name: _tracked(name) for name in names & policies.tracked}
    if policies.strict:
        doubtful = names - policies.tracked - policies.known
        unknown = doubtful - known(session, doubtful)
        policies.known |= doubtful - unknown
        refused |= {name: _unknown(name) for name in unknown}
    if not refused:
        return list(entries), []
    kept: list[Incoming] = []
    dead: list[DeadRow] = []
    for entry in entries:
        out = [row for row in entry.rows if row[1] in refused]
        if out:
            dead += [dead_row(entry, row, refused[row[1]]) for row in out]
            entry = replace(entry, rows=[row for row in entry.rows if row[1] not in refused])
        kept.append(entry)
    return kept, dead


def _tracked(counter: str) -> BadData:
    return BadData(
        f"{counter!r} is the row count of a tracked table, and only its triggers count it: count"
        f" under another name, or `countersink untrack {counter}`, then `countersink dead retry`",
        reason=TRACKED_COUNTER,
    )


def _unknown(counter: str) -> BadData:
    return BadData(
        f"no counter is called {counter!r}, and only known ones are counted here:"
        f" `countersink counter set {counter}`, then `countersink dead retry`",
        reason=UNKNOWN_COUNTER,
    )
