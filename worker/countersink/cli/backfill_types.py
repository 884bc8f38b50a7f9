"""Types of the options of ``countersink backfill``."""

import re
from typing import Final, cast

from countersink.backfill.recipe import Condition, Operator
from countersink.cli.types import Checked

MAX_SOURCE_NAME: Final = 255
"""Characters; the width of the column."""

_CONDITION: Final = re.compile(r"(.+?)\s*(!=|!~|=|~)\s*(.*)", re.DOTALL)


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a condition such as status=200, status!=404, path~/blog/* or"
            " agent!~*bot*"
        )
    return Condition(found[1].strip(), cast(Operator, found[2]), found[3])


def _delimiter(text: str) -> str:
    text = "\t" if text in (r"\t", "tab") else text
    if len(text) != 1 or text in '"\r\n\0':
        raise ValueError(
            rf"{text!r} is not one character that can stand between columns, such as ; or \t"
        )
    return text


def _source_name(text: str) -> str:
    if not text.strip() or len(text) > MAX_SOURCE_NAME:
        raise ValueError(f"a source's name has 1 to {MAX_SOURCE_NAME} characters")
    return text


CONDITION: Final = Checked("condition", _condition)
DELIMITER: Final = Checked("character", _delimiter)
SOURCE_NAME: Final = Checked("name", _source_name)
