"""Named access log formats, by a pattern for each: combined, common, vhost_combined, AWS ALB
(``alb``) and HAProxy; tells which of them need ``--time-zone``.

The formats are documented at https://httpd.apache.org/docs/2.4/mod/mod_log_config.html (combined,
common and vhost_combined), https://docs.aws.amazon.com/elasticloadbalancing/latest/application/
load-balancer-access-logs.html and https://docs.haproxy.org/3.0/configuration.html#8.2.3.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from countersink.logs.errors import Malformed
from countersink.logs.formats.line_format import (
    COMBINED,
    COMMON,
    DECIMAL,
    ISO,
    NUMBER,
    STATUS,
    AccessField,
    Layout,
    LineFormat,
    ValuePlace,
    client_text,
    clock_minute,
    layout,
    of_request,
    plain,
)
from countersink.logs.line import (
    CLIENT,
    ESCAPED,
    HOST_NAME,
    IPV4,
    IPV6,
    LAST_QUOTED,
    decoded,
    line_pattern,
    minute_of,
    text,
)
from countersink.logs.times import Clock

_VHOST: Final = rb"(?:" + HOST_NAME + rb"|" + IPV4 + rb"|\[[0-9A-Fa-f:.]++\]|_|\*)"


def _vhost_pattern(captured: Collection[str], *, agent: bytes | None = None) -> bytes:
    vhost = b"(?P<vhost>" + _VHOST + b")" if "vhost" in captured else _VHOST
    port = rb"(?P<port>\d++)" if "port" in captured else rb"\d++"
    # A client "-" only before an ident "-": else a user of two words would be ident and user.
    site = vhost + rb"(?::" + port + rb")? (?!- (?!- ))"
    return b"(?:" + site + b")?" + line_pattern(captured, agent=agent)


_ALB: Final = layout(
    "{type} {time} {balancer} {host} {target_address} {request_time} {target_time} {response_time}"
    ' {status} {target_status} {received} {size} "{request}" "{agent}" {cipher} {tls}'
    ' {target_group} "{trace}"{vhost}',
    {
        "type": rb"(?:https?|h2|grpcs|wss?)",
        "time": ISO,
        "host": rb"(?:" + CLIENT + rb")",
        "status": STATUS,
        "target_status": STATUS,
        **dict.fromkeys(("request_time", "target_time", "response_time"), DECIMAL),
        **dict.fromkeys(("received", "size"), NUMBER),
        **dict.fromkeys(("request", "agent", "trace"), ESCAPED),
        # Lines from before 2018 end with the trace id, or have a bare - for what follows it.
        "vhost": rb'(?: (?:"' + ESCAPED + rb'"|[^ "\n]++)|(?! ))',
    },
    end=rb"(?: .*)?",
)

_HASHED: Final = re.compile(rb"#([0-9A-Fa-f]{2})")


def _haproxy_text(raw: bytes) -> str:
    """Return the text that the client sent, from the bytes in a log of HAProxy. HAProxy writes
    ``"``, ``#`` and unprintable bytes as ``#hh``. It does not escape a backslash.
    """
    if b"#" in raw:
        raw = _HASHED.sub(lambda found: bytes.fromhex(found[1].decode()), raw)
    return decoded(raw)


def _haproxy_client(raw: bytes) -> str:
    """Return the client's address without its port, from the bytes in a log of HAProxy: an IPv6
    address need not have brackets. For a client on a Unix socket, return ``unix``.
    """
    return client_text(raw.rpartition(b":")[0] or raw)


_HAPROXY_CLIENT: Final = rb"(?:" + IPV6 + rb"(?::\d{1,5})?(?= )|unix:\d++|-:-|" + CLIENT + rb")"
_COUNTS: Final = rb"-?[\d+]\d*+(?:/[+-]?\d++)"
_HAPROXY: Final = layout(
    "{host} [{time}] {frontend} {backend}/{server} {timers} {status} {size} {request_cookie}"
    ' {response_cookie} {termination} {connections} {queue} {headers}"{request}',
    {
        "host": _HAPROXY_CLIENT,
        "time": rb"\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d:\d\d\.\d{3}",
        "backend": rb"[^ /\n]++",
        "timers": _COUNTS + rb"{4}",
        "status": rb"(?:\d\d\d|-1)",
        "size": rb"\+?\d++",
        "termination": rb"[^ \n]{4}",
        "connections": _COUNTS + rb"{4}",
        "queue": rb"\d++/\d++",
        "headers": rb"(?>(?:\{[^}\n]*+\} ){0,2})",
        "request": rb'[^"\n]*+"?+',
    },
    end=rb"(?: .*)?",
)


def _apache_format(
    name: str,
    fields: Mapping[str, AccessField],
    pattern: Callable[..., bytes] = line_pattern,
) -> LineFormat:
    """Make one of Apache's formats: combined, common or vhost_combined. Their times have a zone.
    ``pattern`` makes the pattern of a line, as :func:`line_pattern` does.
    """
    return LineFormat(
        name=name,
        pattern=pattern,
        fields=fields,
        times=("minute", "zone"),
        minute=lambda found: minute_of(b"".join(found)),
        exception=partial(pattern, agent=LAST_QUOTED),
    )


def _balancer_format(
    name: str, line: Layout, clock: Clock, fields: dict[str, AccessField]
) -> LineFormat:
    """Make a load balancer's format. Each value in the layout ``line`` is a field; ``fields`` adds
    others, or replaces some. ``clock`` parses the value ``time``.
    """
    places = {part.group: plain(part.group) for part in line.parts if isinstance(part, ValuePlace)}
    return LineFormat(
        name=name,
        pattern=line.pattern,
        fields=places | fields,
        times=("time",),
        minute=clock_minute(clock),
        diagnosis=line.diagnosis,
    )


_ALB_FIELDS: Final = {
    "host": AccessField(("host",), client_text),
    "vhost": AccessField(("vhost",), lambda raw: text(raw.strip(b' "'))),
    **of_request("request"),
}


def _request_field(name: str, field: AccessField) -> AccessField:
    """Return a field ``name`` like ``field``, for request lines of HAProxy, whose bytes include the
    closing quote. If the quote is missing, HAProxy has cut off the line. Then only ``method`` and
    ``path`` can be read, and only if the cut is after the ``?``; otherwise the field raises
    ``Malformed``.
    """

    def read(raw: bytes) -> str:
        request, quote, _ = raw.partition(b'"')
        if not quote:
            request, asked, _ = request.partition(b"?")
            if not asked or name not in ("method", "path"):
                raise Malformed("the line is cut off in its request")
            request += b" HTTP/1.1"
        return field.read(request)

    return AccessField(field.groups, read)


_HAPROXY_FIELDS: Final = {
    "host": AccessField(("host",), _haproxy_client),
    **{
        name: _request_field(name, field)
        for name, field in of_request("request", _haproxy_text).items()
    },
}
_VHOST_FIELDS: Final = {"vhost": plain("vhost"), "port": plain("port"), **COMBINED}
_HAPROXY_TIME: Final = "%d/%b/%Y:%H:%M:%S.%f"
_MAKERS: Final[dict[str, Callable[[str], LineFormat]]] = {
    "combined": lambda _: _apache_format("combined", COMBINED),
    "common": lambda _: _apache_format("common", COMMON),
    "vhost_combined": lambda _: _apache_format("vhost_combined", _VHOST_FIELDS, _vhost_pattern),
    "alb": lambda _: _balancer_format("alb", _ALB, Clock(), _ALB_FIELDS),
    "haproxy": lambda time_zone: _balancer_format(
        "haproxy", _HAPROXY, Clock(_HAPROXY_TIME, time_zone), _HAPROXY_FIELDS
    ),
}
PATTERNED: Final = tuple(_MAKERS)
"""The names of the formats in this module."""
ZONELESS: Final = ("haproxy",)
"""The names of formats whose times have no zone."""


def named_format(name: str, time_zone: str = "") -> LineFormat:
    """Make the format with a name from :data:`PATTERNED`.

    Args:
        name: the name of the format.
        time_zone: the IANA name of the zone of times that have none; '' for none.

    Raises:
        ValueError: the format's times have no zone and none is given, they have a zone and one is
            given, or the given zone does not exist.
    """
    if name in ZONELESS:
        if not time_zone:
            raise ValueError(
                f"{name} logs have times without a zone: give the server's by --time-zone"
            )
    elif time_zone:
        raise ValueError(f"{name} logs have times with their zone: leave --time-zone out")
    return _MAKERS[name](time_zone)
