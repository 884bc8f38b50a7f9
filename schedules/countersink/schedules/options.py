"""Options of the scheduler, of job processes and of jobs, with their defaults and checks. Also
``Cron``, the class of cron expressions in a time zone, which finds the next planned time. See
``jobs/__init__.py`` for the default expression of each job.

The library cronsim reads the expressions, by the rules of crontab(5). An expression has five fields
(minute, hour, day of month, month, day of week), or six with seconds first. Sunday is 0 and 7.

Changes of the clocks are treated as by Debian's cron. If neither the minute nor the hour begins
with ``*``, a time that a clock change skips comes at the first instant after the change, and a time
that the change repeats comes once. On Lord Howe Island, where clocks change by half an hour, a time
within hours of a clock change may be skipped.

APScheduler's cron trigger is not used: its 0 is Monday, it loses a day whose midnight is skipped,
and it stands still in an hour that is repeated.
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
"""The text that a job without planned times has in place of a cron expression."""
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
    """A cron expression in a time zone. All times are aware, in UTC, and in whole seconds.

    Args:
        text: the expression, or a name such as ``@daily`` for one.
        time_zone: IANA name of the time zone in which the expression's fields are read.

    Attributes:
        text: the expression as given.

    Raises:
        ValueError: the text is no cron expression, or is longer than ``MAX_LENGTH``, or the time
            zone is unknown; the message says why.
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
        """Return the first planned time after ``moment``; None if there is none."""
        for found in CronSim(self._fields, moment.astimezone(self._zone)):
            # In a repeated hour, cronsim returns past times first.
            if (at := found.astimezone(UTC)) > moment:
                return at
        return None


def parse(text: str, time_zone: str = "UTC") -> Cron | None:
    """Return the cron expression in ``text``; None if ``text`` is ``off``.

    Args:
        text: a cron expression, or ``off`` in any case of letters.
        time_zone: IANA name of the expression's time zone. It is checked for ``off``, too.

    Raises:
        ValueError: the text is neither an expression nor ``off``, or the time zone is unknown.
    """
    cleaned = " ".join(text.split())
    if cleaned.lower() == OFF:
        zone(time_zone)
        return None
    return Cron(cleaned, time_zone)


SILENT_S: Final = 20.0
"""Seconds without a sign of life after which another process takes over a run. A sign of life is a
time that the run's process writes into the run's row. A scheduler that has seen no new one for this
long lets the run be started again. The run's own process, if it is still there, stops before its
next transaction.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The planned times of a job, and its time limit.

    Attributes:
        cron: cron expression of the planned times; None if the job is ``off``.
        time_zone: IANA name of the expression's time zone. A job that is ``off`` has one, too.
        limit_s: seconds that a run of the job may take. A run is asked to stop a little earlier.

    Raises:
        ValueError: the limit is below 1 second or above 7 days.
    """

    cron: Cron | None
    time_zone: str = "UTC"
    limit_s: int = 3600

    def __post_init__(self) -> None:
        """Check ``limit_s``: see the class."""
        if not 1 <= self.limit_s <= 7 * 86_400:
            raise ValueError(f"limit_s is {self.limit_s}: 1 second to 7 days are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Options of one scheduler process.

    Attributes:
        mysql_url: URL of the database that has the runs; not in ``repr``, because it has a
            password.
        redis_url: URL of the Redis that has RQ's queue; not in ``repr``, for the same reason.
        jobs: planned times of each job, by the job's name.
        look_every_s: maximum seconds between two passes. In each pass the scheduler reads the jobs
            and the runs.
        silent_s: seconds without a heartbeat after which a run is given to another process: see
            :data:`SILENT_S`.
        stop_within_s: seconds after a stop signal at which the process ends in any case.

    Raises:
        ValueError: a number of seconds is not above 0, or is infinite; or a job's name is not 1 to
            64 letters, digits, _ and -.
    """

    mysql_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    jobs: Mapping[str, Times]
    look_every_s: float = 5.0
    silent_s: float = SILENT_S
    stop_within_s: float = 8.0

    def __post_init__(self) -> None:
        """Check the numbers and the names of jobs."""
        _check(self)
        for name in self.jobs:
            # RQ's rule for ids; the column has 64 characters.
            if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is None:
                raise ValueError(f"{name!r} is no name of a job: 1 to 64 letters, digits, _ and -")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of the jobs.

    Attributes:
        compact_grace_s: seconds that must have passed since the end of a bucket before it counts as
            closed. Until then, late events are expected.
        compact_threshold: number of slot rows, without slot 0, that a key may have in an open
            bucket. Keys with more are compacted there, and some of the smaller keys that lie
            between them. In closed buckets, all keys are compacted.
        compact_rows: about how many slot rows a transaction of compaction or retention moves at
            first. Without conflicts with writers the number grows, up to eight times this value (in
            open buckets, up to this value); after conflicts it shrinks.
        compact_share: share of the time in which compaction, retention and pruning work, above 0
            and at most 1. In the rest of the time they pause.
        ledger_days: days for which guard rows are kept, with or without a fraction. They are kept
            for longer while an older entry is still in a stream.
        alarm_lag_s: seconds that the oldest entry may have waited in the queue. If it has waited
            longer, an alarm is raised.
        alarm_dead: number of dead letters that may exist, with those that were only counted because
            there was no room for them. If there are more, an alarm is raised.
        runs_days: days after its planned time for which an ended run is kept in the table
            ``job_run``.
        dead_days: days for which dead letters are kept. With 0 they are kept until somebody retries
            or drops them.

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
        """Check the numbers."""
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
        mysql_url: URL of the database with the tables; not in ``repr``, because it has a password.
        redis_url: URL of the Redis with the streams; not in ``repr``, for the same reason.
        jobs_redis_url: URL of the Redis that has RQ's queue; not in ``repr``, for the same reason.
        jobs: options of the jobs.
        attempts: maximum number of attempts of a run. An attempt whose process died counts; an
            attempt that was stopped, because its process was to end, does not count.
        retry_after_s: seconds between the first failed attempt and the second attempt. After each
            further failure the pause is twice as long.
        beat_every_s: seconds between two heartbeats of a run.
        silent_s: seconds without a heartbeat after which a run is given to another process: see
            :data:`SILENT_S`.
        wait_s: seconds that a run waits for the end of its job's previous run. If the previous run
            still writes heartbeats then, the waiting run is skipped. The default is longer than
            ``silent_s``: if the process of the previous run is dead, that is detected within the
            wait, and no run is skipped because of it.
        stop_within_s: seconds after a stop signal at which the process ends in any case.

    Raises:
        ValueError: a number of seconds is not above 0, or is infinite; or ``attempts`` is below 1.
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
        """Check the numbers."""
        _check(self)
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}: at least 1 is needed")


def _check(options: SchedulerOptions | JobProcessOptions) -> None:
    """Check the options whose names end with ``_s``. They are numbers of seconds.

    Raises:
        ValueError: such an option is not above 0, or is infinite.
    """
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name.endswith("_s") and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{one.name} is {value}: seconds above 0 are needed")
