"""Conditions on fields: which lines are left out."""

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from functools import partial

from countersink.backfill.recipe import Condition


def check(conditions: Sequence[Condition]) -> None:
    """Find what no line can fulfil.

    Raises:
        ValueError: no field is named, or one field is to be equal to two texts.
    """
    equal: dict[str, str] = {}
    for each in conditions:
        if not each.field:
            raise ValueError(f"a condition on {each.value!r} names no field")
        if each.operator == "=" and equal.setdefault(each.field, each.value) != each.value:
            raise ValueError(
                f"no line has {each.field} {equal[each.field]!r} and {each.value!r}: all"
                " conditions must hold; a shell pattern holds for several"
                f" ({each.field}~[ab]*)"
            )


def test(condition: Condition) -> Callable[[str], bool]:
    """What says of a field's text whether ``condition`` holds."""
    if condition.operator == "=":
        return partial(operator.eq, condition.value)
    if condition.operator == "!=":
        return partial(operator.ne, condition.value)
    matches = pattern(condition.value)
    if condition.operator == "~":
        return matches
    return lambda text: not matches(text)


def pattern(glob: str) -> Callable[[str], bool]:
    """What says whether a text matches a shell pattern, capitals and all.

    ``fnmatch`` makes a pattern that does not backtrack, however many stars it has.
    """
    match = re.compile(fnmatch.translate(glob)).match
    return lambda text: match(text) is not None
