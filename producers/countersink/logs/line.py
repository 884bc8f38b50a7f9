r"""Lines in the common or combined log format: patterns of their addresses, request and time, the
conversion of bytes to text, and the reason for rejecting a line (``diagnosis``).

::

    127.0.0.1 - bob [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 2326
    127.0.0.1 - bob [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 2326 "referer" "agent"

Further fields after the agent are allowed (nginx's ``main`` format has one) and ignored.
Formats: https://httpd.apache.org/docs/2.4/mod/mod_log_config.html and
https://nginx.org/en/docs/http/ngx_http_log_module.html

**From bytes to text.** Servers write ``"``, ``\`` and unprintable bytes as ``\"``, ``\\``, ``\xhh``
and the like. These escapes are undone, so that the text is as the client sent it. A byte that is
not part of valid UTF-8 becomes ``%HH``, as in a URL. Percent-escapes that the client sent stay.
"""

import codecs
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from countersink.logs.errors import Malformed
from countersink.runtime.limits import check_event_minute

ESCAPED: Final = rb'[^"\\\n]*+(?>(?:\\.[^"\\\n]*+)*)'
"""The pattern of a text between quotes in which any character may be escaped. It does not use
``(?:…)*+``: such groups go wrong before Python 3.11.5 (python/cpython#106052).
"""

# No pattern here backtracks, so that a hostile line costs no more than its length.
# Four octets written out are matched faster than a repeated group, and a set faster than \d.
IPV4: Final = rb"\.".join([rb"[0-9]{1,3}"] * 4)
_HEX: Final = rb"[0-9A-Fa-f]{1,4}"
IPV6: Final = (
    rb"(?!(?:[0-9A-Fa-f]*:){9})(?:"
    rb"(?:" + _HEX + rb":){6}(?:" + _HEX + rb":" + _HEX + rb"|" + IPV4 + rb")"
    rb"|(?:" + _HEX + rb"(?::" + _HEX + rb"){0,6})?"
    rb"::(?:(?:" + _HEX + rb":){0,5}" + IPV4 + rb"|" + _HEX + rb"(?::" + _HEX + rb"){0,6})?"
    rb")(?:%[\w.-]+)?"
)
HOST_NAME: Final = rb"(?!(?>(?:[\w-]+\.)*)\d+\.?(?![\w.-]))[\w-]+(?>(?:\.[\w-]+)*)\.?"
"""The pattern of a host name. Its last label is no number: a number there belongs to an address."""
_ONE_CLIENT: Final = (
    rb"(?:" + IPV4 + rb"(?::\d{1,5})?"
    rb"|" + IPV6 + rb"|\[" + IPV6 + rb"\](?::\d{1,5})?"
    rb"|" + HOST_NAME + rb"|unix:|-)(?![\w.:%-])"
)
CLIENT: Final = (
    rb"(?:" + IPV4 + rb"(?= )|" + _ONE_CLIENT + rb"(?>(?:, ?(?!-)" + _ONE_CLIENT + rb")*)(?!,))"
)
"""The pattern of a client: an IP address, with or without a port, or a host name; ``unix:`` and
``-`` mean that there is no address. Also matches a list as in X-Forwarded-For, which begins with
the client.
"""
ADDRESS: Final = (
    rb"(?:" + IPV4 + rb"|" + IPV6 + rb"|\[" + IPV6 + rb"\]|" + HOST_NAME + rb"|unix:|-)"
)
"""The pattern of a client without a port, whatever text follows."""
_ADDRESS_AND_SPACE: Final = (
    rb"(?:" + IPV4 + rb"(?::\d{1,5})?"
    rb"|\[?[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:\]:\d{1,5})?),? "
)

_MINUTE: Final = rb"\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d"
_SECOND: Final = rb":(?:[0-5]\d|60) "
_ZONE: Final = rb"[+-]\d{4}"
_TIME: Final = rb"\[(" + _MINUTE + rb")" + _SECOND + rb"(" + _ZONE + rb")\] "
_QUOTED: Final = rb'"' + ESCAPED + rb'"'
_URL: Final = rb'[A-Za-z][A-Za-z0-9+.-]*+://[^ "\n]*+'
"""The pattern of a referer without quotes."""
LAST_QUOTED: Final = rb'(?>(?:(?!\] "|"\s*\Z).)*)'
"""The pattern of the last quoted text of a line, which may have unescaped quotes in it. It does not
match a text with a time and a request in it: these are of another line that lost its beginning.
"""

