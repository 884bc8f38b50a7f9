"""Parses one line of StatsD (Etsy; tags of DogStatsD, InfluxDB, Graphite, Librato, SignalFx):
name, values, sample rate (taken for 1/N if it nearly is: ``SNAP``), tags, time; limits, ignored
types, and the reasons why a line is malformed.

``name:value[:value…]|c[|@rate][|#tag:value,…]``: the counter of Etsy's StatsD, with DogStatsD's
several values, tags, time (``|T1764000000``) and fields that say where it came from, which are not
used. As in Etsy's, a line may hold several samples, each with its type and rate
(``name:1|c:320|ms:1|c|@0.1``); those of other types are ignored. Tags may also stand behind the
name as InfluxDB (``name,tag=value``), Graphite (``name;tag=value``), Librato (``name#tag=value``)
and SignalFx (``name[tag=value]``) write them.

Amounts are kept in billionths, as whole numbers. A client that sends one of ten events says
``@0.1``, and each line stands for 10; so nothing is rounded but what a rate such as 0.3 leaves in
the tenth digit.

Protocol: https://github.com/statsd/statsd/blob/master/docs/metric_types.md and
https://docs.datadoghq.com/developers/dogstatsd/datagram_shell/.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from countersink.runtime.limits import MAX_MINUTE
from countersink.statsd.errors import MalformedMetric

MAX_NAME: Final = 1_024
"""Characters of a bucket's name, tags behind it included."""
MAX_VALUES: Final = 1_000
"""Values of a line."""
OTHER_TYPES: Final = frozenset((b"g", b"ms", b"h", b"d", b"s", b"m", b"kv", b"t"))
"""Gauges, timers, histograms, distributions, sets, meters, key-values: not counters."""
_NOT_METRICS: Final = (b"_e{", b"_sc|")
"""How DogStatsD's events and service checks begin."""
_OTHER_SAMPLE: Final = rb"[^|]*\|(?:" + b"|".join(sorted(OTHER_TYPES)) + rb")(?>(?:\|@[^|:]*)?)"
_OTHER_SAMPLES: Final = re.compile(_OTHER_SAMPLE + b"(?::" + _OTHER_SAMPLE + rb")*(?:\||\Z)")
"""A line of which no sample is a counter's, up to its tags."""
_FURTHER: Final = re.compile(r"([^|]*)\|([^|:]*)(?:\|@([^|:]*))?:")
"""Values, type and rate of a sample that another one follows."""
_UNUSED: Final = ("c:", "e:", "card:")
"""Sections that say who sent it: container, external data, cardinality of tags."""
_EARLIER_TAGS: Final = re.compile(r"[#\[][^=]*=")
"""Tags that begin before the mark of others: that is part of them."""
_NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})

UNIT: Final = 10**9
"""Billionths in a whole."""
SNAP: Final = Fraction(1, 10**6)
"""How far the inverse of a rate may be, relatively, from a whole number that it is taken for: what
printing 1/3 with six digits or more leaves."""

