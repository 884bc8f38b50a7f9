"""What is asked of a backfill and reported of it: ``Recipe``, ``BackfillOptions`` with defaults,
the default number of rejected lines (``MOST_REJECTS``), ``BackfillReport``; flags and help are in
``cli/``.

The recipe says how lines become counts: what has to be the same for the same result.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from countersink.counting.counters.buckets import Width, width_of
from countersink.database.sql import label_time
from countersink.logs.formats import LOG_FORMATS
from countersink.logs.template import Condition

Mode = Literal["add", "reconcile"]
INPUT_FORMATS: Final[tuple[str, ...]] = ("auto", *LOG_FORMATS, "csv", "ndjson")
"""Those that are told by their names."""
MOST_REJECTS: Final = 100_000
"""Rejected lines that end a run where nothing else is asked for: the format or the directory is a
wrong one.
"""
STOPPED = "it was told to stop: run it again, and it goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a source is read.

    Attributes:
        input_format: what a line is; ``auto``: what its source's first lines tell, ``log-format``:
            what ``log_format`` says.
        log_format: in the words of Apache or of nginx.
        envelope: what each line stands in, such as a prefix of syslog; '': nothing.
        key: template of the key: text with ``{field}``, where ``{{`` and ``}}`` are braces; '':
            the format's own (access logs: ``{path}``).
        dimensions: (name, field) pairs: lines have the values of these dimensions, and no key.
        visitor: fields that together say who was seen, of a counter of different visitors.
        key_column, time_column, amount_column: CSV: names in the header; NDJSON: paths; '': the
            format's own. Without an amount column each line counts 1.
        more_time_columns: what is joined to the time column, with spaces between, such as a time of
            day to a date.
        counter_column: where a line's counter is; only those of the source's own count. '': all
            count.
        columns: CSV: the names of the columns of a file without a header.
        comment: CSV: how lines begin that are none; '': there are none.
        delimiter: CSV; one character.
        decimal_point, thousands: of amounts that are texts: a character before a fraction, and one
            between groups of three digits; '': amounts that could have either are refused.
        time_format: ``auto``, ``unix``, ``unix-ms``, ``unix-us``, ``unix-ns``, or a pattern of
            strptime.
        time_zone: IANA name for times without one; '': such lines are rejected.
        where: all must hold, or the line is left out.
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
        """The same text for the same recipe; what is as by default is left out."""
        given = {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default
        }
        return msgspec.json.encode(given).decode()

    def described(self) -> str:
        """What is not as by default, as options of the command line; ``(none)``: nothing is."""
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

    def goes_on(self, before: Self) -> bool:
        """Whether it is ``before`` from a later day on: a source of which that has counted some may
        be read on by it.
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
"""Options that are called otherwise than the attributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """The options of one ``countersink backfill``.

    Attributes:
        counter: which.
        sources: files, directories, shell patterns; ``-`` is standard input.
        recipe: how they are read.
        mode: ``add``: these events never arrived; ``reconcile``: they are the whole truth.
        name: tells sources of the same content apart.
        delete_missing: reconcile: keys that no source has go to zero.
        grace_s: reconcile: seconds after its end at which a day counts as over.
        wait_s: reconcile: seconds to wait for what is in the streams.
        jobs: how many child processes read big sources.
        rate: lines per second at most; None: as fast as it goes.
        count_repeats: lines of a source count that another source has, too.
        max_rejects: more rejected lines than this end the run; None: :data:`MOST_REJECTS`.
        rejects: where to write them; None: nowhere.
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
    jobs: int = 1
    rate: float | None = None
    count_repeats: bool = False
    max_rejects: int | None = None
    rejects: Path | None = None
    dry_run: bool = False

    @property
    def rejects_allowed(self) -> int:
        """How many lines may be rejected."""
        return MOST_REJECTS if self.max_rejects is None else self.max_rejects


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a backfill is.

    Attributes:
        doing: ``reading``, ``waiting`` (for the streams) or ``correcting``.
        source: what is being read; while correcting the day.
        done, size: bytes of all sources as they lie on disk, while correcting days; size is None
            where it is not known.
        lines, counted, filtered, rejected: lines so far, in this run.
        jobs: child processes at work.
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
    """What a backfill reports of one source.

    Attributes:
        source: as it was named.
        outcome: ``counted``, ``known`` (nothing new in it), ``rejected`` (all new lines of it),
            ``empty``, ``failed``.
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
class Drift:
    """A key's bucket that was not what the sources say.

    Attributes:
        day: in the counter's time zone.
        bucket: as it is in the tables.
        width: of the bucket.
        key: the key.
        had: the total before.
        should_be: what the sources say.
    """

    day: date
    bucket: datetime
    width: Width
    key: str
    had: int
    should_be: int

    @staticmethod
    def of(day: date, label: int, key: bytes, had: int, should_be: int) -> "Drift":
        """That of a bucket of a day, by its label, and a key."""
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
        """What was added to correct it."""
        return self.should_be - self.had


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """What a backfill reports at its end.

    Attributes:
        run: its number; None of a dry run.
        counter, mode: as asked.
        state: ``done``, ``stopped`` (asked to, or too many rejects) or ``failed`` (of some source).
        sources: one for each.
        lines, counted, filtered, rejected, amount: sums; reconcile: amount is that of the
            corrections.
        known_lines: lines that earlier runs had counted.
        by_day: (ISO date, amount) that was, or would be, added; dry runs only.
        corrections: reconcile: how many (key, bucket) differed; they are in backfill_correction.
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
    """A report with the sums of its sources'."""
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
