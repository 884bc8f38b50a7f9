"""Query parameters: read strictly, and documented where they are declared.

An unknown parameter, one that is given twice, or a value that is none, ends the request with 422
and a sentence for each: a typing error must not look like an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from countersink.stream.limits import MAX_COUNTER_LENGTH
from countersink.web.problem import Problem

MAX_PARAMETERS: Final = 600
"""Parameters of one request."""
MAX_VALUES: Final = 400
"""Values of one parameter, as a rule."""
COUNTER_NAME: Final[Mapping[str, Any]] = {
    "type": "string",
    "pattern": f"^[A-Za-z0-9_.:-]{{1,{MAX_COUNTER_LENGTH}}}$",
}
"""The schema of what :func:`countersink.stream.limits.check_counter` takes."""
_SHOWN: Final = 20
"""Errors that are told at once."""


@dataclass(frozen=True, kw_only=True)
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
    """

    name: str
    read: Callable[[str], Any]
    description: str
    schema: Mapping[str, Any]
    default: Any = None
    repeatable: bool = False
    most: int = MAX_VALUES

    def document(self) -> dict[str, Any]:
        """The parameter in OpenAPI 3.1."""
        schema = dict(self.schema)
        if self.repeatable:
            schema = {"type": "array", "items": schema, "maxItems": self.most}
        found: dict[str, Any] = {
            "name": self.name,
            "in": "query",
            "description": self.description,
            "schema": schema,
        }
        if self.repeatable:
            found |= {"style": "form", "explode": True}
        return found


def read(request: Request, known: Sequence[Parameter]) -> dict[str, Any]:
    """The values of all ``known`` parameters, by name.

    Bytes of the query that are no UTF-8 become lone surrogates, as everywhere where keys are text.

    Raises:
        Problem: 422.
    """
    declared = {parameter.name: parameter for parameter in known}
    values: dict[str, Any] = {p.name: () if p.repeatable else p.default for p in known}
    errors: list[dict[str, str]] = []
    given: set[str] = set()
    for name, text in _pairs(request):
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


def refuse(name: str, why: str) -> Problem:
    """A 422 for one parameter."""
    return Problem(422, "Some parameters are not valid", extra={"errors": [_error(name, why)]})


def whole(smallest: int, largest: int) -> Callable[[str], int]:
    """Reads a whole number of a range."""

    def read_number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > len(str(largest)):
            raise ValueError(f"give a whole number from {smallest:,} to {largest:,}")
        if not smallest <= int(text) <= largest:
            raise ValueError(f"give a whole number from {smallest:,} to {largest:,}")
        return int(text)

    return read_number


def yes_or_no(text: str) -> bool:
    """Reads ``true`` or ``false``."""
    if text not in ("true", "false"):
        raise ValueError("give true or false")
    return text == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    """Reads one of some words."""

    def read_choice(text: str) -> str:
        if text not in choices:
            raise ValueError(f"give one of {', '.join(choices)}")
        return text

    return read_choice


def _pairs(request: Request) -> list[tuple[str, str]]:
    query = request.scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(
            query,
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError:
        raise Problem(422, f"At most {MAX_PARAMETERS} parameters fit into one request") from None


def _error(name: str, detail: str) -> dict[str, str]:
    # Shown to whoever sent it; a lone surrogate would be no valid JSON text for some readers.
    return {"parameter": name.encode("utf-8", "backslashreplace").decode()[:80], "detail": detail}
