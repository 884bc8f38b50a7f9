r"""Log lines that are JSON objects: strict parsing with its errors, paths (``a.b.0``, ``/a/b/0``),
and which fields of nginx, Caddy and Traefik give status, path, host and time.

Objects are read strictly by RFC 8259: ``NaN`` and ``Infinity`` are none of its values. An escape of
half a character (``\ud800`` alone) is rejected, as no text holds such; so are numbers that no float
can hold, and what is nested deeper than any log.

Paths are dotted (``a.b.0``) or JSON pointers (``/a/b/0``, https://www.rfc-editor.org/rfc/rfc6901).

A name that a line has means what the line says; the names of the combined format are understood
besides, from what tells them.

``ndjson``
    an object on every line: https://github.com/ndjson/ndjson-spec; so may an array have them.
``nginx-json``
    ``log_format NAME escape=json '{"…": "$…", …}'``: names are nginx's variables or whatever the
    log has. https://nginx.org/en/docs/varindex.html
``caddy``
    https://caddyserver.com/docs/caddyfile/directives/log and
    https://caddyserver.com/docs/logging
``traefik``
    ``accessLog.format=json``: https://doc.traefik.io/traefik/observability/access-logs/
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from countersink.logs.errors import Malformed
from countersink.logs.formats.line_format import client_of
from countersink.logs.formats.log_format import NGINX_ALIASES
from countersink.logs.line import TARGET_PARTS, decoded, split_request

Get = Callable[[object], object]

_TIMES: Final = ("time_iso8601", "time_local", "msec", "timestamp", "@timestamp")
_NGINX: Final = NGINX_ALIASES | {"time": _TIMES, "host": ("http_host", "server_name")}
"""``host`` is the site here, as in nginx."""
_CADDYS_REQUESTS: Final = "http.log.access"


# --- objects ------------------------------------------------------------------------------------


def json_object(line: bytes) -> dict[str, object]:
    """The object that a line is, without NULs around it.

    Raises:
        Malformed: it is none.
    """
    text = decoded(line)
    try:
        record: object = _DECODE(text)
    except RecursionError:
        raise Malformed("the line is JSON nested too deep") from None
    except ValueError as error:
        advice = r" (\x is none of JSON's; nginx: escape=json)" if r"\x" in text else ""
        raise Malformed(f"the line is no JSON: {error}{advice}") from None
    if not isinstance(record, dict):
        raise Malformed("the line is JSON, but no object")
    return record


_DECODE: Final = msgspec.json.Decoder().decode


# --- paths --------------------------------------------------------------------------------------


def path(text: str) -> tuple[str, ...]:
    """The steps of a path; those of a dotted one are divided by dots, whatever the names hold.

    Raises:
        ValueError: a step has no name.
    """
    if text.startswith("/"):
        return tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))
    steps = tuple(text.split("."))
    if not all(steps):
        raise ValueError(
            f"path {text!r} has a step without a name; for names with dots in them write a JSON"
            " pointer such as /http.status/code"
        )
    return steps


def getter(text: str) -> Get:
    """What reads the value at a path; it gives None where there is none, as for null."""
    steps = path(text)
    if len(steps) == 1:
        (name,) = steps

        def of_object(value: object) -> object:
            return value.get(name) if isinstance(value, dict) else None

        return of_object

    def deep(value: object) -> object:
        for step in steps:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and step.isascii() and step.isdigit():
                place = int(step[:9])
                value = value[place] if place < len(value) else None
            else:
                return None
        return value

    return deep


def as_text(value: object, name: str) -> str:
    """A value as the text of a key.

    Raises:
        Malformed: it is not there, null, an object or an array.
    """
    if isinstance(value, str):
        return value
    if value is None:
        raise Malformed(f"there is no {name}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise Malformed(f"{name} is an object or an array, not a text")


def text_of(get: Get, name: str) -> Callable[[object], str]:
    """What reads a value as the text of a key: see :func:`as_text`."""
    return lambda record: as_text(get(record), name)


def optional_text_of(get: Get, name: str) -> Callable[[object], str]:
    """The same for conditions: what is not there or null is an empty text."""
    return lambda record: "" if (value := get(record)) is None else as_text(value, name)


# --- formats ------------------------------------------------------------------------------------


def json_getter(input_format: str, name: str) -> Get:
    """What reads the field ``name`` of a format's objects, or what tells of it.

    Raises:
        ValueError: the name is no path.
    """
    own = getter(name)
    other = _TOLD.get(input_format, {}).get(name)
    return own if other is None else _either(own, other)


def json_time(input_format: str, names: Sequence[str] = ()) -> Get | None:
    """The reader of the times of a format's objects; it raises ``Malformed`` of what is no request.
    None: they have none.

    Args:
        names: the fields that are it instead; several are joined with spaces between.

    Raises:
        ValueError: a name is no path.
    """
    own = [json_getter(input_format, name) for name in names]
    if len(own) > 1:
        return lambda record: " ".join([as_text(get(record), "time") for get in own])
    time = own[0] if own else _TOLD.get(input_format, {}).get("time")
    return _of_caddys_request(time) if time and input_format == "caddy" else time


def _of_caddys_request(get: Get) -> Get:
    """Of requests alone: Caddy's other loggers tell of the same ones again, or of none."""

    def of_request(record: object) -> object:
        assert isinstance(record, dict)
        logger = record.get("logger")
        if type(logger) is str and not logger.startswith(_CADDYS_REQUESTS):
            raise Malformed(
                f"it is a message of Caddy's logger {logger[:40]!r}, no request"
                f" (--where 'logger~{_CADDYS_REQUESTS}*' leaves such out)"
            )
        return get(record)

    return of_request


