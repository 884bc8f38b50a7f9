"""Checksums of settings, sequences and backfill rows, by which ``verify`` notices changes by hand,
and the sentences that say what was changed.

The seal of a counter is of its settings and its policies. Whoever changes these adds what they are
afterwards and takes off what they were, so that a seal that did not fit before does not fit then.
A sequence has a second column that is counted on with the value, and so have the two numbers of
``control`` that only grow.

Backfills write the seal of a row in the same statement. One that inserts a row writes :func:`seal`
after all other columns. One that updates it adds what the row is afterwards and takes off what it
was (:func:`update`). Rows of before there were seals have NULL, and keep it.

What backfills add goes into slots of their own. So for each counter, in any snapshot: the ledger of
these slots = the sum of the chunks that were added and not taken back + the corrections of its
reconciles that were not. And the chunks of a source cover what was read of it, every byte once.
:func:`mismatches` holds what they wrote down against that.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from countersink.runtime.limits import key_text
from countersink.store.apply.cells import FIRST_SLOT
from countersink.store.connection import Session
from countersink.store.counters.breakdowns import is_breakdown
from countersink.store.in_app.connection import FIRST_OWN
from countersink.store.ledger import Difference
from countersink.store.sql import marks

_POLICIES: Final = (
    "COALESCE((SELECT SUM(CRC32(CONCAT_WS('|', p.counter, p.number, p.valid_from, p.time_zone,"
    " p.resolution, COALESCE(p.used_to, ''), p.rolls))) FROM counter_policy AS p"
    " WHERE p.counter = {}), 0)"
)
_SETTINGS: Final = (
    "CRC32(CONCAT_WS('|', name, COALESCE(keep_days, ''), COALESCE(max_keys, ''), app_slots,"
    " keep_steps, dimensions, breakdown_of, since, last_breakdown,"
    " CONCAT('salt_days=', salt_days)))"
)
"""What came later stands last, and is left out where it is NULL: seals of before fit on."""
_MEANS: Final = {
    "pruned_before": "entries of which the guards are gone would count once more",
    "policy_version": "workers may go by settings that are no more",
}
_SEAL: Final = f"{_SETTINGS} + {_POLICIES.format('counter.name')}"


def begin(session: Session, counter: str) -> int:
    """What is to be added to the seal after a change; called before it, in its transaction."""
    found = session.query(f"SELECT seal, {_SEAL} FROM counter WHERE name = %s", (counter,))
    if not found:
        ((policies,),) = session.query(f"SELECT {_POLICIES.format('%s')}", (counter,))
        return -int(policies)
    seal, fits = found[0]
    return 0 if seal is None else int(seal) - int(fits)


def renew(session: Session, counter: str, difference: int) -> None:
    """Seal a counter's settings as they are; by as much beside them as they were before."""
    session.execute(
        f"UPDATE counter SET seal = {_SEAL} + %s WHERE name = %s", (difference, counter)
    )


def counters(session: Session, names: Sequence[str] | None = None) -> Iterator[Difference]:
    """Counters of which the settings were changed by hand: all, or some."""
    where, args = ("", ()) if names is None else (f" IN ({marks(names)})", tuple(names))
    found = session.query(
        f"SELECT name FROM counter WHERE seal <> {_SEAL}"
        + (f" AND name{where}" if where else "")
        + " UNION SELECT counter FROM counter_policy AS p WHERE"
        " NOT EXISTS (SELECT 1 FROM counter AS c WHERE c.name = p.counter)"
        + (f" AND counter{where}" if where else "")
        + " ORDER BY 1",
        args * 2,
    )
    for (name,) in found:
        detail = (
            "its time zones, resolutions, keep, keep_days, max_keys, app_slots, dimensions,"
            " breakdowns or salt_days were changed, but not by `counter set`"
        )
        yield Difference(name, "settings", 0, 0, detail)


