"""Key templates: text with ``{field}`` in it, where ``{{`` and ``}}`` are braces."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

R = TypeVar("R")

_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


@dataclass(frozen=True, slots=True)
class Field:
    """The place of a field in a template."""

    name: str


def parse(template: str) -> tuple[str | Field, ...]:
    """The texts and fields of ``template``, in order.

    Raises:
        ValueError: a brace without its partner, or a field without a name.
    """
    parts: list[str | Field] = []
    for match in _PART.finditer(template):
        found = match[0]
        if match[1] is not None:
            name = match[1].strip()
            if not name:
                raise ValueError(f"key template {template!r}: {{}} names no field")
            parts.append(Field(name))
            continue
        if found in ("{", "}"):
            raise ValueError(
                f"key template {template!r}: the {found} at character {match.start() + 1} stands"
                " alone; fields are written {path}, and braces {{ and }}"
            )
        plain = {"{{": "{", "}}": "}"}.get(found, found)
        if parts and isinstance(parts[-1], str):
            parts[-1] += plain
        else:
            parts.append(plain)
    return tuple(parts)


def fields(parts: Sequence[str | Field]) -> tuple[str, ...]:
    """The names of the fields in it, each once."""
    return tuple(dict.fromkeys(part.name for part in parts if isinstance(part, Field)))


def fill(
    parts: Sequence[str | Field], getter: Callable[[str], Callable[[R], str]]
) -> Callable[[R], str]:
    """What makes a key of a record.

    Args:
        parts: what :func:`parse` returned.
        getter: gives what reads the field of that name in a record.
    """
    readers = [getter(part.name) if isinstance(part, Field) else part for part in parts]
    if len(readers) == 1 and not isinstance(readers[0], str):
        return readers[0]

    def filled(record: R) -> str:
        return "".join([each if isinstance(each, str) else each(record) for each in readers])

    return filled
