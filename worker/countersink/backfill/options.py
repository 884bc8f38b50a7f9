"""Options of a backfill (``BackfillOptions``, ``Recipe``) and its report (``BackfillReport``). See
``cli/commands/log_options.py`` for the flags.

The recipe has the options by which lines become counts: sources that are read by the same recipe
give the same counts.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from countersink.counting.counters.buckets import Width, width_of
from countersink.database.sql import label_time
from countersink.logs.formats import LOG_FORMATS
from countersink.logs.template import Condition
from countersink.logs.times import Clock

Mode = Literal["add", "reconcile"]
INPUT_FORMATS: Final[tuple[str, ...]] = ("auto", *LOG_FORMATS, "csv", "ndjson")
"""Formats that have a name."""
MOST_REJECTS: Final = 100_000
"""Default maximum of rejected lines of a run: with more, the format or the directory is wrong."""
STOPPED = "stopped: run this again to continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The options for reading the lines of a source.

    Attributes:
        input_format: format of the lines; ``auto``: detected from the first lines; ``log-format``:
            defined by ``log_format``.
        log_format: a log format of Apache or nginx, in their syntax.
        envelope: format around each line, such as a syslog prefix; '': none.
        key: template of the key: text with ``{field}``, where ``{{`` and ``}}`` are braces; '':
            the format's default (access logs: ``{path}``).
        dimensions: (name, field) pairs: lines have the values of these dimensions, and no key.
        visitor: fields that together identify a visitor, for a counter of different visitors.
        key_column, time_column, amount_column: CSV: names in the header; NDJSON: paths; '': the
            format's default. Without an amount column each line counts 1.
        more_time_columns: columns that are appended to the time column with spaces between, such as
            a time of day to a date.
        counter_column: the column with a line's counter; lines of other counters are left out. '':
            all lines count.
        columns: CSV: the column names of a file without a header.
        comment: CSV: the beginning of comment lines; '': there are no comments.
        delimiter: CSV: one character between fields.
        decimal_point, thousands: in amounts that are texts: the character before a fraction, and
            the character between groups of three digits; '': ambiguous amounts are rejected.
        time_format: ``auto``, ``unix``, ``unix-ms``, ``unix-us``, ``unix-ns``, or a strptime
            pattern.
        time_zone: IANA name for times without a zone; '': such lines are rejected.
        where: conditions; lines that do not meet all of them are left out.
        exclude_keys: shell patterns; lines whose key matches one are left out.
        strip_query: keys, and values of dimensions, end before their ``?``.
        start, end: days of the counter, both inclusive; other lines are left out.
    """

    input_format: str = "combined"
    log_format: str = ""
    envelope: str = ""
    key: str = ""
    dimensions: tuple[tuple[str, str], ...] = ()
    visitor: tuple[str, ...] = ()
    key_column: str = ""
    time_column: str = ""
    more_time_columns: tuple[str, ...] = ()
    amount_column: str = ""
    counter_column: str = ""
    columns: tuple[str, ...] = ()
    comment: str = ""
    delimiter: str = ","
    decimal_point: str = ""
    thousands: str = ""
    time_format: str = "auto"
    time_zone: str = ""
    where: tuple[Condition, ...] = ()
    exclude_keys: tuple[str, ...] = ()
    strip_query: bool = False
    start: date | None = None
    end: date | None = None

    def to_json(self) -> str:
        """JSON without attributes that have their default; equal recipes give equal texts."""
        given = {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default
        }
        return msgspec.json.encode(given).decode()

    def described(self) -> str:
        """The options that differ from their defaults, as on the command line, or ``(none)``."""
        words: list[str] = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value in (one.default, "auto", "log-format"):
                continue
            option = _OPTIONS.get(one.name) or "--" + one.name.replace("_", "-")
            if one.name in ("columns", "visitor"):
                value = ",".join(value)
            for each in value if isinstance(value, tuple) else (value,):
                text = "=".join(each) if isinstance(each, tuple) else str(each)
                words += [option] if each is True else [option, shlex.quote(text)]
        return " ".join(words) or "(none)"

    @property
    def times(self) -> tuple[str, ...]:
        """The columns whose values, joined by blanks, are a record's time."""
        return tuple(name for name in (self.time_column, *self.more_time_columns) if name)

    def clock(self, begins: Callable[[date], int] | None) -> Clock:
        """The reader of times; its error messages name their columns."""
        return Clock(self.time_format, self.time_zone, begins, " ".join(self.times))

    def continues(self, before: Self) -> bool:
        """Whether this recipe differs from ``before`` only by a later first day, so that a source
        partly counted by ``before`` may be read on by this one.
        """
        later = self.start is not None and (before.start is None or before.start < self.start)
        return later and replace(self, start=before.start) == before

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The recipe that :meth:`to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


_OPTIONS: Final = {
    "dimensions": "--dimension",
    "exclude_keys": "--exclude-key-glob",
    "more_time_columns": "--time-column",
    "start": "--from",
    "end": "--to",
}
"""Options with other names than their attributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """The options of one ``countersink backfill``.

    Attributes:
        counter: its name.
        sources: files, directories, shell patterns; ``-`` is standard input.
        recipe: for their lines.
        mode: ``add``: the sources have events that never arrived; ``reconcile``: the sources have
            all events of their days.
        name: distinguishes sources of the same content.
        delete_missing: reconcile: set keys that no source has to 0.
        grace_s: reconcile: seconds after the end of a day from which it can be set.
        wait_s: reconcile: maximum of seconds to wait for entries in the streams.
        jobs: number of child processes that read big sources.
        rate: maximum of lines per second; None: no maximum.
        count_repeats: count lines although another source has them, too.
        max_rejects: maximum of rejected lines of the run; None: :data:`MOST_REJECTS`.
        rejects: file for rejected lines; None: none.
        dry_run: report changes without making them.
    """

    counter: str
    sources: tuple[str, ...]
    recipe: Recipe = field(default_factory=Recipe)
    mode: Mode = "add"
    name: str = ""
    delete_missing: bool = False
    grace_s: float = 900.0
    wait_s: float = 60.0
    jobs: int = 1
    rate: float | None = None
    count_repeats: bool = False
    max_rejects: int | None = None
    rejects: Path | None = None
    dry_run: bool = False

    @property
    def rejects_allowed(self) -> int:
        """Maximum of rejected lines."""
        return MOST_REJECTS if self.max_rejects is None else self.max_rejects


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a backfill.

    Attributes:
        doing: ``reading``, ``waiting`` (for the streams) or ``correcting``.
        source: the source being read; the day while correcting.
        done, size: bytes on disk of all sources; days while correcting. Size is None if unknown.
        lines, counted, filtered, rejected: lines of this run so far.
        jobs: number of working child processes.
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
    """The report of one source.

    Attributes:
        source: its name.
        outcome: ``counted``, ``known`` (no new lines), ``rejected`` (all new lines), ``empty``,
            ``failed``.
        detail: for users: lines counted before, or the error.
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
class Drift:
    """A cell whose total differs from the truth of a reconcile.

    Attributes:
        day: in the counter's time zone.
        bucket: beginning of the bucket, as in the tables.
        width: of the bucket.
        key: the key.
        had: the total before.
        should_be: the sum of the sources.
    """

    day: date
    bucket: datetime
    width: Width
    key: str
    had: int
    should_be: int

    @staticmethod
    def make(day: date, label: int, key: bytes, had: int, should_be: int) -> "Drift":
        """The drift of the cell with a bucket's label and a key."""
        return Drift(
            day=day,
            bucket=label_time(label),
            width=width_of(label),
            key=key.decode(errors="replace"),
            had=had,
            should_be=should_be,
        )

    @property
    def delta(self) -> int:
        """The amount that corrects the cell."""
        return self.should_be - self.had


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """The report of a backfill.

    Attributes:
        run: its number; None: a dry run.
        counter, mode: of the options.
        state: ``done``, ``stopped`` (on request, or by too many rejected lines) or ``failed``
            (a source failed, or nothing was corrected).
        sources: one report for each.
        lines, counted, filtered, rejected, amount: sums; of a reconcile, the amount of the
            corrections.
        known_lines: lines that earlier runs have counted.
        by_day: (ISO date, amount) that would be added; dry runs only.
        corrections: reconcile: number of cells that differed; see ``backfill_correction``.
        drift: dry runs of a reconcile: the first differences.
        notices: sentences for users.
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
    drift: tuple[Drift, ...] = ()
    notices: tuple[str, ...] = ()


def report(
    options: BackfillOptions,
    run: int | None,
    state: str,
    sources: Sequence[SourceReport],
    *,
    known_lines: int = 0,
    by_day: Sequence[tuple[str, int]] = (),
    notices: Iterable[str] = (),
) -> BackfillReport:
    """A report with the sums of its sources."""
    return BackfillReport(
        run=run,
        counter=options.counter,
        mode=options.mode,
        state=state,
        sources=tuple(sources),
        lines=sum(each.lines for each in sources),
        counted=sum(each.counted for each in sources),
        filtered=sum(each.filtered for each in sources),
        rejected=sum(each.rejected for each in sources),
        amount=sum(each.amount for each in sources),
        known_lines=known_lines,
        by_day=tuple(by_day),
        notices=tuple(notices),
    )
