"""The types of values of options, such as counters, days and time zones, with their error messages
and shell completion. See ``runtime/limits.py`` for the limits of names."""

import math
import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from countersink.runtime import limits
from countersink.runtime.dimensions import check_name
from countersink.runtime.texts import read_day, read_range_edge

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from countersink.counting.totals.selection import Last

T = TypeVar("T")


class Checked(click.ParamType[T]):
    """The type of an option or argument. The function ``read`` turns a text into a value. If the
    text is wrong, ``read`` raises ValueError, with a message that says what is allowed. ``name`` is
    the name of the type, such as ``counter``. Shell completion offers existing names of this type,
    if the database has such names, as for counters and jobs."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Return the value that the text means.

        Raises:
            click.BadParameter: the text is wrong; the message is that of the ValueError.
        """
        try:
            return self._read(_utf8(value if isinstance(value, str) else str(value)))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        """Return the completions for a shell: the names of this type in the database that begin
        with ``incomplete``. Names that need quotes in a shell are left out."""
        from countersink.cli.completion import completion_items

        return completion_items(ctx, self.name, incomplete)


class Finite(click.FloatRange):
    """The type of an option whose values are numbers in a range; ``nan`` and ``inf`` are
    refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number.

        Raises:
            click.BadParameter: the text is not a finite number, or the number is out of range.
        """
        if not math.isfinite(click.FLOAT.convert(value, param, ctx)):
            self.fail(f"{value} is not a finite number", param, ctx)
        return float(super().convert(value, param, ctx))


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8; is the terminal set to another encoding?") from None
    return text


def _dimension(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=VALUE, such as country=DE")
    return check_name(name), value


def whole_number(text: str) -> int:
    """Return the integer that ``text`` writes in decimal digits, with or without a sign.

    Raises:
        ValueError: the text has no digits, more than 40 of them, or other characters.
    """
    if re.fullmatch(r"[+-]?[0-9]{1,40}", text) is None:
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not ISO 8601, such as 2026-11-21T08:00:00+01:00") from None
    if moment.utcoffset() is None:
        raise ValueError(
            f"{text!r} has no time zone, which decides on the day: "
            "add Z or an offset, such as +01:00"
        )
    limits.minute_of(moment)
    return moment


def _last(text: str) -> "Last":
    from countersink.counting.totals.selection import Last

    return Last.of(text)


def _zone(name: str) -> str:
    from countersink.counting.counters import buckets

    return buckets.zone(name).key


def _name(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def _run(text: str) -> int:
    if (number := whole_number(text)) < 1:
        raise ValueError(f"{text!r} is not the number of a run")
    return number


TEXT: Final = Checked("text", str)


NAME: Final = Checked("name", _name)


SECONDS: Final = Finite(0, 10**9)


COUNTER: Final = Checked("counter", limits.check_counter)


TRACKED: Final = Checked("tracked table", _name)


JOB: Final = Checked("job", str)


RUN: Final = Checked("run", _run)


API_KEY: Final = Checked("API key", _name)


LINK: Final = Checked("link", _name)


KEY: Final = Checked("key", limits.check_key)


DIMENSION: Final = Checked("dimension", _dimension)


AMOUNT: Final = Checked("amount", lambda text: limits.check_amount(whole_number(text)))


MOMENT: Final = Checked("time", _moment)


DAY: Final = Checked("day", read_day)


START: Final = Checked("day or time", partial(read_range_edge, weekday=1))


END: Final = Checked("day or time", partial(read_range_edge, weekday=7))


FIRST_DAY: Final = Checked("day", partial(read_range_edge, weekday=1, times=False))


LAST_DAY: Final = Checked("day", partial(read_range_edge, weekday=7, times=False))


LAST: Final = Checked("window", _last)


ZONE: Final = Checked("zone", _zone)
