r"""Settings of the StatsD listener: port, sockets, limits of amounts, counters, times and
connections; their defaults, checks, error messages, and the refusal of hosts that are not loopback.
The TOML map of StatsD names to counters and keys (``--map``): syntax of rules, patterns and
placeholders, their errors, and how a name that no rule matches becomes a counter's.

A TOML file of rules; the first that matches a name decides::

    unmatched = "count"          # or "drop": names that no rule matches are not counted

    [[rule]]
    match = "web.*.hits"         # * within a segment of the name, ** over dots too
    counter = "page_views"
    key = "$1"

    [[rule]]
    regex = 'api\.([a-z]+)\.v[0-9]+'    # the whole name
    counter = "api"
    key = "$1 {tag:region}"

    [[rule]]
    match = "shop.order"
    counter = "orders"
    dimensions = { country = "{tag:country}", plan = "{tag:plan}" }     # in the place of a key

    [[rule]]
    match = "debug.**"
    drop = true
"""

import re
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from countersink.runtime.dimensions import RowKey, check_dimensions
from countersink.runtime.limits import MAX_COUNTER_LENGTH, cut_key
from countersink.runtime.process import is_loopback
from countersink.statsd.errors import MapError, NotLoopback

_GLOB: Final = re.compile(r"\*\*|\*|[^*]+")
_TOKEN: Final = re.compile(
    r"(\$\$|\{\{|\}\})|\$([0-9]{1,2})|\$\{([0-9]{1,2})\}|\{tag:([^{}]+)\}|\{name\}"
)
"""Doubled characters, which stand for one, and placeholders."""
_MARK_BYTES: Final = 8
_MARK: Final = 2 * _MARK_BYTES + 1
"""Characters that tell a shortened name from others: ``-`` and 16 hex digits."""
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_.:\-]", re.ASCII)

Target = tuple[str, RowKey]
"""(counter, key or dimensions)."""


def filled(text: str, name: str, captured: tuple[str, ...], tags: Mapping[str, str]) -> str:
    """A template with its placeholders filled: ``$1`` (also ``${1}``): what the first ``*`` or
    group has matched; ``{tag:city}``: a tag's value, empty without it; ``{name}``: the whole name;
    ``$$``, ``{{`` and ``}}``: ``$``, ``{``, ``}``.
    """

    def value(found: re.Match[str]) -> str:
        doubled, number, braced, tag = found.groups()
        if doubled:
            return str(doubled[0])
        if number or braced:
            return captured[int(number or braced) - 1]
        return name if tag is None else tags.get(tag, "")

    return _TOKEN.sub(value, text)


def _check_template(text: str, captures: int) -> None:
    """Find what is wrong with a template of a pattern with so many ``*`` or groups.

    Raises:
        ValueError: it has something else behind a ``$`` or in braces, or there is no such capture.
    """
    stray = re.search("[${}]", _TOKEN.sub("", text))
    if stray is not None:
        raise ValueError(
            f"{text!r}: a {stray[0]} there is no placeholder; there are $1, {{tag:name}}, {{name}},"
            " and $$, {{, }} for the characters themselves"
        )
    for _, number, braced, _ in _TOKEN.findall(text):
        if (number or braced) and not 1 <= int(number or braced) <= captures:
            raise ValueError(
                f"{text!r}: there is no ${number or braced}: the pattern captures {captures}"
            )


class MapTable(msgspec.Struct, forbid_unknown_fields=True):
    """The table of the file."""

    unmatched: Literal["count", "drop"] = "count"
    rule: list[dict[str, Any]] = []


