"""The parser of one line of StatsD: it returns the counter's name, amount, tags and time, or raises
an error for a malformed line. Lines of other types, such as timers, are ignored.

A counter is ``name:value[:value…]|c[|@rate][|#tag:value,…]``: Etsy's StatsD, with several values,
tags and time (``|T1764000000``) as in DogStatsD. DogStatsD's fields about the sender are ignored.
As in Etsy's StatsD, a line may have several samples, each with its type and rate
(``name:1|c:320|ms:1|c|@0.1``). Samples of other types are ignored. Tags may also follow the name,
in the form of InfluxDB (``name,tag=value``), Graphite (``name;tag=value``), Librato
(``name#tag=value``) or SignalFx (``name[tag=value]``).

A client that sends only one of ten events writes the sample rate ``@0.1``, and each of its values
counts ten times. The inverse of a rate is rounded to a whole number that is near (``SNAP``).
Amounts are whole numbers of billionths, so that their sums are exact. A value with a decimal point
or an exponent is read as a float: exact up to 4 million with at most nine decimal places, otherwise
rounded. Values with rates such as 0.3 are rounded, too.

Protocol: https://github.com/statsd/statsd/blob/master/docs/metric_types.md and
https://docs.datadoghq.com/developers/dogstatsd/datagram_shell/.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from countersink.runtime.limits import MAX_MINUTE
from countersink.statsd.errors import MalformedMetric

MAX_NAME: Final = 1_024
"""Most characters of a metric's name, including the tags that follow it."""
MAX_VALUES: Final = 1_000
"""Most values in a line."""
OTHER_TYPES: Final = frozenset(("g", "ms", "h", "d", "s", "m", "kv", "t"))
"""The types that are ignored: gauges, timers, histograms, distributions, sets, meters,
key-values.
"""
_TYPES: Final = OTHER_TYPES | {"c"}
_NOT_METRICS: Final = ("_e{", "_sc|")
"""The first characters of DogStatsD's events and service checks, which are ignored."""
_FURTHER: Final = re.compile(r"([^|]*)\|([^|:]*)(?:\|@([^|:]*))?:")
"""Matches the values, type and rate of a sample behind which another sample follows."""
_UNUSED: Final = ("c:", "e:", "card:")
"""First characters of sections about the sender, which are ignored: its container, external data,
and the cardinality of tags.
"""
_EARLIER_TAGS: Final = re.compile(r"[#\[][^=]*=")
"""Matches tags in Librato's or SignalFx's form. If they begin before the mark of another form, such
as ``,``, that mark belongs to them.
"""
_NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})

UNIT: Final = 10**9
"""Billionths in 1."""
SNAP: Final = 1.1e-6
"""Largest relative distance at which the inverse of a rate is rounded to a whole number. It is a
little more than the error of 1/3 written with six digits, 1.000001e-6.
"""
_WHOLE: Final = re.compile("[+-]?[0-9]{1,30}")
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?"
)


@dataclass(frozen=True, slots=True)
class Metric:
    """The counter in a line of StatsD.

    Attributes:
        name: the metric's name, without tags.
        amount: the sum of all values of type ``c``, in billionths. A value with a sample rate is
            multiplied by the rate's inverse, as :func:`events_per_line` rounds it.
        tags: the tags' values by their names, ``''`` for a tag without a value. If a name occurs
            twice, the last value is taken.
        minute: event time in whole Unix minutes, or ``None`` for the present time.
    """

    name: str
    amount: int
    tags: Mapping[str, str]
    minute: int | None


