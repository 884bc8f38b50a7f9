r"""Settings of the StatsD listener (``StatsdOptions``), and the map from StatsD names to counters
and keys (``Rules``).

The settings are sockets, and limits of amounts, counters, times and connections; they have defaults
and checks. ``addresses`` refuses hosts that are not loopback, unless ``anyone`` is set. The map is
a TOML file (``--map``) with rules, which have patterns and placeholders. ``counter_name`` makes a
valid counter name of the name of a metric that no rule matches, or of a rule's ``counter`` with its
placeholders filled.

The first rule that matches a name decides how the name is counted::

    unmatched = "count"          # or "drop": names that no rule matches are not counted

    [[rule]]
    match = "web.*.hits"         # * within a segment of the name, ** over dots too
    counter = "page_views"
    key = "$1"

    [[rule]]
    regex = 'api\.([a-z]+)\.v[0-9]+'    # matches complete names
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
"""Matches a placeholder, or a doubled character, which stands for the character itself."""
_MARK_BYTES: Final = 8
_MARK: Final = 2 * _MARK_BYTES + 1
"""Characters at the end of a shortened counter name that make it unique: ``-`` and 16 hex
digits.
"""
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_.:\-]", re.ASCII)

Target = tuple[str, RowKey]
"""The counter, and the key or dimensions, under which a metric is counted."""


def fill_template(text: str, name: str, captured: tuple[str, ...], tags: Mapping[str, str]) -> str:
    """Return a template with its placeholders replaced.

    ``$1`` (or ``${1}``) is the match of the pattern's first ``*``, ``**`` or group. ``{tag:city}``
    is the value of the metric's tag ``city``, or ``''`` if it has none. ``{name}`` is the metric's
    name. ``$$``, ``{{`` and ``}}`` are the characters ``$``, ``{`` and ``}``.

    Args:
        text: the template.
        name: the metric's name.
        captured: the matches of the pattern's ``*`` or groups.
        tags: the metric's tags, values by name.
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
    """Check the placeholders of a template.

    Args:
        text: the template: a rule's counter or key, or the value of a dimension.
        captures: the number of ``*`` or groups in the rule's pattern.

    Raises:
        ValueError: a ``$`` or brace is neither doubled nor part of a placeholder, or the number in
            a placeholder is 0 or above ``captures``.
    """
    stray = re.search("[${}]", _TOKEN.sub("", text))
    if stray is not None:
        raise ValueError(
            f"{text!r}: a {stray[0]} in it is no placeholder; placeholders are $1, {{tag:name}} and"
            " {name}; write $$, {{ and }} for the characters themselves"
        )
    for _, number, braced, _ in _TOKEN.findall(text):
        if (number or braced) and not 1 <= int(number or braced) <= captures:
            raise ValueError(
                f"{text!r}: there is no ${number or braced}: the pattern captures {captures}"
            )


class MapTable(msgspec.Struct, forbid_unknown_fields=True):
    """The top-level table in the map's file: ``unmatched``, and the rules, not checked yet."""

    unmatched: Literal["count", "drop"] = "count"
    rule: list[dict[str, Any]] = []


class Rule(msgspec.Struct, forbid_unknown_fields=True, dict=True):
    """A rule of the map: a pattern for complete names, and templates of their counter and key. The
    docstring of the module shows the fields of a rule in the file.

    Attributes:
        pattern: the compiled ``match`` or ``regex``.
        fixed: the counter, if ``counter`` has no placeholder; ``''`` if it has one, or if the rule
            drops names.

    Raises:
        ValueError: fields are missing, contradict each other or are invalid.
    """

    match: str | None = None
    regex: str | None = None
    counter: str | None = None
    key: str | None = None
    dimensions: dict[str, str] = {}
    drop: bool = False

    def __post_init__(self) -> None:
        if (self.match is None) == (self.regex is None):
            raise ValueError("either match or regex is required")
        self.pattern = _compiled(self.regex) if self.match is None else glob_pattern(self.match)
        if self.drop == (self.counter is not None):
            raise ValueError("either a counter or drop = true is required")
        if self.drop and (self.key is not None or self.dimensions):
            raise ValueError("drop = true excludes a key and dimensions")
        if self.dimensions and self.key is not None:
            raise ValueError("key and dimensions exclude each other: remove one of them")
        if self.counter == "":
            raise ValueError("counter is empty")
        check_dimensions(self.dimensions)
        counter = self.counter or ""
        for text in (counter, self.key or "", *self.dimensions.values()):
            _check_template(text, self.pattern.groups)
        varies = any(found[1] is None for found in _TOKEN.finditer(counter))
        self.fixed = "" if varies else counter_name(fill_template(counter, "", (), {}))

    def row_key(self, name: str, captured: tuple[str, ...], tags: Mapping[str, str]) -> RowKey:
        """Return the key or dimensions of a metric that the pattern matches, by their templates;
        ``''`` if the rule has neither. A key or value of more than 255 bytes is shortened. The
        arguments are those of :func:`fill_template`, without the template."""
        if not self.dimensions:
            return cut_key(fill_template(self.key or "", name, captured, tags))
        values = {
            dimension: fill_template(text, name, captured, tags)
            for dimension, text in self.dimensions.items()
        }
        return check_dimensions(values)


