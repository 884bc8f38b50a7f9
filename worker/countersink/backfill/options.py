"""Options of a backfill (``BackfillOptions``, ``Recipe``) and its report (``BackfillReport``). See
``cli/commands/log_options.py`` for the flags.

The recipe is the part of the options that decides what each line counts. Equal lines that are read
by the same recipe give the same counts.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec

from countersink.counting.counters.buckets import Width, width_of
from countersink.database.sql import label_time
from countersink.logs.formats import LOG_FORMATS
from countersink.logs.template import Condition
from countersink.logs.times import Clock
from countersink.runtime.texts import NamedRange

Mode = Literal["add", "reconcile"]
INPUT_FORMATS: Final[tuple[str, ...]] = ("auto", *LOG_FORMATS, "csv", "ndjson")
"""Values of ``--input-format``."""
MOST_REJECTS: Final = 100_000
"""Default maximum of rejected lines in a run. If there are more, the format or the directory is
wrong."""
STOPPED = "stopped: run this again to continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The options for reading the lines of a source.

    Attributes:
        input_format: format of the lines. ``auto`` is detected by the first lines, ``log-format``
            is defined by ``log_format``.
        log_format: a log format of Apache or nginx, in their syntax; '' with other input formats.
        envelope: format of the text around each line, such as a syslog prefix; '' if there is none.
        key: template of the key: text with ``{field}``, in which ``{{`` and ``}}`` stand for
            braces. '' stands for the format's default (access logs: ``{path}``).
        dimensions: pairs of a dimension and the field that has its value. With these, lines have
            values of dimensions instead of a key.
        visitor: fields that together identify a visitor, for a counter of different visitors.
        key_column, time_column, amount_column: names of columns in a CSV header, or paths in
            JSON. If they are '', ``key`` or ``dimensions`` make the key, the time is in the field
            of the JSON log's format (CSV and NDJSON need a time column), and each line counts 1.
        more_time_columns: columns whose values are appended to that of the time column, with spaces
            between. Example: a time of day after a date.
        counter_column: the column with a line's counter; lines of other counters are left out. ''
            if there is no such column: then all lines count.
        columns: column names of a CSV file that has no header; empty if it has a header.
        comment: text with which comment lines of a CSV begin; '' if there are no comments.
        delimiter: the one character between fields of a CSV.
        decimal_point, thousands: characters before a fraction, and between groups of three digits,
            in amounts that are written as text. If both are '', amounts that could be read in two
            ways are rejected.
        time_format: ``auto`` to recognize the format of each time, ``unix``, ``unix-ms``,
            ``unix-us``, ``unix-ns``, or a strptime pattern.
        time_zone: IANA name of the zone for times that name no zone. With '', such times are
            refused, except in W3C logs, where they are UTC. Dates alone, in time columns, need no
            zone: they are days in the counter's time zone.
        where: conditions. A line that does not meet all of them is left out.
        exclude_keys: shell patterns. A line whose key matches one of them is left out.
        strip_query: True to remove ``?`` and all after it from keys and from values of dimensions.
        start, end: first and last day, in the counter's time zone; None for no limit. Lines of
            other days are left out.
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
        """Return JSON of the attributes that differ from their defaults, for the column ``options``
        of ``backfill_run`` and ``backfill_source``. Equal recipes give equal texts.
        """
        given = {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default
        }
        return msgspec.json.encode(given).decode()

    def described(self) -> str:
        """Return the options that differ from their defaults, as they are written on the command
        line; ``(none)`` if there are none. Options with the values ``auto`` and ``log-format`` are
        left out.
        """
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
        """The columns whose values, joined by blanks, are the time of a record; empty if there is
        no time column.
        """
        return tuple(name for name in (self.time_column, *self.more_time_columns) if name)

    def clock(self, begins: Callable[[date], int] | None) -> Clock:
        """Return the parser of times. Its error messages name the columns of times. ``begins`` is
        a function from a date to the first Unix minute of that day, for times that are dates; with
        None, days begin at midnight in the recipe's time zone.

        Raises:
            ValueError: the time format or the time zone cannot be used.
        """
        return Clock(self.time_format, self.time_zone, begins, " ".join(self.times))

    def continues(self, before: Self) -> bool:
        """Return whether this recipe differs from ``before`` only by a later first day. Then a
        source that was partly counted with ``before`` may be continued with this recipe.
        """
        later = self.start is not None and (before.start is None or before.start < self.start)
        return later and replace(self, start=before.start) == before

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the recipe from a text that :meth:`to_json` has made."""
        return msgspec.json.decode(text, type=cls)


