"""What a backfill is asked to do, and what it says of itself."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from countersink.backfill.recipe import Recipe

if TYPE_CHECKING:
    from countersink.backfill.listing import Drift

Mode = Literal["add", "reconcile"]


MOST_REJECTS: Final = 100_000
"""Rejected lines that end a run where nothing else is asked for: each is kept, with its text, and a
wrong format or directory would fill the database.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One ``countersink backfill``.

    Attributes:
        counter: which.
        sources: files, directories, shell patterns; ``-`` is standard input.
        recipe: how they are read.
        mode: ``add``: these events never arrived; ``reconcile``: they are the whole truth.
        name: tells sources of the same content apart.
        delete_missing: reconcile: keys that no source has go to zero.
        grace_s: reconcile: seconds after its end at which a bucket counts as closed.
        wait_s: reconcile: seconds to wait for what is in the streams.
        jobs: how many job processes to use; 0: none.
        rate: lines per second at most; None: as fast as it goes.
        max_rejects: more rejected lines than this end the run; None: :data:`MOST_REJECTS`.
        rejects: where to write them; None: a name is made up, of a file that is not there.
        dry_run: say what would change, change nothing.
    """

    counter: str
    sources: tuple[str, ...]
    recipe: Recipe = field(default_factory=Recipe)
    mode: Mode = "add"
    name: str = ""
    delete_missing: bool = False
    grace_s: float = 900.0
    wait_s: float = 60.0
    jobs: int = 0
    rate: float | None = None
    max_rejects: int | None = None
    rejects: Path | None = None
    dry_run: bool = False

    @property
    def rejects_allowed(self) -> int:
        """How many lines may be rejected."""
        return MOST_REJECTS if self.max_rejects is None else self.max_rejects


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far it is.

    Attributes:
        doing: ``reading``, ``waiting`` (for the streams) or ``correcting``.
        source: what is being read; while correcting the day.
        done, size: bytes of all sources as they lie on disk, while correcting buckets; size is None
            where it is not known.
        lines, counted, filtered, rejected: lines so far, in this run.
        jobs: job processes at work.
    """

    doing: str
    source: str = ""
    done: int = 0
    size: int | None = None
    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: int = 0
    jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """What became of one source.

    Attributes:
        source: as it was named.
        outcome: ``counted``, ``known`` (nothing new in it), ``empty``, ``failed``.
        detail: for people: what was known of it, or what went wrong.
        lines, counted, filtered, rejected, amount: of this run.
    """

    source: str
    outcome: str
    detail: str = ""
    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: int = 0
    amount: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a backfill did.

    Attributes:
        run: its number; None of a dry run.
        counter, mode: as asked.
        state: ``done``, ``stopped`` (asked to, or too many rejects) or ``failed`` (of some source).
        sources: one for each.
        lines, counted, filtered, rejected, amount: sums; reconcile: amount is that of the
            corrections.
        known_lines: lines that earlier runs had counted.
        by_day: (ISO date, amount) that was, or would be, added; dry runs only.
        corrections: reconcile: how many (key, bucket) differed; they are in backfill_drift.
        drift: dry runs of a reconcile: the first of what differs.
        notices: for people, a sentence each.
    """

    run: int | None
    counter: str
    mode: Mode
    state: str
    sources: tuple[SourceReport, ...] = ()
    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: int = 0
    amount: int = 0
    known_lines: int = 0
    by_day: tuple[tuple[str, int], ...] = ()
    corrections: int = 0
    drift: "tuple[Drift, ...]" = ()
    notices: tuple[str, ...] = ()


class BackfillError(Exception):
    """A backfill cannot go on; the message says what to do."""


class WrongOption(BackfillError):
    """An option cannot be as it is; nothing was read."""


class Unreadable(BackfillError):
    """A source cannot be read: it is gone, no file, cut off or corrupt."""
