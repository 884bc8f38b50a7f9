"""Parameters of queries (``from``, ``to``, ``key``, ``prefix``, ``format`` ...): their
descriptions, checks, most per request, and the texts of 422; and which counters a key may name
(403).

An unknown parameter, one that is given twice, or a value that is none, ends the request with 422
and a sentence for each: a typing error must not look like an answer.
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
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem

MAX_PARAMETERS: Final = 600
"""Parameters of one request."""
MAX_VALUES: Final = 400
"""Values of one parameter, as a rule."""
COUNTER_NAME: Final[Mapping[str, Any]] = {
    "type": "string",
    "pattern": f"^[A-Za-z0-9_.:-]{{1,{MAX_COUNTER_LENGTH}}}$",
}
"""The schema of what :func:`countersink.runtime.limits.check_counter` takes."""
MAX_SEQUENCE_BYTES: Final = 255
"""Of the name of a sequence."""
TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_SHOWN: Final = 20
"""Errors that are told at once."""
_DAY_SCHEMA: Final = {"type": "string", "format": "date", "examples": ["2026-11-21"]}
_KEY_SCHEMA: Final[Mapping[str, Any]] = {"type": "string", "maxLength": MAX_KEY_BYTES}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a query.

    Attributes:
        name: as in the URL.
        read: turns its text into a value; ValueError says what is allowed.
        description: one sentence.
        schema: of its values (JSON Schema).
        default: the value where it is not given; of a repeatable one the empty tuple.
        repeatable: may be given several times; its value is then a tuple.
        most: how many times.
        required: for the document: it has to be given.
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
        """The parameter in OpenAPI 3.1."""
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
    """A parameter that is a whole number of a range."""

    def read_number(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not (digits and least <= int(text) <= most):
            raise ValueError(f"give a whole number from {least:,} to {most:,}")
        return int(text)

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Parameter(name, read_number, description, schema, default=default)


def flag(name: str, description: str, *, default: bool = False) -> Parameter:
    """A parameter that is ``true`` or ``false``."""

    def read_flag(text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError("give true or false")
        return text == "true"

    return Parameter(name, read_flag, description, {"type": "boolean"}, default=default)


def choice(
    name: str, choices: Iterable[str], description: str, *, default: str | None = None
) -> Parameter:
    """A parameter that is one of some words."""
    words = list(choices)

    def read_choice(text: str) -> str:
        if text not in words:
            raise ValueError(f"give one of {', '.join(words)}")
        return text

    schema = {"type": "string", "enum": words}
    return Parameter(name, read_choice, description, schema, default=default)


def short_text(name: str, whose: str, most: int, description: str, default: str = "") -> Parameter:
    """A parameter that is any text of so many characters, of what ``whose`` says."""

    def read_text(text: str) -> str:
        if len(text) > most:
            raise ValueError(f"{whose} has at most {most} characters")
        return text

    schema = {"type": "string", "maxLength": most}
    return Parameter(name, read_text, description, schema, default=default)


def several(
    name: str, read: Callable[[str], Any], description: str, schema: Mapping[str, Any] = TEXT
) -> Parameter:
    """A parameter that may be given several times."""
    return Parameter(name, read, description, schema, repeatable=True)


def read_parameters(scope: Scope, known: Sequence[Parameter]) -> dict[str, Any]:
    """The values of all ``known`` parameters of a request's query, by name.

    Bytes of the query that are no UTF-8 become lone surrogates, as everywhere where keys are text.

    Raises:
        Problem: 422.
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
            errors.append(_error(name, f"there is no such parameter here; there are: {allowed}"))
        elif name in given and not parameter.repeatable:
            errors.append(_error(name, "it is given more than once"))
        elif parameter.repeatable and len(values[name]) >= parameter.most:
            error = _error(name, f"it is given more than {parameter.most} times")
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
        raise Problem(422, "Some parameters are not valid", extra={"errors": errors[:_SHOWN]})
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
        raise Problem(422, f"At most {MAX_PARAMETERS} parameters fit into one request") from None


def refuse(name: str, why: str) -> Problem:
    """A 422 for one parameter."""
    return Problem(422, "Some parameters are not valid", extra={"errors": [_error(name, why)]})


def _error(name: str, detail: str) -> dict[str, str]:
    # Shown to whoever sent it; a lone surrogate would be no valid JSON text for some readers.
    return {"parameter": name.encode("utf-8", "backslashreplace").decode()[:80], "detail": detail}


