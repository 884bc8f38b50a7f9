"""Parameters of queries (``from``, ``to``, ``key``, ``prefix``, ``format`` ...) and of paths: their
descriptions and checks; and the check that a key may name a counter (403).

An unknown or repeated parameter, or an invalid value, ends the request with 422 and a sentence for
each (20 at most): a misspelt parameter must not be ignored.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import date
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.types import Scope

from countersink.counting.counters import buckets
from countersink.counting.totals.selection import KeyMatch, Keys, Last, check_range, wanted_keys
from countersink.runtime.limits import (
    MAX_COUNTER_LENGTH,
    MAX_KEY_BYTES,
    is_name,
    stored_form,
    text_bytes,
)
from countersink.runtime.texts import read_day, read_edge
from countersink.store import boards
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem

MAX_PARAMETERS: Final = 600
"""Maximum number of parameters of one request."""
MAX_VALUES: Final = 400
"""Default of how many times a repeatable parameter may be given."""
COUNTER_NAME: Final[Mapping[str, Any]] = {
    "type": "string",
    "pattern": f"^[A-Za-z0-9_.:-]{{1,{MAX_COUNTER_LENGTH}}}$",
}
"""The JSON schema of counters' names. It agrees with
:func:`countersink.runtime.limits.check_counter`."""
MAX_SEQUENCE_BYTES: Final = 255
"""Maximum bytes of a sequence's name."""
TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_MAX_ERRORS: Final = 20
"""Maximum number of errors in one answer."""
_DAY_SCHEMA: Final = {"type": "string", "format": "date", "examples": ["2026-11-21"]}
_KEY_SCHEMA: Final[Mapping[str, Any]] = {"type": "string", "maxLength": MAX_KEY_BYTES}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a query.

    Attributes:
        name: its name in the URL.
        read: returns the value of a text from the query; its ValueError tells which texts are
            allowed.
        description: one sentence for the OpenAPI document.
        schema: the JSON schema of one value.
        default: the value if the parameter is not given. A repeatable parameter has the empty tuple
            instead.
        repeatable: True where it may be given several times; then its value is a tuple.
        most: how many times it may be given, if it is repeatable.
        required: True marks it as required in the OpenAPI document only; the handler has to check
            that it is given.
    """

    name: str
    read: Callable[[str], Any]
    description: str
    schema: Mapping[str, Any]
    _: KW_ONLY
    default: Any = None
    repeatable: bool = False
    most: int = MAX_VALUES
    required: bool = False

    def document(self) -> dict[str, Any]:
        """Return the parameter object of OpenAPI 3.1 that describes this parameter."""
        schema = dict(self.schema)
        if self.repeatable:
            schema = {"type": "array", "items": schema, "maxItems": self.most}
        elif self.default is not None:
            schema.setdefault("default", self.default)
        found: dict[str, Any] = {
            "name": self.name,
            "in": "query",
            "description": self.description,
            "schema": schema,
        }
        if self.required:
            found["required"] = True
        return found


def number(
    name: str, least: int, most: int, description: str, *, default: int | None = None
) -> Parameter:
    """Return a parameter whose value is an int from ``least`` to ``most``, both allowed."""

    def read_number(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not (digits and least <= int(text) <= most):
            raise ValueError(f"give a whole number from {least:,} to {most:,}")
        return int(text)

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Parameter(name, read_number, description, schema, default=default)


def flag(name: str, description: str, *, default: bool = False) -> Parameter:
    """Return a parameter that is written ``true`` or ``false``; its value is a bool."""

    def read_flag(text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError("give true or false")
        return text == "true"

    return Parameter(name, read_flag, description, {"type": "boolean"}, default=default)


def choice(
    name: str, choices: Iterable[str], description: str, *, default: str | None = None
) -> Parameter:
    """Return a parameter whose value is one of ``choices``."""
    values = list(choices)

    def read_choice(text: str) -> str:
        if text not in values:
            raise ValueError(f"give one of {', '.join(values)}")
        return text

    schema = {"type": "string", "enum": values}
    return Parameter(name, read_choice, description, schema, default=default)


def short_text(name: str, whose: str, most: int, description: str, default: str = "") -> Parameter:
    """Return a parameter whose value is any text of up to ``most`` characters. Messages of errors
    begin with ``whose``, such as ``a label``."""

    def read_text(text: str) -> str:
        if len(text) > most:
            raise ValueError(f"{whose} has at most {most} characters")
        return text

    schema = {"type": "string", "maxLength": most}
    return Parameter(name, read_text, description, schema, default=default)


def several(
    name: str, read: Callable[[str], Any], description: str, schema: Mapping[str, Any] = TEXT
) -> Parameter:
    """Return a parameter that may be given up to :data:`MAX_VALUES` times. ``read`` and ``schema``
    are for one value."""
    return Parameter(name, read, description, schema, repeatable=True)


def read_parameters(scope: Scope, known: Sequence[Parameter]) -> dict[str, Any]:
    """Return the values of all ``known`` parameters in a request's query, by name. The value of a
    repeatable parameter is a tuple of its values in their order, maybe empty. Any other parameter
    that is not given has its default.

    Bytes that are not UTF-8 would become lone surrogates; ``web/app.py`` refuses them before.

    Raises:
        Problem: 422 some parameters are unknown, given too often or not valid, or there are more
            than :data:`MAX_PARAMETERS` in all.
    """
    values: dict[str, Any] = {p.name: () if p.repeatable else p.default for p in known}
    if not scope["query_string"]:
        return values
    declared = {parameter.name: parameter for parameter in known}
    errors: list[dict[str, str]] = []
    given: set[str] = set()
    for name, text in _pairs(scope["query_string"].decode("latin-1")):
        parameter = declared.get(name)
        if parameter is None:
            allowed = ", ".join(sorted(declared)) or "none"
            errors.append(_error(name, f"there is no such parameter here; allowed are: {allowed}"))
        elif name in given and not parameter.repeatable:
            errors.append(_error(name, "give it once only"))
        elif parameter.repeatable and len(values[name]) >= parameter.most:
            error = _error(name, f"give it {parameter.most} times at most")
            errors += [] if error in errors else [error]
        else:
            given.add(name)
            try:
                value = parameter.read(text)
            except ValueError as error:
                errors.append(_error(name, str(error)))
            else:
                values[name] = (*values[name], value) if parameter.repeatable else value
    if errors:
        raise Problem(422, "Some parameters are not valid", extra={"errors": errors[:_MAX_ERRORS]})
    return values


def _pairs(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query,
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError:
        raise Problem(422, f"A request has at most {MAX_PARAMETERS} parameters") from None


def refuse(name: str, why: str) -> Problem:
    """Return the problem (422) which says that the parameter ``name`` is not valid, and ``why``."""
    return Problem(422, "Some parameters are not valid", extra={"errors": [_error(name, why)]})


def _error(name: str, detail: str) -> dict[str, str]:
    # Some JSON parsers refuse lone surrogates.
    return {"parameter": name.encode("utf-8", "backslashreplace").decode()[:80], "detail": detail}


# Parameters of several endpoints.


def _edge(text: str) -> date:
    """Return the day (date) or the time with UTC offset (datetime) in a text: ``from`` or ``to``.

    Raises:
        ValueError: the text is neither, or its time has no UTC offset, is not a whole minute, or is
            out of bounds.
    """
    edge = read_edge(text.replace(" ", "+"))  # an unencoded `+` of a query is decoded as a space
    check_range(edge, None)
    return edge


def _zone(text: str) -> str:
    # No name is longer; cut before it is looked up and quoted.
    return buckets.zone(text[:80]).key


def _part_of_key(text: str) -> str:
    if len(text_bytes(text)) > MAX_KEY_BYTES:
        raise ValueError(f"a key has at most {MAX_KEY_BYTES} bytes")
    return text


def _prefix_to_exclude(text: str) -> str:
    if not text:
        raise ValueError("give a prefix that is not empty: it would exclude all keys")
    return _part_of_key(text)


START: Final = Parameter(
    "from", read_day, "First day, inclusive. Default: where the data begins.", _DAY_SCHEMA
)
END: Final = Parameter(
    "to", read_day, "Last day, inclusive. Default: where the data ends.", _DAY_SCHEMA
)
_EDGE_SCHEMA: Final[Mapping[str, Any]] = {
    "oneOf": [
        _DAY_SCHEMA,
        {"type": "string", "format": "date-time", "examples": ["2026-11-21T08:00Z"]},
    ]
}
SINCE: Final = Parameter(
    "from",
    _edge,
    "First day, inclusive, or the time at which the range begins, with its UTC offset. Default:"
    " where the data begins.",
    _EDGE_SCHEMA,
)
UNTIL: Final = Parameter(
    "to",
    _edge,
    "Last day, inclusive, or the time before which the range ends. Default: where the data ends.",
    _EDGE_SCHEMA,
)
LAST: Final = Parameter(
    "last",
    lambda text: Last.of(text[:40]),
    "Instead of from and to: the last minutes, hours, days or weeks up to now. `7d` is 7 whole"
    " days, today included; `1w` is this whole week, from Monday on; minutes and hours are whole"
    " buckets of the counter, the open one included.",
    {"type": "string", "pattern": "^[0-9]{1,9}[mhdw]$", "examples": ["24h", "90m", "7d", "2w"]},
)
TIME_ZONE: Final = Parameter(
    "time_zone",
    _zone,
    "Time zone of the days, weeks, hours and months: an IANA name. Default: each counter's own.",
    {"$ref": "#/components/schemas/TimeZone"},
)
KEYS: Final = several(
    "key",
    stored_form,
    "Only this key; may be given several times. A key of more than 255 bytes is"
    " cut as when it is counted.",
)
INCLUDE_PENDING: Final = flag(
    "include_pending",
    "Add the rows that are still in the queue, exactly. Takes time in proportion to the queue; 503"
    " if the queue is too long.",
)
FORMAT: Final = choice(
    "format",
    ("json", "csv"),
    "Default: csv if the header Accept has text/csv and not application/json, else json.",
)
SPREADSHEET: Final = flag(
    "spreadsheet", "CSV for spreadsheets: a `'` before texts that would be run as formulas."
)
PREFIX: Final = several(
    "prefix",
    _part_of_key,
    "Only keys with this prefix, byte by byte; may be given several times, and together with key.",
    _KEY_SCHEMA,
)
SEARCH: Final = Parameter(
    "search",
    _part_of_key,
    "Only keys that contain this, byte by byte.",
    _KEY_SCHEMA,
    default="",
)
EXCLUDE_KEYS: Final = several(
    "exclude_key",
    stored_form,
    "Without this key; may be given several times.",
)
EXCLUDE_PREFIX: Final = several(
    "exclude_prefix",
    _prefix_to_exclude,
    "Without keys with this prefix, byte by byte; may be given several times.",
    {**_KEY_SCHEMA, "minLength": 1},
)
PICKED: Final = (KEYS, PREFIX, SEARCH, EXCLUDE_KEYS, EXCLUDE_PREFIX)
"""Parameters that select keys. :func:`picked_keys` makes a selection of their values."""
IN_PATH: Final[Mapping[str, Mapping[str, Any]]] = {
    "board": {"schema": {"type": "string", "pattern": boards.NAME.pattern}},
    "counter": {
        "description": "The counter's name. Write `.` and `..` as `~.` and `~..`: clients remove"
        " them from paths.",
        "schema": COUNTER_NAME,
    },
    "day": {"schema": {"type": "string", "format": "date"}},
    "job": {"description": "Such as `compact`.", "schema": TEXT},
    "key": {"description": "May hold slashes.", "schema": TEXT},
    "name": {
        "description": f"At most {MAX_SEQUENCE_BYTES} bytes of UTF-8; may hold slashes.",
        "schema": {"type": "string", "maxLength": MAX_SEQUENCE_BYTES},
    },
}
"""Descriptions and schemas of parameters of paths, for the OpenAPI document. A parameter that is
not listed may be any text."""


def picked_keys(given: Mapping[str, Any]) -> Keys:
    """Return the keys that the values of the parameters :data:`PICKED` select; None, which means
    all keys, where none of these parameters is given."""
    match = KeyMatch(
        keys=given["key"],
        prefix=given["prefix"],
        contains=given["search"],
        exclude_keys=given["exclude_key"],
        exclude_prefix=given["exclude_prefix"],
    )
    return wanted_keys(None, None, match)


def permitted_counter(request: Request, who: Identity) -> str:
    """Return the counter's name in the path of a request, if ``who`` may name this counter. The
    counter need not exist.

    Raises:
        Problem: 404 no counter can have the name; 403 ``who`` may not name the counter.
    """
    return require_permitted(counter_of_path(request), who)


def require_permitted(name: str, who: Identity) -> str:
    """Return ``name`` if ``who`` may name the counter with this name. The counter need not exist.

    Raises:
        Problem: as :func:`permitted_counter`.
    """
    if not is_name(name):
        raise Problem(
            404, "There is no such counter: names are 1 to 64 characters of A-Z a-z 0-9 _ . : -"
        )
    if not who.may_name(name):
        raise Problem(403, "This key may not name this counter")
    return name


def counter_of_path(request: Request) -> str:
    """Return the counter's name in the path of a request. The name may be invalid.

    A leading ``~`` is removed, as no name begins with ``~``. The counters ``.`` and ``..`` are
    written ``~.`` and ``~..`` in paths: clients remove the segments ``.`` and ``..``, however they
    are encoded (RFC 3986, 5.2.4).
    """
    return str(request.path_params["counter"]).removeprefix("~")
