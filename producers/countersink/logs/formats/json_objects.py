r"""Log lines that are JSON objects: parses them strictly, reads members at paths (``a.b.0``,
``/a/b/0``), and knows the members in which nginx, Caddy and Traefik have status, path, host, time.

Objects are parsed by RFC 8259, without ``NaN`` and ``Infinity``. The parser also rejects the escape
of a lone surrogate (``\ud800``), numbers out of a float's range, and very deep nesting.

Paths are dotted (``a.b.0``) or JSON pointers (``/a/b/0``, https://www.rfc-editor.org/rfc/rfc6901).

The name of a field is a path, and the field is the object's member at that path. If the member is
missing or null, a field of the combined format is read from other members (``_GETTERS``).

``ndjson``
    an object on every line: https://github.com/ndjson/ndjson-spec; also an array of such lines.
``nginx-json``
    ``log_format NAME escape=json '{"…": "$…", …}'``; members may be named like nginx's variables
    or otherwise. https://nginx.org/en/docs/varindex.html
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
"""Field names, each with the variables of nginx that give the field, best first. ``host`` is the
requested site, as nginx's ``$host``, and not the client as in other formats.
"""
_CADDY_REQUEST_LOGGER: Final = "http.log.access"


# --- objects ------------------------------------------------------------------------------------


def json_object(line: bytes) -> dict[str, object]:
    """Parse the JSON object on a line.

    Raises:
        Malformed: the line is no JSON object.
    """
    text = decoded(line)
    try:
        record: object = _DECODE(text)
    except RecursionError:
        raise Malformed("the line is JSON nested too deep") from None
    except ValueError as error:
        advice = r" (JSON has no \x escape; nginx: escape=json)" if r"\x" in text else ""
        raise Malformed(f"the line is no JSON: {error}{advice}") from None
    if not isinstance(record, dict):
        raise Malformed("the line is JSON, but no object")
    return record


_DECODE: Final = msgspec.json.Decoder().decode


# --- paths --------------------------------------------------------------------------------------


def path(text: str) -> tuple[str, ...]:
    """Return the steps of a path: names of members, or numbers of array elements. A path that
    begins with ``/`` is a JSON pointer; any other path is split at its dots.

    Raises:
        ValueError: a step of a dotted path has no name.
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
    """Return a function that takes an object and returns the value at a path. The function returns
    None if there is no value, or if it is null.

    Raises:
        ValueError: a step of a dotted path has no name.
    """
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
    """Return the text of a JSON value, for use in a key: a text unchanged, ``true``, ``false``, or
    a number as Python writes it. Error messages call the value ``name``.

    Raises:
        Malformed: the value is missing, null, an object or an array.
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
    """Return a function that reads a value by ``get`` and makes a text of it by :func:`as_text`;
    ``name`` is the field's name for errors."""
    return lambda record: as_text(get(record), name)


def optional_text_of(get: Get, name: str) -> Callable[[object], str]:
    """Return a function that reads a value by ``get`` and makes a text of it by :func:`as_text`. It
    returns '' if the value is missing or null; ``name`` is the field's name for errors.
    """
    return lambda record: "" if (value := get(record)) is None else as_text(value, name)


# --- formats ------------------------------------------------------------------------------------


def json_getter(input_format: str, name: str) -> Get:
    """Return a function that reads the field ``name`` from a format's objects: the member at the
    path ``name`` or, if that is missing or null, the member in which this format has the field. The
    function returns None if there is neither.

    Raises:
        ValueError: ``name`` is a dotted path, in which a step has no name.
    """
    by_path = getter(name)
    other = _GETTERS.get(input_format, {}).get(name)
    return by_path if other is None else _or_else(by_path, other)