class Rule(msgspec.Struct, forbid_unknown_fields=True, dict=True):
    """A rule of the map: a pattern of whole names, and the templates of the counter and key of
    those that match.

    Attributes:
        pattern: made of ``match`` or ``regex``.
        fixed: the counter of all names, if ``counter`` has no placeholder; else empty.
    """

    match: str | None = None
    regex: str | None = None
    counter: str | None = None
    key: str | None = None
    dimensions: dict[str, str] = {}
    drop: bool = False

    def __post_init__(self) -> None:
        if (self.match is None) == (self.regex is None):
            raise ValueError("it needs either match or regex")
        self.pattern = _compiled(self.regex) if self.match is None else glob(self.match)
        if self.drop == (self.counter is not None):
            raise ValueError("it needs either a counter or drop = true")
        if self.drop and (self.key is not None or self.dimensions):
            raise ValueError("a rule that drops has no key, nor dimensions")
        if self.dimensions and self.key is not None:
            raise ValueError("it has a key and dimensions: leave one of them out")
        if self.counter == "":
            raise ValueError("counter is empty")
        check_dimensions(self.dimensions)
        counter = self.counter or ""
        for text in (counter, self.key or "", *self.dimensions.values()):
            _check_template(text, self.pattern.groups)
        varies = any(found[1] is None for found in _TOKEN.finditer(counter))
        self.fixed = "" if varies else counter_name(filled(counter, "", (), {}))

    def row_key(self, name: str, captured: tuple[str, ...], tags: Mapping[str, str]) -> RowKey:
        """The key or dimensions that a metric is counted under."""
        if not self.dimensions:
            return cut_key(filled(self.key or "", name, captured, tags))
        values = {
            dimension: filled(text, name, captured, tags)
            for dimension, text in self.dimensions.items()
        }
        return check_dimensions(values)


class Rules:
    """The rules of the map in their order, and whether unmatched names are counted.

    Attributes:
        rules: the rules.
        fixed: the counters that the map itself names.
    """

    def __init__(self, rules: tuple[Rule, ...] = (), *, count_unmatched: bool = True) -> None:
        self.rules = rules
        self.fixed = frozenset(rule.fixed for rule in rules if rule.fixed)
        self._count_unmatched = count_unmatched

    def target(self, name: str, tags: Mapping[str, str]) -> Target | None:
        """The counter and key, or dimensions, of a metric; ``None``: it is not to be counted."""
        for rule in self.rules:
            found = rule.pattern.fullmatch(name)
            if found is None:
                continue
            if rule.counter is None:
                return None
            captured = tuple(part or "" for part in found.groups())
            # What is empty without a tag or a group: the name itself says what was counted.
            counter = rule.fixed or counter_name(filled(rule.counter, name, captured, tags) or name)
            return counter, rule.row_key(name, captured, tags)
        return (counter_name(name), "") if self._count_unmatched else None


T = TypeVar("T", MapTable, Rule)