def parse(line: bytes) -> Metric | None:
    """Return the counter in ``line``, or None if the line has only samples of other types, or is an
    event or a service check of DogStatsD. Values of other types are not checked.

    Raises:
        MalformedMetric: the line is malformed or beyond a limit, or has a sample of unknown type.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedMetric("it is not UTF-8") from None
    head, bar, rest = text.partition("|")
    # Cheap, as most lines of a busy client may be timers with different values.
    if rest.partition("|")[0] in OTHER_TYPES and "|c" not in rest:
        return None
    if text.startswith(_NOT_METRICS):
        return None
    if not bar:
        raise MalformedMetric("it has no type")
    name, colon, _ = head.partition(":")
    if not colon:
        raise MalformedMetric("it has no value")
    if len(name) > MAX_NAME:
        raise MalformedMetric(f"its name is longer than {MAX_NAME} characters")
    samples: list[tuple[str, str, str | None]] = []
    at = len(name) + 1
    while found := _FURTHER.match(text, at):
        samples.append((found[1], found[2], found[3]))
        at = found.end()
    values, bar, rest = text[at:].partition("|")
    if not bar:
        raise MalformedMetric("its last value has no type")
    last, *sections = rest.split("|")
    kinds = {last, *[kind for _, kind, _ in samples]} if samples else {last}
    if not kinds <= _TYPES:
        raise MalformedMetric(f"its type is unknown: {min(kinds - _TYPES)[:20]!r}")
    if "c" not in kinds:
        return None
    given = _sections(sections) if sections else {}
    samples.append((values, last, given.get("@")))
    amount = count = 0
    for values, kind, rate in samples:
        numbers = values.split(":")
        count += len(numbers)
        if kind == "c":
            total = sum(map(billionths, numbers))
            amount += total if rate is None else round(total * events_per_line(rate))
    if count > MAX_VALUES:
        raise MalformedMetric(f"it has more than {MAX_VALUES:,} values")
    name, tags = _tags_behind(name)
    if not name:
        raise MalformedMetric("it has no name")
    if "#" in given:
        tags = {**tags, **dict(_pair(tag, ":") for tag in given["#"].split(",") if tag)}
    return Metric(name, amount, tags or _NO_TAGS, _minute(given.get("T")))


def _sections(sections: list[str]) -> dict[str, str]:
    """Return the sections that follow the last type in a line: a mapping from the first character
    (``@`` for the rate, ``#`` for tags, ``T`` for the time) to the rest of the section. Empty
    sections and those about the sender are left out.

    Raises:
        MalformedMetric: a section is unknown or occurs twice.
    """
    given: dict[str, str] = {}
    for section in sections:
        if not section or section.startswith(_UNUSED):
            continue
        mark = section[0]
        if mark not in "@#T":
            raise MalformedMetric("it has more behind its type than a rate, tags and a time")
        if mark in given:
            raise MalformedMetric(f"it has two sections that begin with {mark}")
        given[mark] = section[1:]
    return given


def _tags_behind(name: str) -> tuple[str, Mapping[str, str]]:
    for mark in ";,#[":
        bare, found, text = name.partition(mark)
        text, closed, rest = text.partition("]") if mark == "[" else (text, found, "")
        tags = text.split(";" if mark == ";" else ",")
        if closed and all("=" in tag for tag in tags) and not _EARLIER_TAGS.search(bare):
            return bare + rest, dict(_pair(tag, "=") for tag in tags)
    return name, _NO_TAGS


def _pair(tag: str, separator: str) -> tuple[str, str]:
    name, _, value = tag.partition(separator)
    return name, value


def _minute(seconds: str | None) -> int | None:
    if seconds is None:
        return None
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 12):
        raise MalformedMetric("its time is not a whole number of seconds since 1970")
    minute = int(seconds) // 60
    if minute > MAX_MINUTE:
        raise MalformedMetric("its time is after 9999-12-25")
    return minute


def billionths(text: str) -> int:
    """Return a decimal number in billionths; the module's docstring says which are rounded.

    Raises:
        MalformedMetric: the text is no decimal number of at most 30 digits before the point, 30
            after it, and two in the exponent.
    """
    if _WHOLE.fullmatch(text):
        return int(text) * UNIT
    if _NUMBER.fullmatch(text):
        return round(float(text) * UNIT)
    raise MalformedMetric("its value is not a number")


def events_per_line(rate: str) -> int | float:
    """Return the number by which values with the sample rate ``rate`` are multiplied: the rate's
    inverse, rounded to an ``int`` if it is near a whole number (relative distance :data:`SNAP`).

    Raises:
        MalformedMetric: the rate is not a number above 0 and up to 1.
    """
    share = float(rate) if _NUMBER.fullmatch(rate) else 0.0
    if not 0 < share <= 1:
        raise MalformedMetric("its sample rate is not a number above 0 and up to 1")
    inverse = 1 / share
    nearest = round(inverse)
    return nearest if abs(inverse - nearest) <= SNAP * nearest else inverse
