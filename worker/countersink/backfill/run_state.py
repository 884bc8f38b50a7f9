"""The row of a run in ``backfill_run``: its states and sums, and the name of its process."""

import json
import operator
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

from countersink.backfill.errors import RunEnded
from countersink.backfill.options import BackfillOptions, SourceReport
from countersink.counting.apply.control import read_control
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.catalog import load_scheme
from countersink.database.session import Session

_LONGEST_ERROR: Final = 1000
_NOW: Final = "UTC_TIMESTAMP(3)"


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Bytes, lines and amounts of a chunk, or of several: read, counted, filtered, rejected.

    Attributes:
        size_bytes: uncompressed.
        lines, counted, filtered, rejected: lines.
        amount: what was added in all.
    """

    size_bytes: int = 0
    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: int = 0
    amount: int = 0

    def __add__(self, other: "LineCounts") -> "LineCounts":
        return LineCounts(*map(operator.add, astuple(self), astuple(other)))

    def report(self, source: str, outcome: str, detail: str) -> SourceReport:
        """What became of a source."""
        return SourceReport(
            source=source,
            outcome=outcome,
            detail=detail,
            lines=self.lines,
            counted=self.counted,
            filtered=self.filtered,
            rejected=self.rejected,
            amount=self.amount,
        )


def begin(
    session: Session, options: BackfillOptions, sources: Sequence[str], holder: str
) -> tuple[int, Resolution]:
    """A new run, ``running``: its number, and the resolution in which it reconciles. Where the
    outcome was unknown, call it again.

    Args:
        sources: as they are named to people.
        holder: a name that no other process has, its own for every run.
    """
    ask = "SELECT id, resolution FROM backfill_run WHERE counter = %s AND holder = %s"
    with session.transaction():
        read_control(session)  # its lock keeps the resolution as it is
        if not session.query(ask, (options.counter, holder)):
            own = load_scheme(session, options.counter)
            session.execute(
                "INSERT INTO backfill_run"
                " (counter, mode, state, options, sources, holder, resolution, started, seen)"
                f" VALUES (%s, %s, 'running', %s, %s, %s, %s, {_NOW}, {_NOW})",
                (
                    options.counter,
                    options.mode,
                    options.recipe.to_json(),
                    json.dumps([printable(name) for name in sources], ensure_ascii=False),
                    holder,
                    own.resolution if options.mode == "reconcile" else None,
                ),
            )
        ((number, resolution),) = session.query(ask, (options.counter, holder))
    return int(number), resolution


def record(session: Session, run: int, counted: LineCounts, corrections: int = 0) -> None:
    """Note in a run's row what a chunk came to, or corrections, at the end of their transaction.

    At the end, since every chunk of the run needs this row: it is locked for a moment only.

    Raises:
        RunEnded: it must not be counted any more: undo the transaction.
    """
    changed = session.execute(
        "UPDATE backfill_run SET size_bytes = size_bytes + %s, lines_read = lines_read + %s,"
        " counted = counted + %s, filtered = filtered + %s, rejected = rejected + %s,"
        " amount = amount + %s, corrections = corrections + %s,"
        f" seen = {_NOW} WHERE id = %s AND state = 'running'",
        (*astuple(counted), corrections, run),
    )
    # No row is changed either if all of it is 0, within a millisecond.
    if not changed:
        require_running(session, run)


def require_running(session: Session, run: int) -> None:
    """Hold a run's row until the transaction ends, and see that nobody has ended the run.

    Raises:
        RunEnded: somebody has.
    """
    found = session.query("SELECT state FROM backfill_run WHERE id = %s FOR UPDATE", (run,))
    state = found[0][0] if found else "gone"
    if state != "running":
        raise RunEnded(
            f"backfill {run} is {state} by now, so nothing more is counted or corrected by it: run"
            " this again if that is wanted"
        )


def end(session: Session, run: int, state: str, error: str = "") -> None:
    """Give a run that is running its last state."""
    session.execute(
        f"UPDATE backfill_run SET state = %s, error = %s, seen = {_NOW}, ended = {_NOW}"
        " WHERE id = %s AND state = 'running'",
        (state, printable(error)[:_LONGEST_ERROR] or None, run),
    )


def rejects_of(session: Session, run: int) -> int:
    """How many lines a run has rejected so far."""
    ((number,),) = session.query(
        "SELECT COALESCE(SUM(rejected), 0) FROM backfill_chunk WHERE run = %s", (run,)
    )
    return int(number)


def printable(text: str) -> str:
    """``text`` where bytes of a file's name that are no UTF-8 are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()
