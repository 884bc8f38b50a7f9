"""Fields of JSON objects by dotted paths (``a.b.0``) or JSON pointers (``/a/b/0``).

JSON pointers: https://www.rfc-editor.org/rfc/rfc6901
"""

import math
from collections.abc import Callable

from countersink.producers.access_line import Malformed


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


def getter(text: str) -> Callable[[object], object]:
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


def as_optional_text(value: object, name: str) -> str:
    """The same for conditions: what is not there or null is an empty text."""
    return "" if value is None else as_text(value, name)