_OPTIONS: Final = {
    "dimensions": "--dimension",
    "exclude_keys": "--exclude-key-glob",
    "more_time_columns": "--time-column",
    "start": "--from",
    "end": "--to",
}
"""Names of options on the command line, by attribute of :class:`Recipe`, for those attributes whose
names differ from the option's name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """The options of one ``countersink backfill``.

    Attributes:
        counter: name of the counter.
        sources: files, directories, shell patterns; ``-`` is standard input.
        recipe: options for reading the lines of the sources.
        days: first and last day, if one of them is a name such as ``yesterday``; otherwise None. At
            its beginning the run replaces these names by dates, in ``recipe``.
        mode: ``add`` if the sources have events that were never counted; ``reconcile`` if they have
            all events of their days.
        name: text that distinguishes sources with the same content; '' for none.
        delete_missing: True if a reconcile sets a key to 0 when no source has it; False to leave
            such a key unchanged.
        grace_s: seconds that must have passed since the end of a day before a reconcile sets the
            day's buckets.
        wait_s: maximum of seconds that a reconcile waits until entries in the streams are counted.
        jobs: number of child processes that read big sources.
        rate: maximum of lines per second; None for no maximum.
        count_repeats: True to count lines although another source has them, too; False to refuse a
            chunk with many such lines.
        count_lines: True to count each line as 1, although a column probably has amounts; False to
            refuse a source with such a column that no option names.
        max_rejects: maximum of rejected lines of the run; None stands for :data:`MOST_REJECTS`.
        rejects: file for rejected lines; None to write no file.
        dry_run: True to report changes without making them.
    """

    counter: str
    sources: tuple[str, ...]
    recipe: Recipe = field(default_factory=Recipe)
    days: NamedRange | None = None
    mode: Mode = "add"
    name: str = ""
    delete_missing: bool = False
    grace_s: float = 900.0
    wait_s: float = 60.0
    jobs: int = 1
    rate: float | None = None
    count_repeats: bool = False
    count_lines: bool = False
    max_rejects: int | None = None
    rejects: Path | None = None
    dry_run: bool = False

    @property
    def rejects_allowed(self) -> int:
        """Maximum number of rejected lines of the run."""
        return MOST_REJECTS if self.max_rejects is None else self.max_rejects


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a backfill.

    Attributes:
        doing: ``reading``, ``waiting`` (for the streams) or ``correcting``.
        source: name of the source that is read, or the day that is corrected.
        done, size: how much is done, and the total: bytes on disk of all sources, or days while
            correcting. ``size`` is None if the total is unknown.
        lines, counted, filtered, rejected: numbers of lines that this run has read, counted, left
            out and rejected so far; 0 unless ``doing`` is ``reading``.
        jobs: number of child processes that are working.
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


LINE_NUMBERS: Final = ("lines", "counted", "filtered", "rejected", "amount")
"""Names of the numbers in reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """The report of one source.

    Attributes:
        source: name of the source.
        outcome: ``counted``, ``known`` (the source has no new lines), ``rejected`` (all new lines
            were rejected), ``empty`` or ``failed``.
        detail: text for users: the error, or why there are no new lines, or how many lines were
            counted before; '' if there is nothing to say.
        lines, counted, filtered, rejected: numbers of lines that this run has read, counted, left
            out and rejected.
        amount: sum of the amounts of the counted lines.
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
    """A cell whose total differs from the sum of a reconcile's sources.

    Attributes:
        day: day of the cell, in the counter's time zone.
        bucket: beginning of the bucket, as in the column ``bucket``: naive UTC; for a day its date.
        width: width of the bucket.
        key: key of the cell.
        had: total before the correction.
        should_be: sum of the sources.
    """

    day: date
    bucket: datetime
    width: Width
    key: str
    had: int
    should_be: int

    @staticmethod
    def make(day: date, label: int, key: bytes, had: int, should_be: int) -> "Drift":
        """Return the drift of a cell. ``label`` is the label of its bucket, a number for the
        bucket's beginning and width. Bytes of ``key`` that are not UTF-8 are replaced.
        """
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
        """The amount that must be added to the cell to correct it."""
        return self.should_be - self.had


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """The report of a backfill.

    Attributes:
        run: number of the run; None for a dry run, or if it ended before it had a number (there are
            no sources, or a reconcile was stopped while it waited).
        counter, mode: as in the options.
        state: ``done``, ``stopped`` (on request, or by too many rejected lines) or ``failed`` (a
            source failed, there are no sources, or ``reconcile.unreliable`` forbade to correct).
        sources: one report for each source that was opened or could not be opened, and for each
            name that stands for no file.
        lines, counted, filtered, rejected: sums of these numbers in the reports of the sources.
        amount: sum of the added amounts, or of a reconcile's corrections; of a dry run: of those
            that a real run would make.
        known_lines: number of lines of these sources in chunks that others have counted: earlier
            runs, other processes, or this run from another file with the same content.
        by_day: (ISO date, amount) pairs that a dry run in mode ``add`` would add; else empty.
        corrections: number of cells whose total a reconcile has corrected, or a dry run would
            correct.
        drift: the first differences that a dry run of a reconcile has found; else empty.
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
    """Return a report whose numbers of lines and amount are the sums of the numbers in ``sources``,
    the reports of the sources. ``options`` give its counter and mode. The other arguments become
    the attributes of :class:`BackfillReport` with the same names.
    """
    sums: dict[str, Any] = {
        name: sum(getattr(each, name) for each in sources) for name in LINE_NUMBERS
    }
    return BackfillReport(
        run=run,
        counter=options.counter,
        mode=options.mode,
        state=state,
        sources=tuple(sources),
        **sums,
        known_lines=known_lines,
        by_day=tuple(by_day),
        notices=tuple(notices),
    )
