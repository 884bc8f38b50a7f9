"""What callers may ask for: names, steps, values."""

from typing import Final

MIN_VALUE: Final = -(2**63)
MAX_VALUE: Final = 2**63 - 1
MAX_NAME_BYTES: Final = 255


def name_bytes(name: str) -> bytes:
    """A sequence's name as the table has it.

    Raises:
        TypeError: not a ``str``. ValueError: more than 255 bytes of UTF-8, or no valid text.
    """
    if not isinstance(name, str):
        raise TypeError(f"a sequence's name is a str, not {type(name).__name__}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a sequence's name must be valid text: {error}") from error
    if len(encoded) > MAX_NAME_BYTES:
        raise ValueError(
            f"a sequence's name has at most {MAX_NAME_BYTES} bytes of UTF-8; {name[:40]!r}… has"
            f" {len(encoded)}"
        )
    return encoded


def name_text(name: bytes) -> str:
    """A name of the table as text, also one that somebody has put there and that is no UTF-8."""
    return bytes(name).decode("utf-8", "surrogateescape")


def number(value: int, what: str) -> int:
    """``value``, if it is a whole number of 64 bits.

    Raises:
        TypeError: not an ``int`` (a ``bool`` is none here). ValueError: beyond 64 bits.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is an int, not {type(value).__name__}")
    if not MIN_VALUE <= value <= MAX_VALUE:
        raise ValueError(f"{what} is beyond 64 bits: it is a number from -2**63 to 2**63-1")
    return int(value)


def step_number(step: int) -> int:
    """``step``, if it leads anywhere.

    Raises:
        TypeError, ValueError: as :func:`number`; or it is 0.
    """
    if number(step, "a step") == 0:
        raise ValueError("a step of 0 would hand out the same value again: give another one")
    return int(step)


def block_size(n: int, step: int | None) -> int:
    """``n``, if there can be a block of so many values.

    Raises:
        TypeError, ValueError: as :func:`number`; or less than 1; or a block wider than 64 bits.
    """
    if number(n, "the size of a block") < 1:
        raise ValueError(f"a block has at least 1 value, not {n}")
    if step is not None and not MIN_VALUE <= n * step <= MAX_VALUE:
        raise ValueError(f"{n} values that are {step} apart do not fit into 64 bits")
    return int(n)
