"""Options of a sequence (start, step, minimum, maximum, cycle, period, time zone): their checks,
the periods' beginnings, and the next values by them.

A period is identified by its first day, a local date; the column ``period`` has that day's
midnight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, timedelta
from typing import Any, Final, Literal, TypedDict, get_args

from countersink.counting.counters import buckets
from countersink.database.errors import UnknownZone
from countersink.sequences.errors import SequenceExhausted

MIN_VALUE: Final = -(2**63)
"""The smallest signed 64-bit number."""
MAX_VALUE: Final = 2**63 - 1
"""The largest signed 64-bit number."""
MAX_NAME_BYTES: Final = 255
PeriodLength = Literal["none", "day", "month", "year"]
PERIODS: Final[tuple[PeriodLength, ...]] = get_args(PeriodLength)
ALL_TIME: Final = date(1970, 1, 1)
"""The period of every sequence's base row. A sequence without periods has no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOptions:
    """The options of a sequence. The defaults are those of a sequence that was never configured.

    Attributes:
        start: first value of each period; None if that is the step.
        step: difference between a value and the next one, if the caller asks for no other step.
        minimum: smallest value; None for the smallest number of 64 bits.
        maximum: largest value; None for the largest number of 64 bits.
        cycle: True to begin again at ``start`` when the next value would be beyond the limits.
        period: length of a period: ``none`` (no periods), ``day``, ``month`` or ``year``.
        time_zone: IANA name of the time zone whose midnights begin the periods.
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
        """The first day of the period of a local date."""
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
                f"the sequence's time zone {self.time_zone} is unknown on this machine: install a"
                " newer tzdata (pip install --upgrade tzdata)"
            ) from error
        # Where clocks are put back across midnight, a date comes twice: a day that has begun stays.
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
    """A request for values of a sequence.

    Attributes:
        step: difference between a value and the next one; None for the sequence's own step.
        start: the first value if the period has none yet; None for the sequence's own start, or
            else the step.
        n: number of values.

    Raises:
        TypeError, ValueError: as raised by :func:`number`; or the step is 0, or ``n`` is below 1,
            or the first and the last value differ by more than 64 bits.
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
    """The values that follow ``last``, which is None where the period has no value.

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
    values = "value" if asked.n == 1 else f"block of {asked.n:,} values"
    raise SequenceExhausted(
        f"the sequence {name_text(name)!r} has no {values} left within its limits: set or reset it"
        " (or give another start, if it has no value), or configure other limits"
    )


def check_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Checked values for fields of SequenceOptions; None becomes the default.

    Raises:
        TypeError, ValueError: a value is invalid by itself, or there is no such field.
    """
    replace(DEFAULTS, **changes)  # raises for an unknown field
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
        raise ValueError(f"period {value!r} is none of {', '.join(PERIODS)}")
    if field == "time_zone":
        if not isinstance(value, str):
            raise TypeError(f"a time zone is a str, not {type(value).__name__}")
        buckets.zone(value)
    if field == "cycle" and not isinstance(value, bool):
        raise TypeError(f"cycle is True or False, not {value!r}")
    return value


def changed(before: SequenceOptions, changes: Mapping[str, Any]) -> SequenceOptions:
    """The options with ``changes``, which :func:`check_changes` has checked.

    Raises:
        ValueError: they contradict each other; the message names the option to change.
    """
    after = replace(before, **changes)
    if after.minimum is not None and after.maximum is not None and after.minimum > after.maximum:
        raise ValueError(f"the minimum {after.minimum} is above the maximum {after.maximum}")
    if not after.allow(after.first):
        raise ValueError(
            f"the start (by default the step) {after.first} is not within the limits"
            f" {limits(after)}: give another start"
        )
    if after.cycle and (after.maximum if after.step > 0 else after.minimum) is None:
        missing = "maximum" if after.step > 0 else "minimum"
        raise ValueError(f"a sequence that cycles needs a {missing}, after which it begins again")
    return after


def limits(options: SequenceOptions) -> str:
    """Text of the limits, for messages."""
    least = "-2**63" if options.minimum is None else options.minimum
    most = "2**63-1" if options.maximum is None else options.maximum
    return f"{least} to {most}"


def name_bytes(name: str) -> bytes:
    """A sequence's name in UTF-8, as in the table.

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
    """The text of a name in the table; bytes that are not UTF-8 become surrogates."""
    return bytes(name).decode("utf-8", "surrogateescape")


def number(value: int, noun: str) -> int:
    """``value``, if it is a whole number of 64 bits.

    Args:
        value: the number.
        noun: its meaning, for messages.

    Raises:
        TypeError: not an ``int``, or a ``bool``. ValueError: beyond 64 bits.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{noun} is an int, not {type(value).__name__}")
    if not MIN_VALUE <= value <= MAX_VALUE:
        raise ValueError(f"{noun} is beyond 64 bits: it is a number from -2**63 to 2**63-1")
    return int(value)


def step_number(step: int) -> int:
    """``step``, if it is a valid step.

    Raises:
        TypeError, ValueError: as :func:`number`; or it is 0.
    """
    if number(step, "a step") == 0:
        raise ValueError("a step of 0 would hand out the same value again: give another one")
    return int(step)
