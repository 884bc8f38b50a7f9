"""What a job is given and what it gives back.

A job is a function ``def job(context: Context) -> Outcome``. It may be killed at any point and run
again: what it has done so far is in MySQL, committed in small transactions. It fails by raising.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields


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
class Context:
    """What a run of a job works with.

    Attributes:
        mysql_url: where the tables are; holds a password, so it is not in ``repr``.
        redis_url: where the streams are, not RQ's queue; not in ``repr`` either.
        options: the jobs' settings.
        stop: true once the run should end soon, in good order; cheap to call, from any thread.
    """

    mysql_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    options: JobOptions
    stop: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did.

    Attributes:
        rows: that it moved, deleted or looked at.
        detail: one sentence for people.
        finished: False if it ended before its work was done, since it was to stop; what it did
            stays done, and another run goes on from there.
    """

    rows: int
    detail: str
    finished: bool = True


Job = Callable[[Context], Outcome]
