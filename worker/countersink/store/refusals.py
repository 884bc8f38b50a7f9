"""Rows that are not counted for their counter's sake: they go to the dead letters instead.

Those of the counters of tracked tables, which triggers count and nobody else may, in strict mode
those of counters that nobody has made, and those that are in what their bucket was set to already.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from countersink.store.connection import Session
from countersink.store.dead import RECONCILED, DeadRow
from countersink.store.errors import BadData
from countersink.store.merge import Incoming, Row
from countersink.store.policies import Policies
from countersink.store.reconciled import Mark, accepted
from countersink.store.strict import known
from countersink.store.upserts import dead_row

TRACKED_COUNTER: Final = "tracked_counter"
UNKNOWN_COUNTER: Final = "unknown_counter"
"""Reasons of the dead rows."""


def refuse(
    session: Session, entries: Sequence[Incoming], policies: Policies, *, late: bool = False
) -> tuple[list[Incoming], list[DeadRow]]:
    """Take the rows that may not be counted out of ``entries``.

    Args:
        session: in a transaction that holds the lock on control.
        entries: what is to be counted.
        policies: those in force.
        late: count also what was accepted before its bucket was reconciled.

    Returns:
        the entries with what is left of them, and a dead row for each row taken out.
    """
    kept, dead = list(entries), list[DeadRow]()
    if policies.strict or policies.tracked:
        refused = _refused(session, kept, policies)
        if refused:
            kept, dead = _without(kept, lambda entry, row: refused.get(row[1]))
    if policies.marked_before and not late:
        kept, in_truth = _without_late(kept, policies)
        dead += in_truth
    return kept, dead


def _refused(
    session: Session, entries: Sequence[Incoming], policies: Policies
) -> dict[str, BadData]:
    """The counters none of whose rows may be counted."""
    names = {row[1] for entry in entries for row in entry.rows}
    refused = {name: _tracked(name) for name in names & policies.tracked}
    if policies.strict:
        doubtful = names - policies.tracked - policies.known
        unknown = doubtful - known(session, doubtful)
        policies.known |= doubtful - unknown
        refused |= {name: _unknown(name) for name in unknown}
    return refused


def _without_late(
    entries: Sequence[Incoming], policies: Policies
) -> tuple[list[Incoming], list[DeadRow]]:
    """The entries without what was accepted before its bucket was reconciled."""
    before = policies.marked_before
    # Live traffic costs a comparison for each entry, and its rows are not looked at.
    suspect = [entry for entry in entries if accepted(entry.id, entry.at) < before]
    if not suspect:
        return list(entries), []

    def why(entry: Incoming, row: Row) -> BadData | None:
        when = accepted(entry.id, entry.at)
        mark = policies.mark(row[1], row[3], when) if when < before else None
        return None if mark is None else _reconciled(when, mark)

    return _without(entries, why)


def _without(
    entries: Sequence[Incoming], why: Callable[[Incoming, Row], BadData | None]
) -> tuple[list[Incoming], list[DeadRow]]:
    """The entries without the rows for which there is a reason, and those as dead rows."""
    kept: list[Incoming] = []
    dead: list[DeadRow] = []
    for entry in entries:
        rows: list[Row] = []
        for row in entry.rows:
            error = why(entry, row)
            if error is None:
                rows.append(row)
            else:
                dead.append(dead_row(entry, row, error))
        kept.append(entry if len(rows) == len(entry.rows) else replace(entry, rows=rows))
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


def _reconciled(when: int, mark: Mark) -> BadData:
    return BadData(
        f"accepted at {when} (Unix ms), and backfill {mark.run} has set this bucket since then to"
        f" what its sources say of everything before {mark.sent_before}: if they lack it,"
        f" `countersink dead retry --reason {RECONCILED}`, or its ref, counts it on top",
        reason=RECONCILED,
    )
