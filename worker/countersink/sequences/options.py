"""Options of a sequence (start, step, minimum, maximum, cycle, period, time zone) and their checks.
Also functions that compute periods and the next values from the options.

The first day of a period, a local date, identifies the period. The column ``period`` of the table
``sequence`` has midnight of that day.
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
"""The day in the column ``period`` of each sequence's base row, which has the sequence's options. A
sequence without periods has only this row.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOptions:
    """The options of a sequence. A sequence that was never configured has the defaults.

    Attributes:
        start: first value of each period, unless a request gives another start. With None, the
            first value is the request's step, or else the sequence's step.
        step: number that is added to a value to get the next one. A request may give another step.
        minimum: smallest value allowed; None for the smallest number of 64 bits.
        maximum: largest value allowed; None for the largest number of 64 bits.
        cycle: True to begin again at :attr:`first` when the next value would be beyond the limits;
            False to raise SequenceExhausted then.
        period: length of a period: ``day``, ``month`` or ``year``. ``none`` means that the sequence
            has no periods and never starts again.
        time_zone: IANA name of the time zone. Each period begins at a midnight in this zone.
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
        """The value at which a cycle begins again, and each period unless a request gives another
        first value: ``start``, or the sequence's step if ``start`` is None.
        """
        return self.step if self.start is None else self.start

    def period_of(self, day: date) -> date:
        """Return the first day of the period that contains ``day``, a local date. Return
        :data:`ALL_TIME` if the sequence has no periods.
        """
        month = day.replace(day=1)
        begins = {"none": ALL_TIME, "day": day, "month": month, "year": month.replace(month=1)}
        return begins[self.period]

    def period_at(self, instant: int) -> date:
        """Return the first day of the period that contains ``instant``, in Unix seconds. Return
        :data:`ALL_TIME` if the sequence has no periods.

        If clocks are put back across midnight, they show the old date again. The new day remains
        the present day all the same, so that a sequence does not go back to an earlier period.

        Raises:
            UnknownZone: this machine does not know the sequence's time zone.
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
        """Return whether ``value`` is allowed: from ``minimum`` to ``maximum``, both included."""
        least = MIN_VALUE if self.minimum is None else self.minimum
        most = MAX_VALUE if self.maximum is None else self.maximum
        return least <= value <= most


class OptionChanges(TypedDict, total=False):
    """Keyword arguments that change options of a sequence. The value None sets an option to its
    default. An option that is not given stays as it is. See :class:`SequenceOptions` for the
    meanings.
    """

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
    """A request for the next values of a sequence.

    Attributes:
        step: number that is added to a value to get the next one; None for the sequence's own step.
        start: first value to hand out if the present period has no value yet. None for the
            sequence's own start. If the sequence has no start either, the first value is ``step``,
            or else the sequence's step.
        n: number of values.

    Raises:
        TypeError: an attribute is not an ``int``, or is a ``bool``.
        ValueError: an attribute is beyond 64 bits; or ``step`` is 0; or ``n`` is below 1; or ``n``
            times ``step`` is beyond 64 bits.
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
    """Return the next values of a sequence. All of them are within its limits.

    If the sequence cycles, ``last`` is not None, and one of the values after ``last`` would be
    beyond the limits, the first returned value is :attr:`SequenceOptions.first`, even if ``asked``
    has a start.

    Args:
        name: the sequence's name in UTF-8, for the error message.
        options: the sequence's options.
        last: the last value of the present period; None if the period has no value yet.
        asked: the number of values to return, and the step and start to use; a step or start None
            stands for the sequence's own.

    Raises:
        SequenceExhausted: a value would be beyond the sequence's limits or beyond 64 bits. If the
            sequence cycles and ``last`` is not None: also a value from its first value on.
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
    """Check the new value of each option, and return a map from names of options to values. A value
    None is replaced by the option's default.

    This does not check whether options contradict each other: :func:`changed` does.

    Args:
        changes: new values by the option's name, which is a field of :class:`SequenceOptions`.

    Raises:
        TypeError: a value has a wrong type, or there is no such option.
        ValueError: a value is invalid.
    """
    replace(DEFAULTS, **changes)  # raises for an unknown field
    return {
        field: getattr(DEFAULTS, field) if value is None else _checked(field, value)
        for field, value in changes.items()
    }


def _checked(field: str, value: Any) -> Any:
    """Return ``value``, after a check that it is valid for the option ``field``.

    Raises:
        TypeError: the value has a wrong type.
        ValueError: the value is invalid.
    """
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
    """Return the options of a sequence after a change, if they do not contradict each other.

    Args:
        before: the options before the change.
        changes: new values by the option's name, as returned by :func:`check_changes`.

    Raises:
        ValueError: the options contradict each other; the message names the option to change.
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
    """Return the smallest and the largest value as text for messages, such as ``1 to 2**63-1``."""
    least = "-2**63" if options.minimum is None else options.minimum
    most = "2**63-1" if options.maximum is None else options.maximum
    return f"{least} to {most}"


def name_bytes(name: str) -> bytes:
    """Return a sequence's name in UTF-8, as the table ``sequence`` has it.

    Raises:
        TypeError: the name is not a ``str``.
        ValueError: the name has more than 255 bytes of UTF-8, or a lone surrogate, which has no
            UTF-8.
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
    """Return a name from the table ``sequence`` as text. Each byte that is not valid UTF-8 becomes
    a lone surrogate (``surrogateescape``).
    """
    return bytes(name).decode("utf-8", "surrogateescape")


def number(value: int, noun: str) -> int:
    """Check that ``value`` is a whole number of 64 bits, and return it.

    Args:
        value: the number to check.
        noun: what the number is, such as ``a step``, for the error message.

    Raises:
        TypeError: the value is not an ``int``, or it is a ``bool``.
        ValueError: the value is beyond 64 bits.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{noun} is an int, not {type(value).__name__}")
    if not MIN_VALUE <= value <= MAX_VALUE:
        raise ValueError(f"{noun} is beyond 64 bits: it is a number from -2**63 to 2**63-1")
    return int(value)


def step_number(step: int) -> int:
    """Check that ``step`` is a whole number of 64 bits other than 0, and return it.

    Raises:
        TypeError: the step is not an ``int``, or it is a ``bool``.
        ValueError: the step is 0 or beyond 64 bits.
    """
    if number(step, "a step") == 0:
        raise ValueError("a step of 0 would hand out the same value again: give another one")
    return int(step)