USER: Final = (
    rb"(?:-(?= \[\d\d/)|(?!- )[^ \n]*+"
    rb"(?>(?: (?!\[\d\d/|- |" + _ADDRESS_AND_SPACE + rb")[^ \n]*+)*))"
)
"""The pattern of the user before the time; a user may have spaces. It does not match a text that
looks like client, ident and user of another line: there, the rest of another line comes first.
"""


def line_pattern(
    captured: Collection[str],
    between_quotes: bytes = ESCAPED,
    *,
    only: bytes | None = None,
    agent: bytes | None = None,
) -> bytes:
    """Return the pattern of a line in common or combined format, up to the end of the line.

    All groups of the pattern are possessive or atomic, so it does not backtrack: even a hostile
    line is matched in a time that grows with its length only. A time or request that a client wrote
    into its referer is never taken for the line's own. The pattern must not be compiled with
    ``re.DOTALL``.

    Args:
        captured: the fields that become named groups, any of ``host ident user time minute zone
            request status size referer agent``; groups are numbered in this order. The groups
            ``referer`` and ``agent`` include the quotes. ``minute`` and ``zone`` joined are the
            argument of :func:`minute_of`.
        between_quotes: the pattern of a quoted text without its quotes.
        only: the pattern of the times to find; None finds any time. Lines with other times do not
            match, nor do some lines whose user has spaces; callers match these without ``only``.
            If it is given, ``captured`` must not have ``time``, ``minute`` or ``zone``.
        agent: the pattern of the agent without its quotes; None stands for ``between_quotes``.
    """

    def field(name: str, pattern: bytes) -> bytes:
        return b"(?P<%s>%s)" % (name.encode(), pattern) if name in captured else pattern

    ident = b"(?>" + field("ident", rb"(?!" + _ADDRESS_AND_SPACE + rb")[^ \n]+") + b" )"
    if only is None:
        time = field("time", field("minute", _MINUTE) + _SECOND + field("zone", _ZONE))
        user = field("user", USER)
    else:
        # No spaces, so that the time after the user is the first time of the line.
        time, user = only, field("user", rb"[^ \n]++")
    quoted = b'(?:"' + between_quotes + b'"'
    agent = quoted if agent is None else b'(?:"' + agent + b'"'
    names = ident + user + b" "
    if "ident" not in captured and "user" not in captured:
        names = rb"(?>- - (?=\[\d\d/)|" + names + b")"  # as nearly all lines have it
    before_time = names + rb"\[" + time + rb"\] "
    behind = b"".join(
        (
            field("status", rb"(?:\d\d\d|-)") + b" " + field("size", rb"(?:\d++|-)"),
            b"(?: " + field("referer", quoted + rb"|-|" + _URL + b")"),
            b" " + field("agent", agent + rb"|-)") + b"(?: .*)?)?",
        )
    )
    if not {"status", "size", "referer", "agent"}.intersection(captured):
        # The first alternative is only faster than the second.
        plain = rb"[0-9]{3} [0-9]++ " + quoted + b") " + agent + rb")(?=\n)"
        behind = b"(?:" + plain + b"|" + behind + b")"
    return b"".join(
        (
            b"(?>" + field("host", CLIENT) + b" )",
            before_time,
            b'"' + field("request", between_quotes) + b'" ',
            behind,
        )
    )


_METHOD: Final = re.compile(r"[!#$&'*+.^_`|~0-9A-Za-z-]+")
"""The pattern of a method: a token of RFC 9110. It has no percent sign, since :func:`text` writes
bytes that are no UTF-8 with that sign.
"""
_VERSION: Final = re.compile(r"HTTP/[0-9](?:\.[0-9]+)?")
_TARGET: Final = re.compile(r"/|\*\Z|[A-Za-z][A-Za-z0-9+.-]*://|[^\s/?#@]+:[0-9]+\Z")
_ORIGIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_BACKSLASH: Final = ord("\\")  # looked for much faster than b"\\"
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


def split_request(request: str) -> tuple[str, str, str]:
    """Split a request line into method, target and version.

    Only a GET without spaces in its target may lack the version (HTTP/0.9), which is '' then.
    Before a version, spaces inside the target are kept, because some servers accept them.

    Raises:
        Malformed: the text is no request line, or lacks its version.
    """
    method, _, rest = check_target(request).rstrip(" ").partition(" ")
    target, _, version = rest.rpartition(" ")
    versioned = _VERSION.fullmatch(version) is not None
    target = (target if versioned else rest).strip(" ")
    if _METHOD.fullmatch(method) is None or _TARGET.match(target) is None:
        raise Malformed("the request is not 'method target version'")
    if not versioned and (method != "GET" or " " in target):
        raise Malformed("the request has no HTTP version")
    return method, target, version if versioned else ""


