"""Strict mode: only counters that somebody has made, or that were counted before, are counted."""

from collections.abc import Iterable
from typing import Final

from countersink.store.connection import Session

_NAMES_PER_QUERY: Final = 500


def known(session: Session, names: Iterable[str]) -> set[str]:
    """Which of these counters are known, so that rows of theirs are counted in strict mode."""
    found: set[str] = set()
    ordered = sorted(names)
    for start in range(0, len(ordered), _NAMES_PER_QUERY):
        part = ordered[start : start + _NAMES_PER_QUERY]
        marks = ", ".join(["%s"] * len(part))
        rows = session.query(
            f"SELECT name FROM counter WHERE name IN ({marks})"
            f" UNION SELECT counter FROM counter_ledger WHERE counter IN ({marks})"
            # Counted in the application's own transactions, and not compacted yet.
            " UNION SELECT counter FROM counter_slot FORCE INDEX (PRIMARY)"
            f" WHERE counter IN ({marks}) GROUP BY counter",
            (*part, *part, *part),
        )
        found.update(name for (name,) in rows)
    return found
