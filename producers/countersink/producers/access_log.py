r"""Access logs in the common and combined formats (Apache, nginx and what writes like them).

::

    127.0.0.1 - bob [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 2326
    127.0.0.1 - bob [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 2326 "referer" "agent"

Further fields after the agent are allowed (nginx's ``main`` format has one) and ignored.
Formats: https://httpd.apache.org/docs/2.4/mod/mod_log_config.html and
https://nginx.org/en/docs/http/ngx_http_log_module.html

A line's key is one of

``path``
    the request target without its query string; of an absolute target (a proxy's
    ``http://host/path``) the path alone;
``target``
    the request target as it was sent;
``host``
    the client's address or name;
``status``
    the three digits of the response's status.

**How a log's bytes become a key.** Servers write ``"``, ``\`` and unprintable bytes as ``\"``,
``\\``, ``\xhh`` and the like; that is undone, so that the key is what the client sent. Keys are
UTF-8: a byte that is not part of valid UTF-8 becomes ``%HH``, the way a URL spells it.
Percent-escapes that the client sent stay as they are.
"""

import codecs
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, get_args

from countersink.stream.limits import check_key, check_minute

KeyKind = Literal["path", "target", "host", "status"]
KEY_KINDS: Final[tuple[KeyKind, ...]] = get_args(KeyKind)

Counts = dict[tuple[str, int], int]
"""(key, whole Unix minutes) to hits."""

_CACHED: Final = 50_000
"""Requests and minutes remembered as parsed; beyond that the memory is emptied."""

# Nothing here backtracks (possessive, atomic), so that a hostile line costs no more than its
# length, and a time or request that a client wrote into its referer is never taken for the real.
_TIME: Final = rb"\[(\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d):(?:[0-5]\d|60) ([+-]\d{4})\] "
_QUOTED: Final = rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_UNREAD: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_LINE: Final = re.compile(
    rb"([^ ]+) [^ ]+ "  # client, ident
    # The user may hold spaces. One that begins with "- " is really the ident of a line with
    # something more in front (a virtual host), whose first field is not the client.
    rb"(?!- (?!\[\d\d/))(?>.*? "
    + _TIME
    + rb")"
    + _QUOTED
    + rb" (\d{3}) (?:\d+|-)"
    + rb"(?: "
    + _UNREAD
    + rb" "
    + _UNREAD
    + rb"(?: .*)?)?\s*",
    re.DOTALL,
)
_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110
_VERSION: Final = re.compile(rb"HTTP/\d(?:\.\d+)?")
_TARGET: Final = re.compile(rb"/|\*\Z|[A-Za-z][A-Za-z0-9+.-]*://|[^\s/?#@]+:\d+\Z")
_ORIGIN: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_ESCAPE: Final = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_ESCAPES: Final = {
    b'"': b'"',
    b"\\": b"\\",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}
_MONTH_NAMES: Final = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
_MONTHS: Final = {
    name.encode(): number for number, name in enumerate(_MONTH_NAMES.split(), start=1)
}


class Malformed(ValueError):
    """A line that cannot be counted; the message says why."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that was not counted.

    Attributes:
        line: its number in its file, from 1.
        reason: why, as a phrase.
    """

    line: int
    reason: str


class Parser:
    """Reads lines for one kind of key. Remembers requests and minutes; not thread-safe."""

    def __init__(self, kind: KeyKind) -> None:
        self.kind = kind
        self._group = {"path": 4, "target": 4, "host": 1, "status": 5}[kind]
        self._read_key: Callable[[bytes], str] = {
            "path": _path,
            "target": _target,
            "host": _text,
            "status": _text,
        }[kind]
        self._keys: dict[bytes, str] = {}
        self._minutes: dict[bytes, int] = {}

    def parse(self, line: bytes) -> tuple[str, int]:
        """The key and the whole Unix minute of ``line`` (with or without its newline).

        Raises:
            Malformed: the line has not the format, or gives no valid key.
        """
        match = _LINE.fullmatch(line)
        if match is None:
            raise Malformed(_diagnosis(line))
        return self._key(match[self._group]), self._minute(match[2] + match[3])

    def count(self, lines: Iterable[bytes], first: int, counts: Counts) -> list[Rejected]:
        """Add each line's hit to ``counts`` and return the lines that gave none.

        Blank lines are neither. Runs of NUL before a line, as a truncated log has them, are
        ignored.

        Args:
            lines: without their newlines.
            first: the number of the first of them.
            counts: added to.
        """
        rejected: list[Rejected] = []
        fullmatch, group = _LINE.fullmatch, self._group
        keys, minutes = self._keys, self._minutes
        for number, line in enumerate(lines, first):
            match = fullmatch(line)
            try:
                if match is None:
                    if stripped := line.strip(b"\0 \t\r"):
                        cell = self.parse(stripped)
                    else:
                        continue
                else:
                    raw, when = match[group], match[2] + match[3]
                    cell = (
                        keys[raw] if raw in keys else self._key(raw),
                        minutes[when] if when in minutes else self._minute(when),
                    )
            except Malformed as error:
                rejected.append(Rejected(number, str(error)))
            else:
                counts[cell] = counts.get(cell, 0) + 1
        return rejected

    def _key(self, raw: bytes) -> str:
        key = self._keys.get(raw)
        if key is None:
            try:
                key = check_key(self._read_key(raw))
            except Malformed:
                raise
            except ValueError as error:
                raise Malformed(str(error)) from None
            if len(self._keys) >= _CACHED:
                self._keys.clear()
            self._keys[raw] = key
        return key

    def _minute(self, raw: bytes) -> int:
        minute = self._minutes.get(raw)
        if minute is None:
            minute = _minute_of(raw)
            if len(self._minutes) >= _CACHED:
                self._minutes.clear()
            self._minutes[raw] = minute
        return minute


