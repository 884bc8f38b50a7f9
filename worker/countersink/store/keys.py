"""Names of counters, and keys as callers give them and as the tables have them."""

import re
from collections.abc import Sequence
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def is_name(counter: object) -> bool:
    """Whether this can be a counter's name; the column alone would take 'c ' for 'c'."""
    return isinstance(counter, str) and _NAME.fullmatch(counter) is not None


def key_bytes(key: str) -> bytes:
    """A key as the table has it.

    Raises:
        ValueError: it holds a lone surrogate that stands for no byte.
    """
    return key.encode("utf-8", "surrogateescape")


def key_text(key: bytes) -> str:
    """A key of the table as text; :func:`key_bytes` undoes it, for bytes that are no UTF-8 too."""
    return bytes(key).decode("utf-8", "surrogateescape")


def chosen_keys(key: str | None, keys: Sequence[str] | None) -> Sequence[str] | None:
    """The keys asked for, by one name or several; ``None`` for all.

    Raises:
        ValueError: both were given. TypeError: ``keys`` is a single text.
    """
    if key is not None and keys is not None:
        raise ValueError("give key or keys, not both")
    if isinstance(keys, str):
        raise TypeError("keys is a sequence of str; for a single one say key=")
    return keys if key is None else [key]
