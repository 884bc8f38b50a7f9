"""Settings of scheduler, job process and jobs: looks, signs of life, attempts, pause before a
retry, compaction, days kept, limits of alarms; defaults, checks, error messages; default crons are
in ``jobs/__init__.py``. Cron expressions in a time zone: the next time, and the errors. What they
mean is what cronsim makes of them: crontab(5), and Debian's cron where clocks are set.

Five fields (minute, hour, day of month, month, day of week), or six with seconds first. Sunday is 0
and 7. Where minutes and hours are both named, a time that a clock change leaves out comes at the
first instant after it, and one that it repeats comes once. (Not APScheduler's trigger: 0 is its
Monday, it loses the day whose midnight is left out, and stands still in a repeated hour.) On Lord
Howe Island, whose clocks are set by half an hour, a time within hours of that may be left out.
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
"""The expression of a job that is not planned."""
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
    """An expression in a time zone. All times in and out are aware and in UTC, whole seconds.

    Attributes:
        text: the expression as it was given.
        time_zone: the IANA name.

    Raises:
        ValueError: it is none; the message says what is wrong with it.
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
            # In an hour that is repeated, times that have been come first.
            if (at := found.astimezone(UTC)) > moment:
                return at
        return None


def parse(text: str, time_zone: str = "UTC") -> Cron | None:
    """The expression; None for ``off``.

    Raises:
        ValueError: it is neither.
    """
    cleaned = " ".join(text.split())
    if cleaned.lower() == OFF:
        zone(time_zone)
        return None
    return Cron(cleaned, time_zone)


SILENT_S: Final = 20.0
"""Seconds without a sign of life after which a run is another's: schedulers that have watched it
for so long give it back, and its own process stops before its next transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When a job runs, and for how long.

    Attributes:
        cron: the expression in its time zone; None: off.
        time_zone: the IANA name, also of a job that is off.
        limit_s: seconds that a run may take; it is told to end a little earlier.
    """

    cron: Cron | None
    time_zone: str = "UTC"
    limit_s: int = 3600

    def __post_init__(self) -> None:
        """Refuse what no run could keep to."""
        if not 1 <= self.limit_s <= 7 * 86_400:
            raise ValueError(f"limit_s is {self.limit_s}: 1 second to 7 days")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Settings of one scheduler process.

    Attributes:
        mysql_url: where the runs are; not in ``repr``.
        redis_url: where RQ's queue is; not in ``repr`` either.
        jobs: the times of every job, by name.
        look_every_s: seconds between two looks at what is due, at most.
        silent_s: seconds without a sign of life after which a run is given to another process.
        stop_within_s: seconds after a signal at which the process ends, come what may.

    Raises:
        ValueError: a number is out of range, or a name cannot be one.
    """

    mysql_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    jobs: Mapping[str, Times]
    look_every_s: float = 5.0
    silent_s: float = SILENT_S
    stop_within_s: float = 8.0

    def __post_init__(self) -> None:
        """Refuse what no scheduler could run with."""
        _check(self)
        for name in self.jobs:
            # RQ's rule for ids; the column has 64 characters.
            if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is None:
                raise ValueError(f"{name!r} cannot be a job: 1 to 64 letters, digits, _ and -")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Everything about the jobs that can be set.

    Attributes:
        compact_grace_s: seconds a bucket has been over before it counts as closed: late events.
        compact_threshold: slot rows per key above which an open bucket is compacted as well.
        compact_rows: slot rows that one transaction of compaction or retention moves, up to eight
            times as many where nobody is in the way.
        compact_share: share of the time spent working, above 0 and at most 1; the rest is pause.
        ledger_days: days that guard rows are kept, as a fraction too.
        alarm_lag_s: seconds that the oldest event may wait in the queue before it is an alarm.
        alarm_dead: dead rows that may lie there before it is an alarm.
        runs_days: days that ended runs stay in ``job_run``.
        dead_days: days that dead letters are kept; 0: until somebody retries or drops them.

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
        """Refuse what no job could run with."""
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 <= value < 2**53:  # not a number is neither
                raise ValueError(f"{one.name} is {value}: 0 or more is needed")
        for name in ("compact_threshold", "compact_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if not 0 < self.compact_share <= 1:
            raise ValueError(f"compact_share is {self.compact_share}: above 0 and at most 1")
        if self.ledger_days <= 0:
            raise ValueError(f"ledger_days is {self.ledger_days}: above 0 is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOptions:
    """Settings of one job process.

    Attributes:
        mysql_url: where the tables are; not in ``repr``.
        redis_url: where the streams are; not in ``repr`` either.
        jobs_redis_url: where RQ's queue is; not in ``repr`` either.
        jobs: what the jobs themselves can be told.
        attempts: times a run is started at most, those that ended with their process included.
        retry_after_s: seconds from the first failed attempt to the second; doubled each time.
        beat_every_s: seconds between two signs of life of a run.
        silent_s: seconds after the last one from which a run is another's to start.
        wait_s: seconds that a run waits for the one before it of its job; longer than it takes to
            find that one's process gone, so that a dead process makes nobody skip a run.
        stop_within_s: seconds after a signal at which the process ends, come what may.

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
        """Refuse what no job process could run with."""
        _check(self)
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}: at least 1 is needed")


def _check(options: SchedulerOptions | JobsOptions) -> None:
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name.endswith("_s") and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{one.name} is {value}: seconds above 0")