def _path(request: bytes) -> str:
    target = _request_target(request)
    origin = _ORIGIN.match(target)
    if origin is not None:
        target = target[origin.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
    return _text(target.partition(b"?")[0])


def _target(request: bytes) -> str:
    return _text(_request_target(request))


def _request_target(request: bytes) -> bytes:
    """The target in a request line, still escaped. A line without a version is HTTP/0.9.

    Spaces inside the target, which some servers let pass, are kept.
    """
    if request in (b"-", b""):
        raise Malformed("the client sent no request")
    method, _, rest = request.rstrip(b" ").partition(b" ")
    target, _, version = rest.rpartition(b" ")
    versioned = _VERSION.fullmatch(version) is not None
    target = (target if versioned else rest).strip(b" ")
    if _METHOD.fullmatch(method) is None or _TARGET.match(target) is None:
        raise Malformed("the request is not 'method target version'")
    if not versioned and (method != b"GET" or b" " in target):
        raise Malformed("the request has no HTTP version")
    return target


def _text(raw: bytes) -> str:
    """What the client sent, as text: see the module's docstring."""
    if b"\\" in raw:
        raw = _ESCAPE.sub(_unescaped, raw)
    return raw.decode("utf-8", _PERCENT)


def _unescaped(match: re.Match[bytes]) -> bytes:
    code: bytes = match[1]
    if len(code) == 3:
        return bytes.fromhex(code[1:].decode())
    return _ESCAPES.get(code, match[0])


def _percent(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    bad = error.object[error.start : error.end]
    return "".join(f"%{byte:02X}" for byte in bad), error.end


_PERCENT: Final = "countersink-percent"
codecs.register_error(_PERCENT, _percent)


def _minute_of(raw: bytes) -> int:
    """Whole Unix minutes of ``17/May/2015:10:05+0000``; seconds never matter."""
    try:
        day, month, year = int(raw[:2]), _MONTHS[raw[3:6]], int(raw[7:11])
        local = datetime(year, month, day, int(raw[12:14]), int(raw[15:17]), tzinfo=UTC)
        hours, minutes = int(raw[18:20]), int(raw[20:22])
        if hours > 23 or minutes > 59:
            raise ValueError("such a time zone does not exist")
        offset = hours * 60 + minutes
        ahead = -offset if raw[17:18] == b"-" else offset
        return check_minute(int(local.timestamp()) // 60 - ahead)
    except KeyError:
        raise Malformed(f"there is no month {raw[3:6].decode()}") from None
    except ValueError as error:
        raise Malformed(f"the time cannot be: {error}") from None


def _diagnosis(line: bytes) -> str:
    """Which part of the format a line that did not match lacks."""
    opened = re.search(_TIME, line)
    if opened is None:
        return "there is no time such as [17/May/2015:10:05:03 +0000]"
    before = line[: opened.start()]
    if re.fullmatch(rb"[^ ]+ [^ ]+ .* ", before, re.DOTALL) is None:
        return "client, ident and user do not stand before the time"
    if re.match(rb"[^ ]+ [^ ]+ - .", before, re.DOTALL):
        return "there is a field too many before the time (a virtual host?)"
    rest = line[opened.end() :]
    request = re.match(_QUOTED, rest, re.DOTALL)
    if request is None:
        return "the quoted request is missing or cut off"
    if re.match(rb" \d{3} (?:\d+|-)", rest[request.end() :]) is None:
        return "status and size do not follow the request"
    return "the line is cut off, or the quoted referer and agent are malformed"