def check_target(target: str) -> str:
    """Return the request target unchanged, if the client sent a request.

    Raises:
        Malformed: the target is empty or ``-``: the client sent no request.
    """
    if target in ("-", ""):
        raise Malformed("the client sent no request")
    return target


def path_of(target: str) -> str:
    """Return the path of a request target: without the query string, and without the scheme and
    host of an absolute URL.

    Raises:
        Malformed: the target is empty or ``-``: the client sent no request.
    """
    if not target.startswith("/"):
        origin = _ORIGIN.match(check_target(target))
        if origin is not None:
            target = target[origin.end() :]
            if not target.startswith("/"):
                target = "/" + target
    return target.partition("?")[0]


TARGET_PARTS: Final[Mapping[str, Callable[[str], str]]] = {
    "target": check_target,
    "path": path_of,
    "query": lambda target: check_target(target).partition("?")[2],
}
"""Functions that return a field of a request target, by the name of the field."""


def text(raw: bytes) -> str:
    """Return the text that the client sent, from the bytes in the log; the module's docstring has
    the rules.
    """
    if _BACKSLASH in raw:
        raw = _ESCAPE.sub(_unescaped, raw)
    return decoded(raw)


def decoded(raw: bytes) -> str:
    """Return the text of bytes that have no escapes; a byte that is no UTF-8 becomes ``%HH``."""
    return raw.decode("utf-8", PERCENT)


def _unescaped(match: re.Match[bytes]) -> bytes:
    code: bytes = match[1]
    if len(code) == 3:
        return bytes.fromhex(code[1:].decode())
    return _ESCAPES.get(code, match[0])


def _percent(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    bad = error.object[error.start : error.end]
    return "".join(f"%{byte:02X}" for byte in bad), error.end


PERCENT: Final = "countersink-percent"
"""The error handler of ``bytes.decode`` that writes bytes that are no UTF-8 as ``%HH``."""
codecs.register_error(PERCENT, _percent)


def minute_of(raw: bytes) -> int:
    """Return the Unix minute of a time that is written without seconds: ``17/May/2015:10:05+0000``.

    Raises:
        Malformed: the time does not exist, or lies before 1970 or more than 366 days ahead.
    """
    try:
        hour, minute = int(raw[12:14]), int(raw[15:17])
        if hour > 23 or minute > 59:
            raise ValueError("a day has 24 hours of 60 minutes")
        return check_event_minute(_midnight(raw[:11], raw[17:]) + hour * 60 + minute)
    except KeyError:
        raise Malformed(f"there is no month {raw[3:6].decode()}") from None
    except ValueError as error:
        raise Malformed(f"the time cannot be counted: {error}") from None


@lru_cache(maxsize=4096)
def _midnight(day: bytes, zone: bytes) -> int:
    """Return the Unix minute at which a day begins: ``17/May/2015`` in the zone ``+0200``.

    Raises:
        KeyError: there is no such month.
        ValueError: there is no such day or zone.
    """
    try:
        date = datetime(int(day[7:11]), _MONTHS[day[3:6]], int(day[:2]), tzinfo=UTC)
    except ValueError:
        raise ValueError(f"there is no such day as {day.decode()}") from None
    hours, minutes = int(zone[1:3]), int(zone[3:5])
    if hours > 23 or minutes > 59:
        raise ValueError("there is no such time zone")
    offset = hours * 60 + minutes
    return int(date.timestamp()) // 60 - (-offset if zone[:1] == b"-" else offset)


_NAMES: Final = re.compile(
    CLIENT
    + rb" (?!"
    + _ADDRESS_AND_SPACE
    + rb")[^ ]+ "
    + USER.replace(rb"(?= \[\d\d/)", rb"")
    + b" "
)


def diagnosis(line: bytes) -> str:
    """Return the reason for rejecting a line that is neither in common nor in combined format. The
    reason names the first part of the format that is missing or malformed.
    """
    opened = re.search(_TIME, line)
    if opened is None:
        return (
            "it has no time such as [17/May/2015:10:05:03 +0000], as lines of an access log have"
            " (--log-format reads other layouts)"
        )
    if _NAMES.fullmatch(line[: opened.start()]) is None:
        return (
            "the text before the time is not client, ident and user"
            " (--log-format reads other layouts)"
        )
    rest = line[opened.end() :]
    request = re.match(_QUOTED, rest)
    if request is None:
        return "the quoted request is missing or cut off"
    if re.match(rb" (?:\d{3}|-) (?:\d+|-)", rest[request.end() :]) is None:
        return "status and size do not follow the request"
    return "the line is cut off, or the quoted referer and agent are malformed"
