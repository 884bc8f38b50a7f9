"""Key templates (``--key``) and conditions (``--where``): syntax, operators (``=``, ``!=``, ``~``,
``!~``) and error messages.

A template is text with ``{field}`` in it, where ``{{`` and ``}}`` are braces. The name of a field
alone is that field: ``status`` is ``{status}``. A template without a field, which would put all
lines under one key, is refused. Conditions leave lines out.
"""

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeVar

from countersink.logs.formats.line_format import COMBINED

R = TypeVar("R")
Operator = Literal["=", "!=", "~", "!~"]

_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


@dataclass(frozen=True, slots=True)
class Field:
    """A field in a key template, such as ``{path}``."""

    name: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a field: its text is, is not, matches or does not match (shell pattern) a
    value.
    """

    field: str
    operator: Operator
    value: str

    def __str__(self) -> str:
        return self.field + self.operator + self.value


def parse(template: str) -> tuple[str | Field, ...]:
    """The texts and fields of ``template``, in order; none if it is empty.

    Raises:
        ValueError: a brace without its partner, a field without a name, or no field.
    """
    parts: list[str | Field] = []
    template = canonical(template)
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
                f"key template {template!r}: the {found} at character {match.start() + 1} has no"
                " partner; fields are written {path}, and braces {{ and }}"
            )
        plain = {"{{": "{", "}}": "}"}.get(found, found)
        if parts and isinstance(parts[-1], str):
            parts[-1] += plain
        else:
            parts.append(plain)
    if template and not fields(parts):
        raise ValueError(
            f"key template {template!r} names no field, so that all lines would have one key;"
            f" fields are written {{path}}; access logs have: {', '.join(COMBINED)}"
        )
    return tuple(parts)


def canonical(template: str) -> str:
    """The template with braces: ``{status}`` for ``status``."""
    if template.strip() and "{" not in template and "}" not in template:
        return "{" + template.strip() + "}"
    return template


def fields(parts: Sequence[str | Field]) -> tuple[str, ...]:
    """The names of the fields of a template, each once."""
    return tuple(dict.fromkeys(part.name for part in parts if isinstance(part, Field)))


def fill(
    parts: Sequence[str | Field], getter: Callable[[str], Callable[[R], str]]
) -> Callable[[R], str]:
    """A function that makes the key of a record.

    Args:
        parts: from :func:`parse`.
        getter: returns the reader of a field of a record, by the field's name.
    """
    readers = [getter(part.name) if isinstance(part, Field) else part for part in parts]
    if len(readers) == 1 and not isinstance(readers[0], str):
        return readers[0]

    def filled(record: R) -> str:
        return "".join([each if isinstance(each, str) else each(record) for each in readers])

    return filled


def check_conditions(conditions: Sequence[Condition]) -> None:
    """Refuse conditions that no line can fulfil.

    Raises:
        ValueError: a condition names no field, or one field is to be equal to two texts.
    """
    equal: dict[str, str] = {}
    for each in conditions:
        if not each.field:
            raise ValueError(f"a condition on {each.value!r} names no field")
        if each.operator == "=" and equal.setdefault(each.field, each.value) != each.value:
            raise ValueError(
                f"no line has {each.field} {equal[each.field]!r} and {each.value!r}: all"
                " conditions must hold; a shell pattern matches several texts"
                f" ({each.field}~[ab]*)"
            )


def condition_test(condition: Condition) -> Callable[[str], bool]:
    """A function that says whether ``condition`` holds for a field's text."""
    if condition.operator == "=":
        return partial(operator.eq, condition.value)
    if condition.operator == "!=":
        return partial(operator.ne, condition.value)
    matches = shell_pattern(condition.value)
    if condition.operator == "~":
        return matches
    return lambda text: not matches(text)


def shell_pattern(glob: str) -> Callable[[str], bool]:
    """A function that says whether a text matches a shell pattern; case matters.

    ``fnmatch`` makes a pattern that does not backtrack, however many stars it has.
    """
    match = re.compile(fnmatch.translate(glob)).match
    return lambda text: match(text) is not None
