"""Holding what backfills wrote down against the ledger.

What they add goes into slots of their own. So for each counter, in any snapshot: the ledger of
these slots = the sum of the chunks that were added and not taken back + the corrections of its
reconciles that were not. And the chunks of a source cover what was read of it, every byte once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from countersink.store.adding import FIRST_SLOT
from countersink.store.connection import Session

_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What is wrong with a counter's backfills.

    Attributes:
        counter: its name.
        written_down: what chunks and corrections add up to.
        in_ledger: sum of the ledger of backfill's slots.
        detail: a sentence for people.
    """

    counter: str
    written_down: int
    in_ledger: int
    detail: str


def mismatches(session: Session, names: Sequence[str]) -> Iterator[Mismatch]:
    """What is wrong with the backfills of these counters, in the snapshot that the caller began;
    those that never had any are passed over.
    """
    marks = ", ".join(["%s"] * len(names))
    had_any = session.query(
        f"SELECT counter FROM backfill_source WHERE counter IN ({marks})"
        f" UNION SELECT counter FROM backfill_run WHERE counter IN ({marks})",
        (*names, *names),
    )
    names = sorted(name for (name,) in had_any)
    if not names:
        return
    marks = ", ".join(["%s"] * len(names))
    added = session.query(
        "SELECT s.counter, SUM(c.amount) FROM backfill_source AS s"
        " JOIN backfill_chunk AS c ON c.source = s.id"
        f" WHERE s.counter IN ({marks}) AND s.truth_of = 0 AND c.state = 'done' GROUP BY s.counter",
        names,
    )
    corrected = session.query(
        "SELECT r.counter, SUM(d.should_be - d.had) FROM backfill_run AS r"
        " JOIN backfill_drift AS d ON d.run = r.id"
        f" WHERE r.counter IN ({marks}) AND r.state <> 'undone' GROUP BY r.counter",
        names,
    )
    written_down = dict.fromkeys(names, 0)
    for name, amount in (*added, *corrected):
        written_down[name] += int(amount)
    in_ledger = dict.fromkeys(names, 0)
    for name, amount in session.query(
        "SELECT counter, SUM(amount) FROM counter_ledger"
        f" WHERE counter IN ({marks}) AND slot >= %s GROUP BY counter",
        (*names, FIRST_SLOT),
    ):
        in_ledger[name] = int(amount)
    broken = _broken_sources(session, names)
    for name in names:
        said, held = written_down[name], in_ledger[name]
        details = []
        if said != held:
            details.append(
                f"the ledger of slots {FIRST_SLOT} and up holds {held - said:+,} against what"
                " backfills wrote down"
            )
        if sources := broken.get(name):
            some = ", ".join(map(str, sources[:_EXAMPLES]))
            details.append(
                f"the chunks of {len(sources):,} sources, such as {some}, do not cover what was"
                " read of them"
            )
        if details:
            yield Mismatch(name, said, held, "; ".join(details))


def _broken_sources(session: Session, names: Sequence[str]) -> dict[str, list[int]]:
    """Sources in whose chunks there are gaps, or that do not end where reading has."""
    marks = ", ".join(["%s"] * len(names))
    found: dict[str, list[int]] = {}
    for name, source in session.query(
        "SELECT s.counter, s.id FROM backfill_source AS s LEFT JOIN"
        " (SELECT source, start_at, end_at,"
        " COALESCE(LAG(end_at) OVER (PARTITION BY source ORDER BY start_at), 0) AS one_before"
        " FROM backfill_chunk WHERE source IN"
        f" (SELECT id FROM backfill_source WHERE counter IN ({marks}))) AS c ON c.source = s.id"
        f" WHERE s.counter IN ({marks}) GROUP BY s.counter, s.id, s.read_to"
        " HAVING COALESCE(MAX(c.end_at), 0) <> s.read_to"
        " OR SUM(COALESCE(c.start_at <> c.one_before, 0)) > 0 ORDER BY s.id",
        (*names, *names),
    ):
        found.setdefault(name, []).append(int(source))
    return found
