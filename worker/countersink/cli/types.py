"""Types of arguments and options, with the rules of ``countersink.stream.limits``."""

import math
import re
from collections.abc import Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import click

from countersink.cli import secrets
from countersink.stream import limits

T = TypeVar("T")

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # generic from click 8.2 on, and only for type checkers
    ParamType = click.ParamType


class Checked(ParamType, Generic[T]):
    """Text turned into a value by a function whose ValueError says what is allowed."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """The value; wrong usage with the reason otherwise."""
        try:
            return self._read(_utf8(value if isinstance(value, str) else str(value)))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Finite(click.FloatRange):
    """A number in a range, which ``nan`` and ``inf`` are not."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; wrong usage otherwise."""
        found = float(click.FLOAT.convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number", param, ctx)
        return float(super().convert(found, param, ctx))


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it is no UTF-8; is the terminal set to another encoding?") from None
    return text


def _amount(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,40}", text) is None:
        raise ValueError(f"{text!r} is not a whole number")
    return limits.check_amount(int(text))


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not ISO 8601, such as 2026-11-21T08:00:00+01:00") from None
    if moment.utcoffset() is None:
        raise ValueError(
            f"{text!r} has no time zone, and guessing one would count into the wrong day: "
            "add Z or an offset, such as +01:00"
        )
    limits.minute_of(moment)
    return moment


def _day(text: str) -> date:
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) is None:
        raise ValueError(f"{text!r} is not a day such as 2026-11-21")
    return date.fromisoformat(text)


class Url(ParamType):
    """Any text; its password is noted so that no message can show it."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """``value`` itself; who connects checks it."""
        secrets.remember(str(value))
        return str(value)


TEXT: Final = Checked("text", str)
SECONDS: Final = Finite(0, 10**9)
COUNTER: Final = Checked("counter", limits.check_counter)
KEY: Final = Checked("key", limits.check_key)
AMOUNT: Final = Checked("amount", _amount)
MOMENT: Final = Checked("time", _moment)
DAY: Final = Checked("day", _day)