def others(session: Session) -> Iterator[Difference]:
    """Sequences and numbers of ``control`` that were changed by hand."""
    for name, period, value, handed in session.query(
        "SELECT name, period, value, handed FROM sequence"
        " WHERE handed_at = updated_at AND handed <> value ORDER BY name, period"
    ):
        of_period = "" if period.year == 1970 else f" of {period:%Y-%m-%d}"
        detail = (
            f"the sequence{of_period} stands at {int(value)}, though {int(handed)} was handed out:"
            " numbers are given twice, or left out"
        )
        yield Difference(key_text(bytes(name)), "sequence", int(value), int(handed), detail)
    for column, says, sealed in session.query(
        "SELECT 'pruned_before', pruned_before, pruned_seal FROM control UNION ALL"
        " SELECT 'policy_version', policy_version, version_seal FROM control"
    ):
        # Set on, it does no harm to a count.
        if sealed is not None and int(says) < int(sealed):
            detail = f"control.{column} was set back: {_MEANS[column]}"
            yield Difference("control", "control", int(says), int(sealed), detail)


_COLUMNS: Final[Mapping[str, str]] = {
    "backfill_run": "counter mode state options sources holder started ended? size_bytes"
    " lines_read counted filtered rejected amount corrections policies? error?",
    "backfill_source": "counter truth_of name head options path read_to lines_to open_at?"
    " count_repeats",
    "backfill_chunk": "source start_at end_at reads_from first_line digest state run open_rejected"
    " lines_read counted filtered rejected amount",
    "backfill_journal": "source start_at piece cells",
    "backfill_drift": "run bucket counter_key had should_be",
}
"""What is sealed: all but an id that the server gives, and the last sign of life of a run.
``?``: may be NULL."""
_OF_CHUNKS: Final[Mapping[str, str]] = {
    "backfill_chunk": "the chunk",
    "backfill_journal": "the journal",
}
_PIECES: Final = (
    "(SELECT COUNT(*) FROM backfill_journal AS n"
    " WHERE n.source = t.source AND n.start_at = t.start_at)"
)
"""SQL for how many pieces the journal of a chunk has, which is ``t``."""
_CHANGED: Final = "was changed by hand"
_NO_STATE: Final = "has a state that there is not"
_RUN_STATES: Final = ("running", "done", "stopped", "failed", "undoing", "undone", "deleted")
_CHUNK_STATES: Final = ("pending", "done", "undone")


def seal(table: str, prefix: str = "", more: str = "''") -> str:
    """SQL for the checksum of a row.

    Args:
        table: its table.
        prefix: before the name of each column.
        more: SQL for what is sealed beside the columns.
    """
    columns = [
        f"COALESCE({prefix}{column[:-1]}, '')" if column.endswith("?") else f"{prefix}{column}"
        for column in _COLUMNS[table].split()
    ]
    return f"CAST(CRC32(CONCAT_WS('|', {more}, {', '.join(columns)})) AS SIGNED)"


JournalEntry = tuple[int, str, int] | tuple[int, str, int, str]
"""(bucket's label, key, amount) of a journal; of a breakdown also the name of its counter."""


def journal_entries(piece: bytes) -> Iterator[JournalEntry]:
    """What a row of ``backfill_journal`` says that a chunk added.

    Raises:
        ValueError, TypeError, zlib.error, RecursionError: it is damaged.
    """
    entries: Any = json.loads(zlib.decompress(piece))
    for entry in entries:
        bucket, key, amount, *breakdown = entry
        # ``type``: True is a number to isinstance.
        if (type(bucket), type(key), type(amount)) != (int, str, int):
            raise ValueError("an entry is not a bucket, a key and an amount")
        if not all(type(each) is str and is_breakdown(each) for each in breakdown):
            raise ValueError("an entry is of a breakdown that has no name of one")
        yield (bucket, key, amount, breakdown[0]) if breakdown else (bucket, key, amount)