def json_time(input_format: str, names: Sequence[str] = ()) -> Get | None:
    """Return a function that reads the time from a format's objects; None if the format has no time
    and ``names`` is empty.

    With several names, the function returns a text, and raises ``Malformed`` if an object lacks one
    of them. With one name or none, it returns the value as it is, None if that is missing; for
    ``caddy``, it raises ``Malformed`` for a message of another logger than Caddy's request logger.

    Args:
        input_format: the name of the format.
        names: the fields with the time; the texts of several are joined by spaces. If empty, the
            format's own field is read.

    Raises:
        ValueError: a name is a dotted path, in which a step has no name.
    """
    getters = [json_getter(input_format, name) for name in names]
    if len(getters) > 1:
        return lambda record: " ".join([as_text(get(record), "time") for get in getters])
    time = getters[0] if getters else _GETTERS.get(input_format, {}).get("time")
    return _caddy_request_getter(time) if time and input_format == "caddy" else time


def _caddy_request_getter(get: Get) -> Get:
    """Return a function that applies ``get`` to objects of Caddy's request logger, or without a
    logger's name. The function raises ``Malformed`` for objects of other loggers: these log
    requests a second time, or other things.
    """

    def of_request(record: object) -> object:
        assert isinstance(record, dict)
        logger = record.get("logger")
        if type(logger) is str and not logger.startswith(_CADDY_REQUEST_LOGGER):
            raise Malformed(
                f"it is a message of Caddy's logger {logger[:40]!r}, no request"
                f" (--where 'logger~{_CADDY_REQUEST_LOGGER}*' leaves these out)"
            )
        return get(record)

    return of_request


def json_format_of(record: object) -> str | None:
    """Return the format of an object by its members: ``caddy``, ``traefik`` or ``nginx-json``; None
    if the members are of none of these formats.
    """
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
    """Return a function that reads the method (0), target (1) or version (2) in nginx's
    ``$request``. The function returns None if the object has no text ``request``, and raises
    ``Malformed`` if this text is no request line."""

    def get(record: object) -> object:
        assert isinstance(record, dict)
        request = record.get("request")
        if not isinstance(request, str):
            return None
        return split_request(request)[part]

    return get


def _any_of(*paths: str) -> Get:
    """Return a function that returns an object's first value at ``paths`` that is neither
    missing, null nor ''; None if there is no such value.
    """
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
    """Return the request target as nginx rewrote it, from the path and the query in an object;
    the path alone if there is no query, None if there is no path.
    """
    uri, args = _uri(record), _args(record)
    return f"{uri}?{args}" if isinstance(uri, str) and isinstance(args, str) else uri


def _or_else(first: Get, second: Get) -> Get:
    def get(record: object) -> object:
        value = first(record)
        return second(record) if value is None else value

    return get


def _part_of(get: Get, cut: Callable[[str], str]) -> Get:
    """Return a function that reads a text by ``get``, and returns the part of it that ``cut``
    returns. A value that is no text is returned unchanged.
    """

    def part(record: object) -> object:
        value = get(record)
        return cut(value) if isinstance(value, str) else value

    return part


def _of_target(target: Get) -> dict[str, Get]:
    return {name: _part_of(target, part) for name, part in TARGET_PARTS.items()}


_GETTERS: Final[Mapping[str, Mapping[str, Get]]] = {
    "nginx-json": {
        **{name: _any_of(*others) for name, others in _NGINX.items()},
        # As the client sent it, before nginx rewrote it.
        **_of_target(_or_else(_any_of("request_uri"), _or_else(_from_request(1), _rewritten))),
        "method": _or_else(_any_of("request_method"), _from_request(0)),
        "protocol": _or_else(_any_of("server_protocol"), _from_request(2)),
    },
    "caddy": {
        **_of_target(getter("request.uri")),
        "host": _part_of(
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
        "host": _part_of(_any_of("ClientHost", "ClientAddr"), client_of),
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
"""Functions that read the fields of the combined format from objects, by JSON format and field."""
JSON_FORMATS: Final = tuple(_GETTERS)