def json_format_of(record: object) -> str | None:
    """The format that an object is of, by the names in it; None: it cannot be told."""
    if not isinstance(record, dict):
        return None
    request = record.get("request")
    if isinstance(request, dict) and "ts" in record and "uri" in request:
        return "caddy"
    if "RequestMethod" in record and ("StartUTC" in record or "time" in record):
        return "traefik"
    if any(isinstance(record.get(name), str) for name in ("request", "request_uri", "uri")) and any(
        name in record for name in _TIMES
    ):
        return "nginx-json"
    return None


def _from_request(part: int) -> Get:
    """Method, target or version of the request line ``$request``."""

    def get(record: object) -> object:
        assert isinstance(record, dict)
        request = record.get("request")
        if not isinstance(request, str):
            return None
        return split_request(request)[part]

    return get


def _any_of(*paths: str) -> Get:
    """The first of these paths at which something is that is not empty."""
    getters = [getter(path) for path in paths]

    def first(record: object) -> object:
        for get in getters:
            value = get(record)
            if value is not None and value != "":
                return value
        return None

    return first


_uri: Final = _any_of(*_NGINX["path"])
_args: Final = _any_of(*_NGINX["query"])


def _rewritten(record: object) -> object:
    """What nginx has made of the target."""
    uri, args = _uri(record), _args(record)
    return f"{uri}?{args}" if isinstance(uri, str) and isinstance(args, str) else uri


def _either(first: Get, second: Get) -> Get:
    def get(record: object) -> object:
        value = first(record)
        return second(record) if value is None else value

    return get


def _cut(get: Get, cut: Callable[[str], str]) -> Get:
    """A part of a text."""

    def part(record: object) -> object:
        value = get(record)
        return cut(value) if isinstance(value, str) else value

    return part


def _of_target(target: Get) -> dict[str, Get]:
    return {name: _cut(target, part) for name, part in TARGET_PARTS.items()}


_TOLD: Final[Mapping[str, Mapping[str, Get]]] = {
    "nginx-json": {
        **{name: _any_of(*others) for name, others in _NGINX.items()},
        # As the client sent it, before what nginx has made of it.
        **_of_target(_either(_any_of("request_uri"), _either(_from_request(1), _rewritten))),
        "method": _either(_any_of("request_method"), _from_request(0)),
        "protocol": _either(_any_of("server_protocol"), _from_request(2)),
    },
    "caddy": {
        **_of_target(getter("request.uri")),
        "host": _cut(
            _any_of("request.client_ip", "request.remote_ip", "request.remote_addr"), client_of
        ),
        "vhost": getter("request.host"),
        "user": getter("user_id"),
        "time": getter("ts"),
        "method": getter("request.method"),
        "protocol": getter("request.proto"),
        "referer": getter("request.headers.Referer.0"),
        "agent": getter("request.headers.User-Agent.0"),
    },
    "traefik": {
        **_of_target(getter("RequestPath")),
        "host": _cut(_any_of("ClientHost", "ClientAddr"), client_of),
        "vhost": _any_of("RequestHost", "RequestAddr"),
        "user": getter("ClientUsername"),
        "time": _any_of("StartUTC", "time", "StartLocal"),
        "method": getter("RequestMethod"),
        "protocol": getter("RequestProtocol"),
        "status": getter("DownstreamStatus"),
        "size": getter("DownstreamContentSize"),
        "referer": getter("/request_Referer"),
        "agent": getter("/request_User-Agent"),
    },
}
"""Names of the combined format, from what tells of them."""
JSON_FORMATS: Final = tuple(_TOLD)