_DIGITS: Final = 30
"""Of a number, before its point and behind it."""
_EXACT: Final = Context(prec=300, traps=[Inexact])
"""Digits enough for the sum of the largest and the smallest number that :func:`number` takes."""
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?"
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A parsed line of a StatsD counter: name, amount, tags, time.

    Attributes:
        name: the bucket's, without tags.
        amount: what all its values stand for, in units of 1/10⁹.
        tags: by name; a tag without a value has an empty one. The last of a name wins.
        minute: when it was, in whole Unix minutes; ``None``: now.
    """

    name: str
    amount: int
    tags: Mapping[str, str]
    minute: int | None


def is_other(line: bytes) -> bool:
    """Whether the line is of a type that is not counted. Cheap: most of what a busy client sends
    may be timers, no two of them alike.
    """
    sections = line.split(b"|", 2)
    kind = sections[1] if len(sections) > 1 else b""
    if kind in OTHER_TYPES and line.find(b"|c") < 0:  # as nearly all; `in` takes twice as long
        return True
    several = kind != b"c" and _OTHER_SAMPLES.match(line) is not None
    return several or line.startswith(_NOT_METRICS)


def parse(line: bytes) -> Metric:
    """The counter in ``line``, which is not of another type.

    Raises:
        MalformedMetric: there is none.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedMetric("it is not UTF-8") from None
    head, bar, rest = text.partition("|")
    if not bar:
        raise MalformedMetric("it has no type")
    name, colon, values = head.partition(":")
    if not colon:
        raise MalformedMetric("it has no value")
    if len(name) > MAX_NAME:
        raise MalformedMetric(f"its name is longer than {MAX_NAME} characters")
    at, amount, more = len(name) + 1, 0, 0
    while found := _FURTHER.match(text, at):
        amount += _sample(*found.groups())
        more += 1 + found[1].count(":")
        at = found.end()
    if more:
        values, bar, rest = text[at:].partition("|")
        if not bar:
            raise MalformedMetric("its last value has no type")
    if more + values.count(":") >= MAX_VALUES:
        raise MalformedMetric(f"it has more than {MAX_VALUES:,} values")
    kind, *sections = rest.split("|")
    given = _sections(sections)
    amount += _sample(values, kind, given.get("@"))
    name, tags = _tags_behind(name)
    if not name:
        raise MalformedMetric("it has no name")
    if "#" in given:
        tags = {**tags, **dict(_pair(tag, ":") for tag in given["#"].split(",") if tag)}
    return Metric(name, amount, tags or _NO_TAGS, _minute(given.get("T")))


def _sample(values: str, kind: str, rate: str | None) -> int:
    """What the values of a sample of a counter stand for, in billionths; 0 for another type."""
    if kind != "c":
        if kind.encode() in OTHER_TYPES:
            return 0
        raise MalformedMetric(f"its type is unknown: {kind[:20]!r}")
    factor = 1 if rate is None else times(rate)
    if factor is None:
        raise MalformedMetric("its sample rate is not above 0 and up to 1")
    amount = total(values.split(":"))
    if amount is None:
        raise MalformedMetric("its value is not a number")
    return billionths(amount, factor)


def _sections(sections: list[str]) -> dict[str, str]:
    """What stands behind the type, by its first character."""
    given: dict[str, str] = {}
    for section in sections:
        if not section or section.startswith(_UNUSED):
            continue
        mark = section[0]
        if mark not in "@#T":
            raise MalformedMetric("there is more behind its type than a rate, tags and a time")
        if mark in given:
            raise MalformedMetric(f"it has two sections with {mark}")
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
        raise MalformedMetric("its time is no number of seconds since 1970")
    minute = int(seconds) // 60
    if minute > MAX_MINUTE:
        raise MalformedMetric("its time is after 9999-12-25")
    return minute


def number(text: str) -> int | Decimal | None:
    """A decimal number, a whole one written as such as an integer; ``None`` for all else, NaN and
    infinity among it.
    """
    digits = text[1:] if text.startswith(("-", "+")) else text
    if digits.isdecimal() and digits.isascii() and len(digits) <= _DIGITS:
        return int(text)
    return Decimal(text) if _NUMBER.fullmatch(text) is not None else None


def total(texts: list[str]) -> int | Decimal | None:
    """The exact sum of numbers; ``None``: one of them is none."""
    added: int | Decimal = 0
    for text in texts:
        found = number(text)
        if found is None:
            return None
        if isinstance(found, int) and isinstance(added, int):
            added += found
        else:
            added = _EXACT.add(added, found)
    return added


def times(rate: str) -> int | Fraction | None:
    """How many events a line with this sample rate stands for; ``None``: it is no rate above 0 and
    up to 1.
    """
    share = number(rate)
    if share is None or not 0 < share <= 1:
        return None
    inverse = 1 / Fraction(share)
    whole = round(inverse)
    return whole if abs(inverse - whole) <= SNAP * whole else inverse


def billionths(amount: int | Decimal, factor: int | Fraction) -> int:
    """``amount`` times ``factor`` in units of 1/10⁹, rounded."""
    if isinstance(amount, int) and isinstance(factor, int):
        return amount * factor * UNIT
    return round(Fraction(amount) * factor * UNIT)
