"""Options of a sequence (start, step, minimum, maximum, cycle, period, time zone): checks with
error messages, limits of names and numbers, and where its periods begin.

Its periods: which one it is on the server's clock, and where the next begins.

A period is known by its first day, a local date; the column ``period`` holds that day's midnight.
Sequences without periods have the single one of 1970-01-01. The server knows nothing of time zones:
statements carry the boundaries around its clock, in UTC, and it chooses by its own clock which
period it is in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, cast, get_args

from countersink.store.counters import buckets
from countersink.store.errors import Refused
from countersink.store.sql import EPOCH, day_label

MIN_VALUE: Final = -(2**63)
MAX_VALUE: Final = 2**63 - 1
MAX_NAME_BYTES: Final = 255
PeriodLength = Literal["none", "day", "month", "year"]
PERIODS: Final[tuple[PeriodLength, ...]] = get_args(PeriodLength)
ALL_TIME: Final = date(1970, 1, 1)
"""The one period of a sequence without periods."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """The periods of a sequence: their length and time zone.

    Attributes:
        period: its length.
        time_zone: IANA name; whose midnights begin the periods.
    """

    period: PeriodLength = "none"
    time_zone: str = "UTC"


WITHOUT_PERIODS: Final = Scheme()


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

    @property
    def scheme(self) -> Scheme:
        """When the sequence begins anew."""
        return Scheme(self.period, self.time_zone)

    def allow(self, value: int) -> bool:
        """Whether ``value`` is within the limits."""
        least = MIN_VALUE if self.minimum is None else self.minimum
        most = MAX_VALUE if self.maximum is None else self.maximum
        return least <= value <= most


DEFAULTS: Final = SequenceOptions()


FIELDS: Final = tuple(field.name for field in fields(SequenceOptions))
"""Also the columns of ``sequence_option``."""
COLUMNS: Final = ", ".join(f"o.{name}" for name in FIELDS)
"""Those of ``sequence_option AS o`` from which :func:`options_of` makes SequenceOptions."""


def options_of(row: Sequence[Any]) -> SequenceOptions:
    """The options of a row with :data:`COLUMNS`."""
    options = SequenceOptions(**dict(zip(FIELDS, row, strict=True)))
    return replace(options, cycle=bool(options.cycle))


def check_changes(changes: Mapping[str, object]) -> dict[str, Any]:
    """Values for fields of SequenceOptions, with the default where None was given.

    Raises:
        TypeError, ValueError: one that can never be.
    """
    checked: dict[str, Any] = {}
    for field, value in changes.items():
        if value is None:
            checked[field] = getattr(DEFAULTS, field)
        elif field == "period":
            if value not in PERIODS:
                raise ValueError(f"period {value!r}: one of {', '.join(PERIODS)}")
            checked[field] = value
        elif field == "time_zone":
            if not isinstance(value, str):
                raise TypeError(f"a time zone is a str, not {type(value).__name__}")
            buckets.zone(value)
            checked[field] = value
        elif field == "cycle":
            if not isinstance(value, bool):
                raise TypeError(f"cycle is True or False, not {value!r}")
            checked[field] = value
        elif field == "step":
            checked[field] = step_number(cast(int, value))
        else:
            checked[field] = number(cast(int, value), field)
    return checked


def changed(before: SequenceOptions, changes: Mapping[str, Any]) -> SequenceOptions:
    """The options after ``changes``, which :func:`check_changes` has checked.

    Raises:
        ValueError: they contradict each other; says which one to change.
    """
    after = replace(before, **changes)
    if after.minimum is not None and after.maximum is not None and after.minimum > after.maximum:
        raise ValueError(f"the minimum {after.minimum} is above the maximum {after.maximum}")
    if not after.allow(after.first):
        what = "start" if after.start is not None else "start (by default the step)"
        raise ValueError(
            f"the {what} {after.first} is not within the limits {limits(after)}: give a start that"
            " is"
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


def block_size(n: int, step: int | None) -> int:
    """``n``, if there can be a block of so many values.

    Raises:
        TypeError, ValueError: as :func:`number`; or less than 1; or a block wider than 64 bits.
    """
    if number(n, "the size of a block") < 1:
        raise ValueError(f"a block has at least 1 value, not {n}")
    if step is not None and not MIN_VALUE <= n * step <= MAX_VALUE:
        raise ValueError(f"{n} values that are {step} apart do not fit into 64 bits")
    return int(n)


@dataclass(frozen=True, slots=True)
class PeriodSql:
    """The period of a statement, in SQL.

    Attributes:
        scheme: for which sequences this is right.
        expression: the period's DATETIME on the server's clock.
        condition: true where ``expression`` is of use; empty: always.
    """

    scheme: Scheme
    expression: str
    condition: str


def first_day(scheme: Scheme, day: date) -> date:
    """The first day of the period that a local date lies in."""
    month = day.replace(day=1)
    begins = {"none": ALL_TIME, "day": day, "month": month, "year": month.replace(month=1)}
    return begins[scheme.period]


def first_day_at(scheme: Scheme, instant: float) -> date:
    """The first day of the period at an instant, in Unix seconds.

    Raises:
        Refused: the time zone is unknown on this machine.
    """
    if scheme.period == "none":
        return ALL_TIME
    _require_zone(scheme)
    return first_day(scheme, buckets.date_at(scheme.time_zone, int(instant // 1)))


def place_at(scheme: Scheme, instant: float) -> PeriodSql:
    """The SQL for a statement that is sent at about ``instant``, in Unix seconds.

    Raises:
        Refused: the time zone is unknown on this machine.
    """
    if scheme.period == "none":
        return _ALL_TIME_SQL
    return _place(scheme, first_day_at(scheme, instant))


def seconds_of(moment: datetime) -> float:
    """Unix seconds of a DATETIME in UTC."""
    return (moment - EPOCH).total_seconds()


def _literal(seconds: int) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"TIMESTAMP'{moment:%Y-%m-%d %H:%M:%S}'"


_ALL_TIME_SQL: Final = PeriodSql(WITHOUT_PERIODS, _literal(day_label(ALL_TIME)), "")


@lru_cache(maxsize=1024)
def _place(scheme: Scheme, current: date) -> PeriodSql:
    """With the periods before and after, since the server's clock is only known roughly."""
    following = _next(scheme, current)
    days = [_previous(scheme, current), current, following, _next(scheme, following)]
    begins = [_literal(buckets.day_begins(scheme.time_zone, day)) for day in days]
    cases = " ".join(
        f"WHEN UTC_TIMESTAMP() < {end} THEN {_literal(day_label(day))}"
        for day, end in zip(days[:-1], begins[1:], strict=True)
    )
    return PeriodSql(
        scheme,
        f"CASE {cases} END",
        f"UTC_TIMESTAMP() >= {begins[0]} AND UTC_TIMESTAMP() < {begins[-1]}",
    )


def _next(scheme: Scheme, first: date) -> date:
    """The first day of the following period: 32 days reach it from any month, 366 from any year."""
    days = {"none": 0, "day": 1, "month": 32, "year": 366}[scheme.period]
    return first_day(scheme, first + timedelta(days=days))


def _previous(scheme: Scheme, first: date) -> date:
    return first_day(scheme, first - timedelta(days=1))


def _require_zone(scheme: Scheme) -> None:
    try:
        buckets.zone(scheme.time_zone)
    except ValueError as error:
        raise Refused(
            f"the sequence's periods begin in {scheme.time_zone}, a time zone that is unknown here:"
            " install a newer tzdata (pip install --upgrade tzdata)"
        ) from error
