"""Rows that become dead letters by a rule of their counter: tracked table, unknown in strict mode,
undeclared dimension, reconciled day, members that it does not count or by a wrong salt; with the
detail of each.

Those of the counters of tracked tables, which triggers count and nobody else may, in strict mode
those of counters that nobody has made, nor counted before, those with a dimension that their
counter has not declared, and those that are in what their bucket
was set to already.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Final

from countersink.runtime.dead_letter import DeadReason
from countersink.store.apply.amounts import Incoming, Row
from countersink.store.apply.cells import dead_row
from countersink.store.apply.dead import DeadRow
from countersink.store.connection import Session
from countersink.store.counters.breakdowns import Dimensioned
from countersink.store.counters.policies import Mark, Policies, accepted
from countersink.store.errors import BadData, UnknownDimension
from countersink.store.sql import marks, parts
from countersink.store.visitors import salts

_KEY: Final = itemgetter(2)

Errors = Mapping[tuple[str, int], BadData]
"""Why rows are refused, by their counter and minute."""


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
        kept, dead = _without_refused(session, kept, policies)
    kept = [_declared(entry, policies, dead) for entry in kept]
    if any(entry.seen for entry in kept):
        kept = _salted(session, kept, policies, dead)
    if policies.marked_before and not late:
        kept, in_truth = _without(kept, partial(_late, policies=policies))
        dead += in_truth
    return kept, dead


def _without_refused(
    session: Session, entries: Sequence[Incoming], policies: Policies
) -> tuple[list[Incoming], list[DeadRow]]:
    """The entries without the rows of counters that are not counted."""
    names = {row[1] for entry in entries for row in entry.rows}
    refused = {name: _tracked(name) for name in names & policies.tracked}
    if policies.strict:
        doubtful = names - policies.tracked - policies.known
        unknown = doubtful - known(session, doubtful)
        policies.known |= doubtful - unknown
        refused |= {name: _unknown(name) for name in unknown}

    def refused_of(entry: Incoming) -> Errors:
        return {(row[1], row[3]): refused[row[1]] for row in entry.rows if row[1] in refused}

    return _without(entries, refused_of) if refused else (list(entries), [])


def _declared(entry: Incoming, policies: Policies, dead: list[DeadRow]) -> Incoming:
    """The entry without the rows whose counter has not declared a dimension that they have; these
    go to ``dead``.
    """
    if tuple not in set(map(type, map(_KEY, entry.rows))):
        return entry
    kept: list[Row] = []
    for row in entry.rows:
        try:
            policies.dimensioned.get(row[1], Dimensioned(row[1], ())).require(row[2])
        except UnknownDimension as error:
            reason = DeadReason.UNKNOWN_DIMENSION
            detail = f"{error}, then `countersink dead retry`"
            dead.append(dead_row(entry, row, BadData(detail, reason=reason)))
        else:
            kept.append(row)
    return entry if len(kept) == len(entry.rows) else replace(entry, rows=kept)


def _salted(
    session: Session, entries: Sequence[Incoming], policies: Policies, dead: list[DeadRow]
) -> list[Incoming]:
    """The entries without the rows whose members cannot be among the counter's; these go to
    ``dead``.
    """
    numbers = {seen.number for entry in entries for seen in entry.seen.values()}
    periods = salts.known_periods(session, policies, numbers)
    kept: list[Incoming] = []
    for entry in entries:
        rows: list[Row] = []
        for row in entry.rows:
            position, counter, _, minute, _ = row
            seen = entry.seen.get(position)
            if seen is None:
                rows.append(row)
            elif counter not in policies.salt_days:
                dead.append(dead_row(entry, row, _not_unique(counter)))
            elif (
                (period := periods.get(seen.number)) is None
                or period.counter != counter
                or minute not in period
            ):
                dead.append(dead_row(entry, row, _wrong_salt(counter, seen.number)))
            else:
                rows.append(row)
        kept.append(entry if len(rows) == len(entry.rows) else replace(entry, rows=rows))
    return kept


def _without(
    entries: Iterable[Incoming], errors_of: Callable[[Incoming], Errors]
) -> tuple[list[Incoming], list[DeadRow]]:
    """The entries without the rows that there is an error for, and a dead row for each of those."""
    kept: list[Incoming] = []
    dead: list[DeadRow] = []
    for entry in entries:
        if errors := errors_of(entry):
            dead += [
                dead_row(entry, row, errors[row[1], row[3]])
                for row in entry.rows
                if (row[1], row[3]) in errors
            ]
            left = [row for row in entry.rows if (row[1], row[3]) not in errors]
            entry = replace(entry, rows=left)
        kept.append(entry)
    return kept, dead


def _late(entry: Incoming, policies: Policies) -> Errors:
    """The counters and minutes of an entry whose bucket was reconciled since it was accepted."""
    when = accepted(entry.id, entry.at)
    # Live traffic costs a comparison for each entry, and its rows are not looked at.
    if when >= policies.marked_before:
        return {}
    found: dict[tuple[str, int], BadData] = {}
    for counter, minute in {(row[1], row[3]) for row in entry.rows}:
        mark = policies.mark(counter, minute, when)
        if mark is not None:
            found[counter, minute] = _reconciled(when, mark)
    return found


def _tracked(counter: str) -> BadData:
    return BadData(
        f"{counter!r} is the row count of a tracked table, and only its triggers count it: count"
        f" under another name, or `countersink untrack {counter}`, then `countersink dead retry`",
        reason=DeadReason.TRACKED_COUNTER,
    )


def _unknown(counter: str) -> BadData:
    return BadData(
        f"no counter is called {counter!r}, and only known ones are counted here:"
        f" `countersink counter set {counter}`, then `countersink dead retry`",
        reason=DeadReason.UNKNOWN_COUNTER,
    )


def _not_unique(counter: str) -> BadData:
    return BadData(
        f"{counter!r} does not count its different members: `countersink counter set {counter}"
        " --unique`, then `countersink dead retry`",
        reason=DeadReason.NOT_UNIQUE,
    )


def _wrong_salt(counter: str, number: int) -> BadData:
    return BadData(
        f"its members were hashed with the salt {number}, which is not one of {counter!r} for the"
        " time of the event",
        reason=DeadReason.WRONG_SALT,
    )


def _reconciled(when: int, mark: Mark) -> BadData:
    return BadData(
        f"accepted at {when} (Unix ms), and backfill {mark.run} has set this bucket since then to"
        f" what its sources say of everything before {mark.sent_before}: if they lack it,"
        f" `countersink dead retry --reason {DeadReason.RECONCILED}`, or its ref, counts it on top",
        reason=DeadReason.RECONCILED,
    )


_NAMES_PER_QUERY: Final = 500


def known(session: Session, names: Iterable[str]) -> set[str]:
    """Which of these counters are known, so that rows of theirs are counted in strict mode."""
    found: set[str] = set()
    ordered = sorted(names)
    for part in parts(ordered, _NAMES_PER_QUERY):
        rows = session.query(
            f"SELECT name FROM counter WHERE name IN ({marks(part)})"
            f" UNION SELECT counter FROM counter_ledger WHERE counter IN ({marks(part)})"
            # The row count of a tracked table, which is not in the ledger.
            " UNION SELECT counter FROM counter_slot FORCE INDEX (PRIMARY)"
            f" WHERE counter IN ({marks(part)}) GROUP BY counter",
            (*part, *part, *part),
        )
        found.update(name for (name,) in rows)
    return found