class Rules:
    """The rules of the map, in order, and whether names that no rule matches are counted.

    Attributes:
        rules: the rules.
        fixed: the counters of those rules whose ``counter`` has no placeholder; they do not count
            for ``max_counters``.
    """

    def __init__(self, rules: tuple[Rule, ...] = (), *, count_unmatched: bool = True) -> None:
        self.rules = rules
        self.fixed = frozenset(rule.fixed for rule in rules if rule.fixed)
        self._count_unmatched = count_unmatched

    def target(self, name: str, tags: Mapping[str, str]) -> Target | None:
        """Return the counter, and the key or dimensions, of a metric; return ``None`` if the map
        drops it. A name that no rule matches, if counted, becomes the counter, with the key ``''``.
        If a rule's ``counter`` is empty once it is filled, the name becomes the counter, too, but
        the key or dimensions are the rule's.
        """
        for rule in self.rules:
            found = rule.pattern.fullmatch(name)
            if found is None:
                continue
            if rule.counter is None:
                return None
            captured = tuple(part or "" for part in found.groups())
            # The metric's name replaces a template that is empty without a tag or group.
            filled = fill_template(rule.counter, name, captured, tags) or name
            return rule.fixed or counter_name(filled), rule.row_key(name, captured, tags)
        return (counter_name(name), "") if self._count_unmatched else None


T = TypeVar("T", MapTable, Rule)


def load(path: Path) -> Rules:
    """Read the rules of the map from its file.

    Raises:
        MapError: the file cannot be read, or its content is invalid.
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
    """Return the rules of the map, from the parsed TOML document.

    Raises:
        MapError: its content is invalid.
    """
    table = _checked(document, MapTable, "the file")
    rules = [_checked(rule, Rule, f"rule {number}") for number, rule in enumerate(table.rule, 1)]
    return Rules(tuple(rules), count_unmatched=table.unmatched == "count")


def _checked(found: Mapping[str, Any], kind: type[T], place: str) -> T:
    """Return a table of the file as an object of the class ``kind``.

    Args:
        found: the table.
        kind: the class.
        place: the table's name in the error message.

    Raises:
        MapError: a field is missing, unknown or invalid.
    """
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise MapError(f"{place}: {error}") from error


def glob_pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression for a rule's ``match``. ``*`` matches one or more characters
    except dots, ``**`` one or more of any characters. Both capture their match.

    Raises:
        MapError: ``text`` is empty, or has more than one ``**``, or more than two characters ``*``
            between dots. With more, a name could take seconds to match.
    """
    if not text:
        raise MapError("match is empty")
    if text.count("**") > 1 or any(part.count("*") > 2 for part in text.split(".")):
        raise MapError(f"match {text!r}: at most one ** in it and two * between dots are allowed")
    kinds = {"*": r"([^.]+)", "**": r"(.+)"}
    parts = [kinds.get(part) or re.escape(part) for part in _GLOB.findall(text)]
    return re.compile("".join(parts), re.DOTALL)


def _compiled(text: str | None) -> re.Pattern[str]:
    try:
        return re.compile(text or "", re.DOTALL)
    except re.error as error:
        raise MapError(f"regex {text!r} is no regular expression: {error}") from error


