"""Options of a sequence (start, step, minimum, maximum, cycle, period, time zone): checks with
error messages, limits of names and numbers, where its periods begin, and which values come next.

A period is known by its first day, a local date; the column ``period`` holds that day's midnight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, timedelta
from typing import Any, Final, Literal, TypedDict, get_args

from countersink.counting.counters import buckets
from countersink.database.errors import UnknownZone
from countersink.sequences.errors import SequenceExhausted

MIN_VALUE: Final = -(2**63)
MAX_VALUE: Final = 2**63 - 1
MAX_NAME_BYTES: Final = 255
PeriodLength = Literal["none", "day", "month", "year"]
PERIODS: Final[tuple[PeriodLength, ...]] = get_args(PeriodLength)
ALL_TIME: Final = date(1970, 1, 1)
"""The one period of a sequence without periods, and of each sequence's base row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOptions:
    """A sequence's options. The defaults are those of a sequence that nobody has configured.

    Attributes:
        start: first value of each period; None: the step.
        step: from a value to the next one, unless the caller gives another.
        minimum: smallest value; None: that of 64 bits.
        maximum: largest value; None: that of 64 bits.
        cycle: begin again at ``start`` where the next value would be beyond the limits.
        period: ``none``, ``day``, ``month`` or ``year``: when it begins anew.
        time_zone: IANA name; whose midnights begin the periods.
    """

    start: int | None = None
    step: int = 1
    minimum: int | None = None
    maximum: int | None = None
    cycle: bool = False
    period: PeriodLength = "none"
    time_zone: str = "UTC"

    @property
    def first(self) -> int:
        """The value that a period begins with."""
        return self.step if self.start is None else self.start

    def period_of(self, day: date) -> date:
        """The first day of the period that a local date lies in."""
        month = day.replace(day=1)
        begins = {"none": ALL_TIME, "day": day, "month": month, "year": month.replace(month=1)}
        return begins[self.period]

    def period_at(self, instant: int) -> date:
        """The first day of the period at an instant, in Unix seconds.

        Raises:
            UnknownZone: the time zone is unknown on this machine.
        """
        if self.period == "none":
            return ALL_TIME
        try:
            day = buckets.date_at(self.time_zone, instant)
        except ValueError as error:
            raise UnknownZone(
                f"the sequence's periods begin in {self.time_zone}, a time zone that is unknown"
                " here: install a newer tzdata (pip install --upgrade tzdata)"
            ) from error
        # Where clocks are put back across midnight, a date comes again: what has begun has begun.
        following = day + timedelta(days=1)
        begun = buckets.day_begins(self.time_zone, following) <= instant
        return self.period_of(following if begun else day)

    def allow(self, value: int) -> bool:
        """Whether ``value`` is within the limits."""
        least = MIN_VALUE if self.minimum is None else self.minimum
        most = MAX_VALUE if self.maximum is None else self.maximum
        return least <= value <= most


class OptionChanges(TypedDict, total=False):
    """New values of some options; None: the default."""

    start: int | None
    step: int | None
    minimum: int | None
    maximum: int | None
    cycle: bool | None
    period: PeriodLength | None
    time_zone: str | None


DEFAULTS: Final = SequenceOptions()
FIELDS: Final = tuple(field.name for field in fields(SequenceOptions))


@dataclass(frozen=True, slots=True)
class ValueRequest:
    """What a caller asks of a sequence: step, start, number of values.

    Attributes:
        step: None: the configured one.
        start: the first value, where there is none yet; None: the configured one, else the step.
        n: how many values.

    Raises:
        TypeError, ValueError: as :func:`number`; or a step of 0, or no value at all, or a block
            wider than 64 bits.
    """

    step: int | None = None
    start: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        if self.start is not None:
            number(self.start, "a start")
        if number(self.n, "the size of a block") < 1:
            raise ValueError(f"a block has at least 1 value, not {self.n}")
        if self.step is None:
            return
        if not MIN_VALUE <= self.n * step_number(self.step) <= MAX_VALUE:
            raise ValueError(f"{self.n} values that are {self.step} apart do not fit into 64 bits")


