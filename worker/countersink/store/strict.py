"""Strict mode: rows of counters that nobody has made go to the dead letters."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from countersink.store.connection import Session
from countersink.store.dead import DeadRow
from countersink.store.merge import Incoming, Row
from countersink.store.policies import Policies

UNKNOWN_COUNTER: Final = "unknown_counter"
"""The reason of the dead rows."""
_NAMES_PER_QUERY: Final = 500


def refuse_unknown(
    session: Session, entries: Sequence[Incoming], policies: Policies
) -> tuple[list[Incoming], list[DeadRow]]:
    """Take the rows of unknown counters out of ``entries``.

    A counter is known that was made (:class:`countersink.store.counters.Counters`) or has been
    counted before.

    Returns:
        the entries with what is left of them, and a dead row for each row taken out.
    """
    names = {row[1] for entry in entries for row in entry.rows} - policies.known
    unknown = names - known(session, names)
    policies.known |= names - unknown
    if not unknown:
        return list(entries), []
    kept: list[Incoming] = []
    dead: list[DeadRow] = []
    for entry in entries:
        refused = [row for row in entry.rows if row[1] in unknown]
        if refused:
            dead += [_dead_row(entry, row) for row in refused]
            entry = replace(entry, rows=[row for row in entry.rows if row[1] not in unknown])
        kept.append(entry)
    return kept, dead


def known(session: Session, names: Iterable[str]) -> set[str]:
    """Which of these counters are known, so that rows of theirs are counted in strict mode."""
    found: set[str] = set()
    ordered = sorted(names)
    for start in range(0, len(ordered), _NAMES_PER_QUERY):
        part = ordered[start : start + _NAMES_PER_QUERY]
        marks = ", ".join(["%s"] * len(part))
        rows = session.query(
            f"SELECT name FROM counter WHERE name IN ({marks})"
            f" UNION SELECT counter FROM counter_ledger WHERE counter IN ({marks})",
            (*part, *part),
        )
        found.update(name for (name,) in rows)
    return found


def _dead_row(entry: Incoming, row: Row) -> DeadRow:
    position, counter, key, minute, amount = row
    detail = (
        f"no counter is called {counter!r}, and only known ones are counted here:"
        f" `countersink counter set {counter}`, then `countersink dead retry`"
    )
    payload = json.dumps([counter, key, minute, amount], separators=(",", ":")).encode()
    return DeadRow(entry.id, position, entry.stream, entry.at, UNKNOWN_COUNTER, detail, payload)
