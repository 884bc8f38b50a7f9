"""What a sequence may be told: where it begins, how far it goes, when it begins again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from countersink.store import buckets
from countersink.store.sequences.arguments import MAX_VALUE, MIN_VALUE, number, step_number
from countersink.store.sequences.boundaries import PERIODS, PeriodLength, Scheme

COLUMNS: Final = "o.start, o.step, o.minimum, o.maximum, o.cycle, o.period, o.time_zone"
"""The columns of ``sequence_option AS o`` from which :func:`options_of` makes Options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
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


DEFAULTS: Final = Options()


def options_of(row: tuple[Any, ...]) -> Options:
    """The options of a row with :data:`COLUMNS`."""
    start, step, minimum, maximum, cycle, period, time_zone = row
    return Options(
        start=start,
        step=step,
        minimum=minimum,
        maximum=maximum,
        cycle=bool(cycle),
        period=cast(PeriodLength, period),
        time_zone=time_zone,
    )


def check_changes(changes: Mapping[str, object]) -> dict[str, Any]:
    """Values for fields of Options, with the default where None was given.

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


def changed(before: Options, changes: Mapping[str, Any]) -> Options:
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


def limits(options: Options) -> str:
    """The limits, for messages."""
    least = "-2**63" if options.minimum is None else options.minimum
    most = "2**63-1" if options.maximum is None else options.maximum
    return f"{least} to {most}"