def next_values(
    name: bytes, options: SequenceOptions, last: int | None, asked: ValueRequest
) -> range:
    """The values that follow ``last``, which is None where the period has none yet.

    Raises:
        SequenceExhausted: they would be beyond the sequence's limits or 64 bits.
    """
    step = asked.step or options.step
    if last is not None:
        firsts = [last + step, options.first] if options.cycle else [last + step]
    elif asked.start is not None:
        firsts = [asked.start]
    else:
        firsts = [step if options.start is None else options.start]
    for first in firsts:
        block = range(first, first + asked.n * step, step)
        if options.allow(block[0]) and options.allow(block[-1]):
            return block
    what = "value" if asked.n == 1 else f"block of {asked.n} values"
    raise SequenceExhausted(
        f"the sequence {name_text(name)!r} has no {what} left within its limits: set or reset it"
        " (if it has no value yet: give another start), or configure other limits"
    )


def check_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values for fields of SequenceOptions, with the default where None was given.

    Raises:
        TypeError, ValueError: one that can never be, or no such field.
    """
    replace(DEFAULTS, **changes)  # raises for a name that is no field
    return {
        field: getattr(DEFAULTS, field) if value is None else _option(field, value)
        for field, value in changes.items()
    }


def _option(field: str, value: Any) -> Any:
    if field == "step":
        return step_number(value)
    if field in ("start", "minimum", "maximum"):
        return number(value, field)
    if field == "period" and value not in PERIODS:
        raise ValueError(f"period {value!r}: one of {', '.join(PERIODS)}")
    if field == "time_zone":
        if not isinstance(value, str):
            raise TypeError(f"a time zone is a str, not {type(value).__name__}")
        buckets.zone(value)
    if field == "cycle" and not isinstance(value, bool):
        raise TypeError(f"cycle is True or False, not {value!r}")
    return value


def changed(before: SequenceOptions, changes: Mapping[str, Any]) -> SequenceOptions:
    """The options after ``changes``, which :func:`check_changes` has checked.

    Raises:
        ValueError: they contradict each other; says which one to change.
    """
    after = replace(before, **changes)
    if after.minimum is not None and after.maximum is not None and after.minimum > after.maximum:
        raise ValueError(f"the minimum {after.minimum} is above the maximum {after.maximum}")
    if not after.allow(after.first):
        raise ValueError(
            f"the start (by default the step) {after.first} is not within the limits"
            f" {limits(after)}: give a start that is"
        )
    if after.cycle and (after.maximum if after.step > 0 else after.minimum) is None:
        missing = "maximum" if after.step > 0 else "minimum"
        raise ValueError(f"a sequence that cycles needs an end to begin again at: give a {missing}")
    return after


def limits(options: SequenceOptions) -> str:
    """The limits, for messages."""
    least = "-2**63" if options.minimum is None else options.minimum
    most = "2**63-1" if options.maximum is None else options.maximum
    return f"{least} to {most}"


def name_bytes(name: str) -> bytes:
    """A sequence's name as the table has it.

    Raises:
        TypeError: not a ``str``. ValueError: more than 255 bytes of UTF-8, or no valid text.
    """
    if not isinstance(name, str):
        raise TypeError(f"a sequence's name is a str, not {type(name).__name__}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a sequence's name must be valid text: {error}") from error
    if len(encoded) > MAX_NAME_BYTES:
        raise ValueError(
            f"a sequence's name has at most {MAX_NAME_BYTES} bytes of UTF-8; {name[:40]!r}… has"
            f" {len(encoded)}"
        )
    return encoded


def name_text(name: bytes) -> str:
    """A name of the table as text, also one that somebody has put there and that is no UTF-8."""
    return bytes(name).decode("utf-8", "surrogateescape")


def number(value: int, what: str) -> int:
    """``value``, if it is a whole number of 64 bits.

    Raises:
        TypeError: not an ``int`` (a ``bool`` is none here). ValueError: beyond 64 bits.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is an int, not {type(value).__name__}")
    if not MIN_VALUE <= value <= MAX_VALUE:
        raise ValueError(f"{what} is beyond 64 bits: it is a number from -2**63 to 2**63-1")
    return int(value)


def step_number(step: int) -> int:
    """``step``, if it leads anywhere.

    Raises:
        TypeError, ValueError: as :func:`number`; or it is 0.
    """
    if number(step, "a step") == 0:
        raise ValueError("a step of 0 would hand out the same value again: give another one")
    return int(step)
