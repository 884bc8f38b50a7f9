"""Rules (``RULES``) that refuse rows, with an explanation for each reason. Refused rows become dead
letters.

The rules refuse malformed rows; rows of counters that only the triggers of a tracked table count;
in strict mode, rows of unknown counters; rows with dimensions that the counter has not declared;
rows with members (such as visitors) that the counter does not count, or that were hashed with a
wrong salt; rows of days that were reconciled; and rows that an earlier attempt could not add.

The rules run in the transaction that counts the other rows, after it has inserted the guards and
before it adds any amounts.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

from countersink.counting import visitors
from countersink.counting.apply.amounts import Incoming, Row
from countersink.counting.apply.cells import RowName
from countersink.counting.apply.dead import DeadRow
from countersink.counting.counters.all_counters import known_names
from countersink.counting.counters.breakdowns import Dimensioned
from countersink.counting.counters.catalog import Catalog, SaltPeriod, accepted
from countersink.counting.errors import UnknownDimension
from countersink.database.session import Session
from countersink.runtime.dead_letter import Bad, DeadReason, RowRefusal, row_fault
from countersink.runtime.limits import MAX_KEY_BYTES, cut_key, is_name
from countersink.runtime.members import HASH_BYTES, hashes_text

_KEY: Final = itemgetter(2)


@dataclass(frozen=True, slots=True)
class RuleContext:
    """The data by which the rules decide.

    Attributes:
        catalog: the catalog in force.
        late: True to count rows that were accepted before their day was reconciled. If False, they
            are refused.
        counters: names of counters whose rows are refused, each with the reason.
        salts: by the salt's number, the period of each salt with which members (such as visitors)
            were hashed; numbers that no salt has are missing.
        left_out: rows that an earlier attempt refused, each with the reason.
    """

    catalog: Catalog
    late: bool
    counters: Mapping[str, RowRefusal]
    salts: Mapping[int, SaltPeriod]
    left_out: Mapping[RowName, RowRefusal]


class RefusalRule(NamedTuple):
    """A rule that refuses some rows.

    Attributes:
        concerns: called with the context and an entry; returns whether the rule can refuse rows of
            the entry. If not, ``refusal`` is not called for them.
        refusal: called with the context, an entry and a row; returns why the row is refused, or
            None if this rule allows it.
    """

    concerns: Callable[[RuleContext, Incoming], bool]
    refusal: Callable[[RuleContext, Incoming, Row], RowRefusal | None]


def refuse(
    session: Session,
    entries: Sequence[Incoming],
    catalog: Catalog,
    *,
    left_out: Mapping[RowName, RowRefusal],
    late: bool = False,
) -> tuple[list[Incoming], list[DeadRow]]:
    """Separate rows that may be counted from rows that are refused.

    Args:
        session: in a transaction that holds a lock on the control row.
        entries: the entries that are to be counted.
        catalog: the catalog in force.
        left_out: further rows to refuse, each with the reason.
        late: True to count rows that were accepted before their day was reconciled. If False, they
            are refused. Rows that were accepted later are not affected.

    Returns:
        All entries, without their refused rows (an entry may have no rows left); and a dead letter
        for each refused row.
    """
    numbers = {seen.number for entry in entries for seen in entry.seen.values()}
    context = RuleContext(
        catalog,
        late,
        _not_counted(session, entries, catalog),
        visitors.known_periods(session, catalog, numbers),
        left_out,
    )
    kept, dead = list[Incoming](), list[DeadRow]()
    for entry in entries:
        rules = [
            partial(rule.refusal, context, entry) for rule in RULES if rule.concerns(context, entry)
        ]
        kept.append(_without(entry, rules, dead) if rules else entry)
    return kept, dead


def _without(
    entry: Incoming, rules: Sequence[Callable[[Row], RowRefusal | None]], dead: list[DeadRow]
) -> Incoming:
    """Return the entry without the rows that any of ``rules`` refuses. Append a dead letter for
    each refused row to ``dead``, with the reason of the first rule that refuses it.
    """
    kept: list[Row] = []
    for row in entry.rows:
        found = next(filter(None, (rule(row) for rule in rules)), None)
        if found is None:
            kept.append(row)
        else:
            dead.append(dead_row(entry, row, found))
    return entry if len(kept) == len(entry.rows) else replace(entry, rows=kept)


def dead_row(entry: Incoming, row: Row, refusal: RowRefusal) -> DeadRow:
    """Return the dead letter for a refused row of an entry."""
    position, counter, key, minute, amount = row
    items = [counter, key if isinstance(key, str) else dict(key), minute, amount]
    if position in entry.seen:
        seen = entry.seen[position]
        items += [seen.number, hashes_text(seen.hashes)]
    payload = json.dumps(items, separators=(",", ":")).encode()
    bad = Bad(position, *refusal, payload, counter if is_name(counter) else "")
    return DeadRow.from_bad(entry.id, entry.stream, entry.at, bad)


def _malformed(_: RuleContext, entry: Incoming, row: Row) -> RowRefusal | None:
    position, counter, key, minute, amount = row
    given = key if isinstance(key, str) else dict(key)
    fault = row_fault((counter, given, minute, amount))
    if fault is not None:
        return fault
    if isinstance(key, str) and cut_key(key) != key:
        detail = f"the key has more than {MAX_KEY_BYTES} bytes in UTF-8, and was not cut"
        return RowRefusal(DeadReason.BAD_KEY, detail)
    if position in entry.seen and len(entry.seen[position].hashes) % HASH_BYTES:
        return RowRefusal(DeadReason.BAD_MEMBERS, f"a hash does not have {HASH_BYTES} bytes")
    return None


def _has_dimensions(_: RuleContext, entry: Incoming) -> bool:
    return tuple in set(map(type, map(_KEY, entry.rows)))


def _undeclared(context: RuleContext, entry: Incoming, row: Row) -> RowRefusal | None:
    counter = row[1]
    dimensioned = context.catalog.dimensioned.get(counter) or Dimensioned(counter, ())
    try:
        dimensioned.require(row[2])
    except UnknownDimension as error:
        detail = f"{error}, then `countersink dead retry`"
        return RowRefusal(DeadReason.UNKNOWN_DIMENSION, detail)
    return None


def _wrong_members(context: RuleContext, entry: Incoming, row: Row) -> RowRefusal | None:
    position, counter, _, minute, _ = row
    seen = entry.seen.get(position)
    if seen is None:
        return None
    if counter not in context.catalog.salt_days:
        return RowRefusal(
            DeadReason.NOT_UNIQUE,
            f"{counter!r} does not count its different members: `countersink counter set {counter}"
            " --unique`, then `countersink dead retry`",
        )
    period = context.salts.get(seen.number)
    if period is None or period.counter != counter or minute not in period:
        return RowRefusal(
            DeadReason.WRONG_SALT,
            f"its members were hashed with salt {seen.number}, which is no salt of {counter!r} at"
            " the time of the event",
        )
    return None


def _accepted_before_marks(context: RuleContext, entry: Incoming) -> bool:
    # New events cost one comparison per entry; their rows are not checked.
    marked_before = context.catalog.marked_before
    return marked_before > 0 and not context.late and accepted(entry.id, entry.at) < marked_before


def _reconciled(context: RuleContext, entry: Incoming, row: Row) -> RowRefusal | None:
    when = accepted(entry.id, entry.at)
    mark = context.catalog.mark(row[1], row[3], when)
    if mark is None:
        return None
    return RowRefusal(
        DeadReason.RECONCILED,
        f"accepted at {when} (Unix ms), and backfill {mark.run} has set this day to the counts of"
        f" its sources since then, for entries before {mark.sent_before}: if the sources lack it,"
        f" `countersink dead retry --reason {DeadReason.RECONCILED}`, or its ref, adds it",
    )


RULES: Final = (
    RefusalRule(lambda _, entry: not entry.checked, _malformed),
    RefusalRule(
        lambda context, _: bool(context.counters),
        lambda context, _, row: context.counters.get(row[1]),
    ),
    RefusalRule(_has_dimensions, _undeclared),
    RefusalRule(lambda _, entry: bool(entry.seen), _wrong_members),
    RefusalRule(_accepted_before_marks, _reconciled),
    RefusalRule(
        lambda context, _: bool(context.left_out),
        lambda context, entry, row: context.left_out.get((entry.id, row[0])),
    ),
)
"""All rules. If several refuse a row, the first one gives the reason."""


def _not_counted(
    session: Session, entries: Iterable[Incoming], catalog: Catalog
) -> dict[str, RowRefusal]:
    """Return the names of those counters of the entries whose rows are refused, each with the
    reason. These are the counters of tracked tables, which only triggers count. In strict mode,
    these are also the counters that were neither created nor counted before.
    """
    if not (catalog.strict or catalog.tracked):
        return {}
    names = {row[1] for entry in entries for row in entry.rows}
    refused = {name: _tracked(name) for name in names & catalog.tracked}
    if catalog.strict:
        doubtful = {name for name in names - catalog.tracked - catalog.known if is_name(name)}
        unknown = doubtful - known_names(session, doubtful)
        catalog.known |= doubtful - unknown
        refused |= {name: _unknown(name) for name in unknown}
    return refused


def _tracked(counter: str) -> RowRefusal:
    return RowRefusal(
        DeadReason.TRACKED_COUNTER,
        f"{counter!r} is the row count of a tracked table, and only its triggers count it: count"
        f" under another name, or `countersink untrack {counter}`, then `countersink dead retry`",
    )


def _unknown(counter: str) -> RowRefusal:
    return RowRefusal(
        DeadReason.UNKNOWN_COUNTER,
        f"no counter is called {counter!r}, and only known ones are counted here:"
        f" `countersink counter set {counter}`, then `countersink dead retry`",
    )