def counter_name(name: str) -> str:
    """Return the counter name for a metric's name, or for the filled ``counter`` of a rule; ``''``
    stays ``''``. Each character that a counter name cannot have becomes ``_``, so two names may
    give one counter. A result of more than 64 characters is cut to 64, which end with a hash of the
    complete name."""
    clean = _NOT_ALLOWED.sub("_", name)
    if len(clean) <= MAX_COUNTER_LENGTH:
        return clean
    digest = blake2b(name.encode(), digest_size=_MARK_BYTES).hexdigest()
    return f"{clean[: MAX_COUNTER_LENGTH - _MARK]}-{digest}"


PORT: Final = 8125
MAX_AMOUNT_LIMIT: Final = 10**12
"""The largest value of ``max_amount``. Even if all lines of one delivery to the producer have this
amount, their sum fits into 64 bits.
"""

MAX_SECONDS: Final = 1e12
"""The largest number of seconds or days in an option; it is beyond the range of any clock."""
DRAIN_SECONDS: Final = 1.0
"""Maximum seconds for which the listener continues to receive after a stop request, while more
lines arrive.
"""


@dataclass(frozen=True, kw_only=True)
class StatsdOptions:
    """The settings of a listener.

    Attributes:
        host: the address or name for UDP and TCP; ``''`` for every address.
        port: the port for UDP and TCP; 0 for any free port.
        udp, tcp: whether to listen by UDP, and whether by TCP.
        socket: the path of a unix datagram socket, or ``None`` to have no such socket.
        stream_socket: the path of a unix stream socket, or ``None`` to have no such socket.
        socket_mode: the permissions of the unix sockets.
        anyone: whether ``host`` is allowed to be other than loopback. If so, every machine that can
            send to the port can count anything.
        map: the path of the map's file, or ``None`` to use each name as a counter.
        receive_buffer: bytes of kernel memory, of each datagram socket, for datagrams that wait.
        max_amount: the largest absolute amount of a line, after its sample rate. A line beyond this
            or the limits of times is not counted, but recorded as malformed.
        max_counters: maximum number of counters that the listener makes from names since its start;
            a ``counter`` of the map without placeholders is not one of these. Lines with further
            names are counted in ``__overflow__``.
        max_ahead_s: seconds that a line's time may be ahead of this machine's clock.
        max_age_days: days that a line's time may be in the past; 0 for no limit.
        max_connections: the most open stream connections. A new one closes the connection that has
            not sent a complete line for the longest time.
        line_timeout_s: seconds that a line may take. A connection whose unfinished line takes
            longer is the first to be closed for a new one.

    Raises:
        ValueError: an option is out of range, or options contradict each other.
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
            raise ValueError(f"port is {self.port}: it must be 0 to 65535")
        if not 1 <= self.max_amount <= MAX_AMOUNT_LIMIT:
            raise ValueError(f"max_amount is {self.max_amount}: it must be 1 to {MAX_AMOUNT_LIMIT}")
        for name in ("receive_buffer", "max_counters", "max_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("max_ahead_s", "max_age_days", "line_timeout_s"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_SECONDS:
                raise ValueError(f"{name} is {value}: it must be 0 to {MAX_SECONDS:,.0f}")
        if self.receive_buffer >= 1 << 30:
            raise ValueError(f"receive_buffer is {self.receive_buffer}: it must be below 1 GiB")
        if not 0 <= self.socket_mode <= 0o777:
            raise ValueError("socket_mode must be an octal number such as 660")
        if self.socket and self.socket == self.stream_socket:
            raise ValueError(f"{self.socket} cannot be both a datagram and a stream socket")


Address = tuple[socket.AddressFamily, str]
"""The address family, and the numeric address with its scope if it has one."""


def addresses(options: StatsdOptions) -> list[Address]:
    """Return the addresses of ``host``, or an empty list if neither UDP nor TCP is wanted.

    Raises:
        NotLoopback: an address is not loopback, and ``anyone`` is not set.
        OSError: the host's name is unknown.
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
                f"other machines can send to {options.host or 'every address'}, and StatsD has no"
                " passwords: every packet is counted. If only trusted machines can send to it, add"
                " --anyone"
            )
    return list(found)