# What several endpoints take.


def _edge(text: str) -> date:
    """A day, or an aware time; ValueError: it is neither."""
    edge = read_edge(text.replace(" ", "+"))  # in a query `+` stands for a blank
    check_range(edge, None)
    return edge


def _zone(text: str) -> str:
    # A name is no longer than this; what is looked up in a list is not for megabytes.
    return buckets.zone(text[:80]).key


def _part_of_key(text: str) -> str:
    if len(text_bytes(text)) > MAX_KEY_BYTES:
        raise ValueError(f"a key has at most {MAX_KEY_BYTES} bytes")
    return text


def _prefix_to_exclude(text: str) -> str:
    if not text:
        raise ValueError("give the begin of the keys: all keys begin with an empty one")
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
    "First day, inclusive, or the time at which the range begins, with its offset. Default: where"
    " the data begins.",
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
    "Instead of both: so many minutes, hours or days up to now. Days are whole days, today's"
    " included; the rest is whole buckets of the counter, the one that is open now included.",
    {"type": "string", "pattern": "^[0-9]{1,9}[mhd]$", "examples": ["24h", "90m", "7d"]},
)
TIME_ZONE: Final = Parameter(
    "time_zone",
    _zone,
    "Whose days, hours and months: an IANA name. Default: each counter's own.",
    {"$ref": "#/components/schemas/TimeZone"},
)
KEYS: Final = several(
    "key",
    stored_form,
    "This key alone; may be given several times. One of more than 255 bytes is looked"
    " for in the form in which it is counted.",
)
INCLUDE_PENDING: Final = flag(
    "include_pending",
    "Add, exactly, what is still in the queue. Takes time with the queue's length, and is 503 where"
    " there is too much in it.",
)
FORMAT: Final = choice(
    "format",
    ("json", "csv"),
    "Default: csv where the header Accept asks for text/csv alone, else json.",
)
SPREADSHEET: Final = flag(
    "spreadsheet", "CSV for people: a `'` before what a spreadsheet would run as a formula."
)
PREFIX: Final = several(
    "prefix",
    _part_of_key,
    "Keys that begin so, byte by byte; may be given several times, and beside key.",
    _KEY_SCHEMA,
)
SEARCH: Final = Parameter(
    "search",
    _part_of_key,
    "Only keys that have this in them, byte by byte.",
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
    "Without keys that begin so, byte by byte; may be given several times.",
    {**_KEY_SCHEMA, "minLength": 1},
)
PICKED: Final = (KEYS, PREFIX, SEARCH, EXCLUDE_KEYS, EXCLUDE_PREFIX)
"""Which keys; :func:`picked_keys` reads their values."""
IN_PATH: Final[Mapping[str, Mapping[str, Any]]] = {
    "counter": {
        "description": "The counter's name. Of `.` and `..` write `~.` and `~..`: clients take them"
        " for steps in the path.",
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
"""Parameters of paths, for the document; others are any text."""


def picked_keys(given: Mapping[str, Any]) -> Keys:
    """Which keys the values of :data:`PICKED` are about."""
    match = KeyMatch(
        keys=given["key"],
        prefix=given["prefix"],
        contains=given["search"],
        exclude_keys=given["exclude_key"],
        exclude_prefix=given["exclude_prefix"],
    )
    return wanted_keys(None, None, match)


def own_counter(request: Request, who: Identity) -> str:
    """The counter that the path of a request names, which they may see.

    Raises:
        Problem: 404 it can be none; 403 it is not theirs.
    """
    return require_own(counter_of_path(request), who)


def require_own(name: str, who: Identity) -> str:
    """The name of a counter, which they may see.

    Raises:
        Problem: as :func:`own_counter`.
    """
    if not is_name(name):
        raise Problem(
            404, "There is no such counter: names are 1 to 64 characters of A-Z a-z 0-9 _ . : -"
        )
    if not who.may_name(name):
        raise Problem(403, "This key is not for this counter")
    return name


def counter_of_path(request: Request) -> str:
    """The counter that the path of a request names, which may be none.

    A ``~`` before it is no part of it, as no name begins so: the counters ``.`` and ``..`` need
    one, or clients take them for steps in the path (RFC 3986, 5.2.4), however encoded.
    """
    return str(request.path_params["counter"]).removeprefix("~")
