"""nginx's access log as JSON: ``log_format NAME escape=json '{"…": "$…", …}'``.

Field names are nginx's variables or whatever the log has. A name that a line has means what the
line says; the names of the combined format are understood besides, from the variables that tell
them: https://nginx.org/en/docs/varindex.html
"""

from collections.abc import Callable
from typing import Final

from countersink.backfill.formats import json_paths
from countersink.backfill.formats.json_lines import JsonLines
from countersink.backfill.formats.rule import Rule
from countersink.backfill.recipe import Recipe
from countersink.backfill.times import Clock
from countersink.producers.access_line import PERCENT, path_of, split_request

Get = Callable[[object], object]

_TIMES: Final = ("time_iso8601", "time_local", "msec", "timestamp", "@timestamp")
_ALIASES: Final = {
    "host": ("http_host", "server_name"),
    "user": ("remote_user",),
    "time": _TIMES,
    "size": ("body_bytes_sent", "bytes_sent"),
    "referer": ("http_referer",),
    "agent": ("http_user_agent",),
}
"""Names of the combined format that are one variable. ``host`` is the site here, as in nginx."""


def nginx_json(recipe: Recipe, minutes: tuple[int, int] | None) -> JsonLines:
    """Reads such logs for a recipe that :func:`countersink.backfill.formats.check` has let pass."""

    def field(name: str) -> Callable[[object], str]:
        get = _getter(name)
        return lambda record: json_paths.as_text(get(record), name)

    def optional(name: str) -> Callable[[object], str]:
        get = _getter(name)
        return lambda record: json_paths.as_optional_text(get(record), name)

    clock = Clock(recipe.time_format, recipe.time_zone)
    time = _getter(recipe.time_column) if recipe.time_column else _first_of(_TIMES)
    return JsonLines(
        Rule(
            recipe,
            minutes,
            field=field,
            optional=optional,
            minute=lambda record: clock.minute(time(record)),
            amount=_getter(recipe.amount_column) if recipe.amount_column else None,
        )
    )


def _getter(name: str) -> Get:
    """What reads the field ``name``, or what tells it."""
    own = json_paths.getter(name)
    told = _TOLD.get(name)
    if told is None and name in _ALIASES:
        told = _first_of(_ALIASES[name])
    if told is None:
        return own
    other = told

    def either(record: object) -> object:
        value = own(record)
        return other(record) if value is None else value

    return either


def _first_of(names: tuple[str, ...]) -> Get:
    """The first of these fields that is there and not empty."""

    def first(record: object) -> object:
        assert isinstance(record, dict)
        for name in names:
            value = record.get(name)
            if value is not None and value != "":
                return value
        return None

    return first


def _from_request(part: int) -> Get:
    """Method, target or version of the request line ``$request``."""

    def get(record: object) -> object:
        assert isinstance(record, dict)
        request = record.get("request")
        if not isinstance(request, str):
            return None
        return split_request(request.encode())[part].decode("utf-8", PERCENT)

    return get


_request_uri: Final = _first_of(("request_uri",))
_uri: Final = _first_of(("uri", "document_uri"))
_args: Final = _first_of(("args", "query_string"))
_request_target: Final = _from_request(1)
_method: Final = _first_of(("request_method",))
_request_method: Final = _from_request(0)
_protocol: Final = _first_of(("server_protocol",))
_request_protocol: Final = _from_request(2)


def _target(record: object) -> object:
    """As it was sent, or as nginx has made it out."""
    target = _request_uri(record)
    if target is None:
        target, args = _uri(record), _args(record)
        if isinstance(target, str) and isinstance(args, str):
            target = f"{target}?{args}"
    return _request_target(record) if target is None else target


def _path(record: object) -> object:
    target = _target(record)
    if not isinstance(target, str):
        return target
    return path_of(target.encode()).decode()


def _query(record: object) -> object:
    target = _target(record)
    return target.partition("?")[2] if isinstance(target, str) else None


def _either(first: Get, second: Get) -> Get:
    def get(record: object) -> object:
        value = first(record)
        return second(record) if value is None else value

    return get


_TOLD: Final[dict[str, Get]] = {
    "target": _target,
    "path": _path,
    "query": _query,
    "method": _either(_method, _request_method),
    "protocol": _either(_protocol, _request_protocol),
}
"""Names of the combined format that are made of several variables."""