def load(path: Path) -> Rules:
    """The map in a file.

    Raises:
        MapError: it cannot be read, or something in it is wrong.
    """
    try:
        return read(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise MapError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MapError(f"{path}: cannot be read: it is not UTF-8") from error
    except (tomllib.TOMLDecodeError, MapError) as error:
        raise MapError(f"{path}: {error}") from error


def read(document: Mapping[str, Any]) -> Rules:
    """The map in a parsed document.

    Raises:
        MapError: something in it is wrong.
    """
    table = _checked(document, MapTable, "the file")
    rules = [_checked(rule, Rule, f"rule {number}") for number, rule in enumerate(table.rule, 1)]
    return Rules(tuple(rules), count_unmatched=table.unmatched == "count")


def _checked(found: Mapping[str, Any], kind: type[T], what: str) -> T:
    """A table of the file, if its fields are right."""
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise MapError(f"{what}: {error}") from error


def glob(text: str) -> re.Pattern[str]:
    """``*``: one or more characters other than dots; ``**``: any, at least one. Both capture.

    Raises:
        MapError: it is empty, or has so many of them that an evil name could take seconds.
    """
    if not text:
        raise MapError("match is empty")
    if text.count("**") > 1 or any(part.count("*") > 2 for part in text.split(".")):
        raise MapError(f"match {text!r}: at most one ** and two * between dots")
    kinds = {"*": r"([^.]+)", "**": r"(.+)"}
    parts = [kinds.get(part) or re.escape(part) for part in _GLOB.findall(text)]
    return re.compile("".join(parts), re.DOTALL)


def _compiled(text: str | None) -> re.Pattern[str]:
    try:
        return re.compile(text or "", re.DOTALL)
    except re.error as error:
        raise MapError(f"regex {text!r} is none: {error}") from error


def counter_name(name: str) -> str:
    """``name`` as a counter's: ``_`` for each character that none may have; cut, with a hash of the
    whole, where it is longer than 64. Not for an empty one.
    """
    clean = _NOT_ALLOWED.sub("_", name)
    if len(clean) <= MAX_COUNTER_LENGTH:
        return clean
    whole = blake2b(name.encode(), digest_size=_MARK_BYTES).hexdigest()
    return f"{clean[: MAX_COUNTER_LENGTH - _MARK]}-{whole}"


PORT: Final = 8125
MAX_AMOUNT_LIMIT: Final = 10**12
"""Of ``max_amount``: what one receive can hold at most, times this, still fits into 64 bits."""

MAX_SECONDS: Final = 1e12
"""Of a time or an age: more than any clock tells."""
DRAIN_SECONDS: Final = 1.0
"""How long a stop goes on receiving at most, should more keep coming."""


@dataclass(frozen=True, kw_only=True)
class StatsdOptions:
    """The settings of a listener.

    Attributes:
        host: address or name to listen at, by UDP and TCP.
        port: of both; 0 for any free one.
        udp, tcp: whether to listen there.
        socket: path of a unix datagram socket, ``None``: none.
        stream_socket: path of a unix stream socket, ``None``: none.
        socket_mode: permissions of both.
        anyone: listen beyond loopback, although whoever reaches the port may count anything.
        map: path of the map file, ``None``: each name is a counter.
        receive_buffer: bytes of kernel memory to ask for, for datagrams that wait.
        max_amount: the largest absolute amount of one line, its sample rate applied.
        max_counters: counters that names may become, since its start; what comes by further ones
            is counted in ``__overflow__``.
        max_ahead_s: seconds that a line's own time may lie ahead of the clock here.
        max_age_days: days that it may lie in the past; 0: no limit.
        max_connections: stream connections at once; for one more the one is closed that has sent no
            whole line for longest.
        line_timeout_s: seconds after which a line of a stream connection that has not ended makes
            room before all others.

    Raises:
        ValueError: they cannot be used together; the message says what to do.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    udp: bool = True
    tcp: bool = False
    socket: str | None = None
    stream_socket: str | None = None
    socket_mode: int = 0o660
    anyone: bool = False
    map: str | None = None
    receive_buffer: int = 16 << 20
    max_amount: int = 1_000_000_000
    max_counters: int = 10_000
    max_ahead_s: float = 86_400.0
    max_age_days: int = 3_650
    max_connections: int = 1_000
    line_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not (self.udp or self.tcp or self.socket or self.stream_socket):
            raise ValueError("there is nothing to listen at: leave UDP on, or name a socket")
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port is {self.port}: 0 to 65535")
        if not 1 <= self.max_amount <= MAX_AMOUNT_LIMIT:
            raise ValueError(f"max_amount is {self.max_amount}: 1 to {MAX_AMOUNT_LIMIT}")
        for name in ("receive_buffer", "max_counters", "max_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        for name in ("max_ahead_s", "max_age_days", "line_timeout_s"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_SECONDS:
                raise ValueError(f"{name} is {value}: 0 to {MAX_SECONDS:,.0f}")
        if self.receive_buffer >= 1 << 30:
            raise ValueError(f"receive_buffer is {self.receive_buffer}: less than 1 GiB")
        if not 0 <= self.socket_mode <= 0o777:
            raise ValueError("socket_mode is an octal number such as 660")
        if self.socket and self.socket == self.stream_socket:
            raise ValueError(f"{self.socket} cannot be both a datagram and a stream socket")


Address = tuple[socket.AddressFamily, str]
"""Family, numeric address (with its scope, if it has one)."""


def addresses(options: StatsdOptions) -> list[Address]:
    """The addresses that ``host`` stands for; none if neither UDP nor TCP is wanted.

    Raises:
        NotLoopback: one of them is not loopback, and ``anyone`` is not set.
        OSError: the name is unknown.
    """
    if not (options.udp or options.tcp):
        return []
    found: dict[Address, None] = {}
    for family, _, _, _, address in socket.getaddrinfo(
        options.host or None, 0, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
    ):
        if family in (socket.AF_INET, socket.AF_INET6):
            found[family, str(address[0])] = None
    for _, text in found:
        if not options.anyone and not is_loopback(text):
            raise NotLoopback(
                f"{options.host or 'every address'} can be reached from elsewhere, and StatsD knows"
                " no passwords: whoever sends a packet counts. If only those can reach it who may,"
                " say --anyone"
            )
    return list(found)
