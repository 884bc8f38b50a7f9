"""Options of scheduler, job process and jobs, with defaults and checks; cron expressions in a time
zone, with their next times and errors. See ``jobs/__init__.py`` for the jobs' default crons.

cronsim reads the expressions: crontab(5), and Debian's cron where clocks are set. Five fields
(minute, hour, day of month, month, day of week), or six with seconds first. Sunday is 0 and 7.
Where minutes and hours are both named, a time that a clock change skips comes at the first instant
after it, and a time that it repeats comes once. (Not APScheduler's trigger: 0 is its Monday, it
loses the day whose midnight is skipped, and stands still in a repeated hour.) On Lord Howe Island,
whose clocks are set by half an hour, a time within hours of a clock change may be skipped.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Final

from cronsim import CronSim, CronSimError

from countersink.counting.counters.buckets import zone

OFF: Final = "off"
"""The expression of a job without planned times."""
MAX_LENGTH: Final = 255
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Cron:
    """A cron expression in a time zone. All times are aware, in UTC, in whole seconds.

    Attributes:
        text: the expression as given.
        time_zone: the IANA name.

    Raises:
        ValueError: the text is no expression; the message says why.
    """

    def __init__(self, text: str, time_zone: str = "UTC") -> None:
        self.text = text
        self._zone = UTC if time_zone == "UTC" else zone(time_zone)
        self._fields = _MACROS.get(text.lower(), text)
        if len(text) > MAX_LENGTH:
            raise ValueError(f"a cron expression has at most {MAX_LENGTH} characters")
        try:
            CronSim(self._fields, datetime.now(self._zone))
        except CronSimError as error:
            why = str(error)
            raise ValueError(
                f"{text!r} is not a cron expression ({why[:1].lower()}{why[1:]}): five fields"
                " (minute, hour, day of month, month, day of week), six with seconds first, or off"
            ) from None

    def after(self, moment: datetime) -> datetime | None:
        """The first time after ``moment``; None if there is none."""
        for found in CronSim(self._fields, moment.astimezone(self._zone)):
            # In a repeated hour, cronsim returns past times first.
            if (at := found.astimezone(UTC)) > moment:
                return at
        return None


def parse(text: str, time_zone: str = "UTC") -> Cron | None:
    """The expression; None for ``off``.

    Raises:
        ValueError: the text is neither.
    """
    cleaned = " ".join(text.split())
    if cleaned.lower() == OFF:
        zone(time_zone)
        return None
    return Cron(cleaned, time_zone)


SILENT_S: Final = 20.0
"""Seconds without a sign of life after which a run is taken over: schedulers that watched it for so
long give it back, and its own process stops before its next transaction.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of a job, and its time limit.

    Attributes:
        cron: the expression in its time zone; None: off.
        time_zone: the IANA name, also of a job that is off.
        limit_s: seconds that a run may take; it is asked to end a little earlier.
    """

    cron: Cron | None
    time_zone: str = "UTC"
    limit_s: int = 3600

    def __post_init__(self) -> None:
        """Refuse an impossible limit."""
        if not 1 <= self.limit_s <= 7 * 86_400:
            raise ValueError(f"limit_s is {self.limit_s}: 1 second to 7 days are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Options of one scheduler process.

    Attributes:
        mysql_url: of the runs; not in ``repr``.
        redis_url: of RQ's queue; not in ``repr`` either.
        jobs: the times of every job, by name.
        look_every_s: seconds between two passes over jobs and runs, at most.
        silent_s: seconds without a sign of life after which a run is given to another process.
        stop_within_s: seconds after a signal at which the process ends in any case.

    Raises:
        ValueError: a number is out of range, or a job's name is invalid.
    """

    mysql_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    jobs: Mapping[str, Times]
    look_every_s: float = 5.0
    silent_s: float = SILENT_S
    stop_within_s: float = 8.0

    def __post_init__(self) -> None:
        """Refuse invalid numbers and names."""
        _check(self)
        for name in self.jobs:
            # RQ's rule for ids; the column has 64 characters.
            if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is None:
                raise ValueError(f"{name!r} is no name of a job: 1 to 64 letters, digits, _ and -")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of the jobs.

    Attributes:
        compact_grace_s: seconds after a bucket's end before it counts as closed: late events.
        compact_threshold: slot rows per key above which an open bucket is compacted as well.
        compact_rows: slot rows that one transaction of compaction or retention moves, up to eight
            times as many without conflicts.
        compact_share: share of the time spent working, above 0 and at most 1; the rest is pause.
        ledger_days: days that guard rows are kept; may be a fraction.
        alarm_lag_s: seconds that the oldest event may wait in the queue before an alarm.
        alarm_dead: dead rows that may exist before an alarm.
        runs_days: days that ended runs stay in ``job_run``.
        dead_days: days that dead letters are kept; 0: until they are retried or dropped.

    Raises:
        ValueError: a number is out of range; the message says what is allowed.
    """

    compact_grace_s: float = 3600.0
    compact_threshold: int = 8
    compact_rows: int = 2000
    compact_share: float = 0.04
    ledger_days: float = 3.0
    alarm_lag_s: float = 300.0
    alarm_dead: int = 0
    runs_days: float = 90.0
    dead_days: float = 90.0

    def __post_init__(self) -> None:
        """Refuse invalid numbers."""
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 <= value < 2**53:  # refuses NaN, too
                raise ValueError(f"{one.name} is {value}: 0 or more is needed")
        for name in ("compact_threshold", "compact_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if not 0 < self.compact_share <= 1:
            raise ValueError(f"compact_share is {self.compact_share}: above 0 and at most 1")
        if self.ledger_days <= 0:
            raise ValueError(f"ledger_days is {self.ledger_days}: above 0 is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcessOptions:
    """Options of one job process.

    Attributes:
        mysql_url: of the tables; not in ``repr``.
        redis_url: of the streams; not in ``repr`` either.
        jobs_redis_url: of RQ's queue; not in ``repr`` either.
        jobs: options of the jobs.
        attempts: starts of a run at most, including those whose process died.
        retry_after_s: seconds from the first failed attempt to the second; doubled each time.
        beat_every_s: seconds between two signs of life of a run.
        silent_s: seconds without a sign of life after which a run is given to another process.
        wait_s: seconds that a run waits for the run before it of its job; longer than it takes to
            detect a dead process, so that a dead process makes no run be skipped.
        stop_within_s: seconds after a signal at which the process ends in any case.

    Raises:
        ValueError: a number is out of range.
    """

    mysql_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    jobs_redis_url: str = field(repr=False)
    jobs: JobOptions = field(default_factory=JobOptions)
    attempts: int = 3
    retry_after_s: float = 30.0
    beat_every_s: float = 4.0
    silent_s: float = SILENT_S
    wait_s: float = 40.0
    stop_within_s: float = 8.0

    def __post_init__(self) -> None:
        """Refuse invalid numbers."""
        _check(self)
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}: at least 1 is needed")


def _check(options: SchedulerOptions | JobProcessOptions) -> None:
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name.endswith("_s") and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{one.name} is {value}: seconds above 0 are needed")
