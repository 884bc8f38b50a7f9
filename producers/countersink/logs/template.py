"""Key templates (``--key``) and conditions (``--where``): their syntax, operators (``=`` and ``!=``
for texts, ``~`` and ``!~`` for shell patterns) and error messages.

A template is a text that has fields of a line in braces: ``{host}{path}``. ``{{`` and ``}}`` stand
for braces. The name of a field alone is a template, too: ``status`` means ``{status}``. A template
without a field is refused, because it would put all lines under one key. A line that does not
fulfil all conditions is left out.
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
    """A placeholder in a key template, such as ``{path}``, for the field ``name`` of a line."""

    name: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the text of a field of a line. By the operator, the text must equal the value
    (``=``), differ from it (``!=``), match it as a shell pattern (``~``), or not match it (``!~``).
    """

    field: str
    operator: Operator
    value: str

    def __str__(self) -> str:
        return self.field + self.operator + self.value


def parse(template: str) -> tuple[str | Field, ...]:
    """Return the texts and fields of a key template, in order. An empty template has none of them.

    Raises:
        ValueError: a brace has no partner, a field has no name, or the template has texts alone.
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
    """Return a template in its form with braces. A text without braces is the name of a field and
    gets braces: ``status`` becomes ``{status}``. A text with braces, or a blank one, is returned
    unchanged.
    """
    if template.strip() and "{" not in template and "}" not in template:
        return "{" + template.strip() + "}"
    return template


def fields(parts: Sequence[str | Field]) -> tuple[str, ...]:
    """Return the names of the fields of a parsed template, each once, in their order."""
    return tuple(dict.fromkeys(part.name for part in parts if isinstance(part, Field)))


def fill(
    parts: Sequence[str | Field], getter: Callable[[str], Callable[[R], str]]
) -> Callable[[R], str]:
    """Return a function that makes the key of a record by a template.

    Args:
        parts: the template, as :func:`parse` returns it.
        getter: takes the name of a field, and returns a function that reads it from a record.
    """
    readers = [getter(part.name) if isinstance(part, Field) else part for part in parts]
    if len(readers) == 1 and not isinstance(readers[0], str):
        return readers[0]

    def filled(record: R) -> str:
        return "".join([each if isinstance(each, str) else each(record) for each in readers])

    return filled


def check_conditions(conditions: Sequence[Condition]) -> None:
    """Raise an error if a condition has no field, or if two ``=`` conditions demand different texts
    of one field, so that no line fulfils both. Other contradictions are not found.

    Raises:
        ValueError: one of these errors was found; the message names the field.
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
    """Return a function that takes the text of the condition's field, and returns whether the
    condition holds.
    """
    if condition.operator == "=":
        return partial(operator.eq, condition.value)
    if condition.operator == "!=":
        return partial(operator.ne, condition.value)
    matches = shell_pattern(condition.value)
    if condition.operator == "~":
        return matches
    return lambda text: not matches(text)


def shell_pattern(glob: str) -> Callable[[str], bool]:
    """Return a function that takes a text and returns whether it matches a shell pattern. Case
    matters.

    ``fnmatch`` makes a regular expression that does not backtrack, however many stars the shell
    pattern has.
    """
    match = re.compile(fnmatch.translate(glob)).match
    return lambda text: match(text) is not None