def update(table: str, assignments: str) -> str:
    """An UPDATE without its WHERE that makes these assignments, and those of the seal."""
    own = seal(table)
    # Both servers assign from left to right.
    return f"UPDATE {table} SET seal = seal - {own}, {assignments}, seal = seal + {own}"


def broken(session: Session, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(counter, a sentence) of each row of these counters' backfills that has a state that there is
    not, was changed by hand, or lacks another.
    """
    for name, run in session.query(
        f"SELECT counter, id FROM backfill_run WHERE counter IN ({marks(names)}) AND state NOT IN"
        f" ({marks(_RUN_STATES)}) ORDER BY id",
        (*names, *_RUN_STATES),
    ):
        yield name, f"run {run} {_NO_STATE}"
    for name, source, start_at in session.query(
        "SELECT s.counter, c.source, c.start_at FROM backfill_chunk AS c"
        f" JOIN backfill_source AS s ON s.id = c.source WHERE s.counter IN ({marks(names)})"
        f" AND c.state NOT IN ({marks(_CHUNK_STATES)}) ORDER BY c.source, c.start_at",
        (*names, *_CHUNK_STATES),
    ):
        yield name, f"the chunk of source {source} from byte {start_at:,} on {_NO_STATE}"
    for table, what in ("backfill_run", "run"), ("backfill_source", "source"):
        for name, number in session.query(
            f"SELECT t.counter, t.id FROM {table} AS t WHERE t.counter IN ({marks(names)})"
            f" AND t.seal <> {seal(table, 't.')} ORDER BY t.id",
            names,
        ):
            yield name, f"{what} {number} {_CHANGED}"
    for table, what in _OF_CHUNKS.items():
        own = seal(table, "t.", _PIECES if table == "backfill_journal" else "''")
        for name, source, start_at in session.query(
            f"SELECT DISTINCT s.counter, t.source, t.start_at FROM {table} AS t"
            f" JOIN backfill_source AS s ON s.id = t.source WHERE s.counter IN ({marks(names)})"
            f" AND t.seal <> {own} ORDER BY t.source, t.start_at",
            names,
        ):
            yield name, f"{what} of source {source} from byte {start_at:,} on {_CHANGED}"
    for name, run, bucket, key in session.query(
        "SELECT r.counter, t.run, t.bucket, t.counter_key FROM backfill_drift AS t"
        f" JOIN backfill_run AS r ON r.id = t.run WHERE r.counter IN ({marks(names)})"
        f" AND t.seal <> {seal('backfill_drift', 't.')}"
        " ORDER BY t.run, t.bucket, t.counter_key",
        names,
    ):
        yield name, f"the correction of run {run} of {key_text(bytes(key))!r}, {bucket} {_CHANGED}"
    yield from _lacking(session, names)


def _lacking(session: Session, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is sealed, but lacks rows that are written with it."""
    for name, source, start_at, journal, run in session.query(
        "SELECT * FROM (SELECT s.counter, t.source, t.start_at,"
        f" t.amount = 0 OR {_PIECES} > 0 AS journal,"
        " EXISTS (SELECT 1 FROM backfill_run AS r WHERE r.id = t.run AND r.counter = s.counter)"
        " AS run"
        " FROM backfill_chunk AS t JOIN backfill_source AS s ON s.id = t.source"
        f" WHERE s.counter IN ({marks(names)}) AND s.truth_of = 0 AND t.state = 'done'"
        " AND t.seal IS NOT NULL) AS c WHERE NOT journal OR NOT run ORDER BY source, start_at",
        names,
    ):
        chunk = f"the chunk of source {source} from byte {start_at:,} on"
        if not journal:
            yield name, f"the journal of {chunk} is gone"
        if not run:
            yield name, f"the run of {chunk} is gone"
    for name, run, said, there in session.query(
        "SELECT * FROM (SELECT r.counter, r.id, r.corrections,"
        " (SELECT COUNT(*) FROM backfill_drift AS d WHERE d.run = r.id) AS there"
        f" FROM backfill_run AS r WHERE r.counter IN ({marks(names)}) AND r.seal IS NOT NULL"
        " AND r.state IN ('running', 'done', 'stopped', 'failed')) AS c"
        " WHERE corrections <> there ORDER BY id",
        names,
    ):
        yield name, f"run {run} has {there:,} corrections, of {said:,} that it made"


_EXAMPLES: Final = 3


def mismatches(session: Session, names: Sequence[str]) -> Iterator[Difference]:
    """What is wrong with the backfills of these counters, in the snapshot that the caller began;
    those that never had any are passed over.
    """
    had_any = session.query(
        f"SELECT counter FROM backfill_source WHERE counter IN ({marks(names)})"
        f" UNION SELECT counter FROM backfill_run WHERE counter IN ({marks(names)})",
        (*names, *names),
    )
    names = sorted(name for (name,) in had_any)
    if not names:
        return
    added = session.query(
        "SELECT s.counter, SUM(c.amount) FROM backfill_source AS s"
        " JOIN backfill_chunk AS c ON c.source = s.id"
        f" WHERE s.counter IN ({marks(names)}) AND s.truth_of = 0 AND c.state = 'done'"
        " GROUP BY s.counter",
        names,
    )
    corrected = session.query(
        "SELECT r.counter, SUM(d.should_be - d.had) FROM backfill_run AS r"
        " JOIN backfill_drift AS d ON d.run = r.id"
        f" WHERE r.counter IN ({marks(names)}) AND r.state <> 'undone' GROUP BY r.counter",
        names,
    )
    written_down = dict.fromkeys(names, 0)
    for name, amount in (*added, *corrected):
        written_down[name] += int(amount)
    in_ledger = dict.fromkeys(names, 0)
    for name, amount in session.query(
        "SELECT counter, SUM(amount) FROM counter_ledger"
        f" WHERE counter IN ({marks(names)}) AND slot BETWEEN %s AND %s GROUP BY counter",
        (*names, FIRST_SLOT, FIRST_OWN - 1),
    ):
        in_ledger[name] = int(amount)
    uncovered = _broken_sources(session, names)
    garbled: defaultdict[str, list[str]] = defaultdict(list)
    for name, detail in broken(session, names):
        garbled[name].append(detail)
    for name in names:
        said, held = written_down[name], in_ledger[name]
        details = []
        if said != held:
            details.append(
                f"the ledger of slots {FIRST_SLOT} to {FIRST_OWN - 1} holds {held - said:+,}"
                " against what backfills wrote down"
            )
        if sources := uncovered.get(name):
            some = ", ".join(map(str, sources[:_EXAMPLES]))
            details.append(
                f"the chunks of {len(sources):,} sources, such as {some}, do not cover what was"
                " read of them"
            )
        details += garbled[name][:_EXAMPLES]
        if details:
            yield Difference(name, "backfill", said, held, "; ".join(details))


def _broken_sources(session: Session, names: Sequence[str]) -> dict[str, list[int]]:
    """Sources in whose chunks there are gaps, or that do not end where reading has."""
    found: dict[str, list[int]] = {}
    for name, source in session.query(
        "SELECT s.counter, s.id FROM backfill_source AS s LEFT JOIN"
        " (SELECT source, start_at, end_at,"
        " COALESCE(LAG(end_at) OVER (PARTITION BY source ORDER BY start_at), 0) AS one_before"
        " FROM backfill_chunk WHERE source IN"
        f" (SELECT id FROM backfill_source WHERE counter IN ({marks(names)}))) AS c"
        f" ON c.source = s.id WHERE s.counter IN ({marks(names)})"
        " GROUP BY s.counter, s.id, s.read_to HAVING COALESCE(MAX(c.end_at), 0) <> s.read_to"
        " OR SUM(COALESCE(c.start_at <> c.one_before, 0)) > 0 ORDER BY s.id",
        (*names, *names),
    ):
        found.setdefault(name, []).append(int(source))
    return found
