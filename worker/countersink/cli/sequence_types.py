"""Types of the arguments and options of ``countersink sequence``; apart from the others, since they
need the store."""

import re
from typing import Final

from countersink.cli.types import Checked
from countersink.store.sequences.arguments import name_bytes, number

NONE: Final = "none"
"""What takes a setting away."""


def _name(text: str) -> str:
    name_bytes(text)
    return text


def _number(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,40}", text) is None:
        raise ValueError(f"{text!r} is not a whole number")
    return number(int(text), "a number")


def _setting(text: str) -> int | str:
    return NONE if text == NONE else _number(text)


NAME: Final = Checked("name", _name)
NUMBER: Final = Checked("number", _number)
NUMBER_SETTING: Final = Checked("number", _setting)
