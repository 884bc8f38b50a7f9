"""How a source begins: what cannot be read at all, and what stands before the text."""

from typing import Final

from countersink.backfill.options import BackfillError

BOM: Final = b"\xef\xbb\xbf"
"""The mark that some programs put before UTF-8."""
_MARKS: Final = {
    # Those of UTF-32 first: one of them begins as one of UTF-16 does.
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_WIDE: Final = {
    # How many bytes a character has, and which of them ASCII leaves 0.
    "UTF-32LE": (4, (1, 2, 3), 0),
    "UTF-32BE": (4, (0, 1, 2), 3),
    "UTF-16LE": (2, (1,), 0),
    "UTF-16BE": (2, (0,), 1),
}
_LOOKED_AT: Final = 256
"""Bytes."""
_SHORTEST: Final = 8


def check(head: bytes) -> None:
    """Find a source that is text, but not as bytes of ASCII.

    Raises:
        BackfillError: it is UTF-16 or UTF-32.
    """
    encoding = _wide(head)
    if encoding is not None:
        raise BackfillError(
            f"it is {encoding}; convert it first: iconv -f {encoding} -t UTF-8 FILE |"
            " countersink backfill -"
        )


def _wide(head: bytes) -> str | None:
    """The encoding of characters of more than a byte, by its mark or by its zeros."""
    for mark, encoding in _MARKS.items():
        # Two odd bytes alone may be anything.
        if head.startswith(mark) and b"\0" in head[2:_LOOKED_AT]:
            return encoding
    if len(head) < _SHORTEST:
        return None
    start = head[: min(_LOOKED_AT, len(head)) // 4 * 4]
    for encoding, (width, zeros, letters) in _WIDE.items():
        # Most are ASCII, and none is NUL, as they are where a log was cut off under its writer.
        if b"\0" not in start[letters::width] and all(
            4 * start[place::width].count(0) >= 3 * len(start[place::width]) for place in zeros
        ):
            return encoding
    return None


def without_mark(line: bytes, number: int) -> bytes:
    """A line as it is to be read: the first one without the mark."""
    return line[len(BOM) :] if number == 1 and line.startswith(BOM) else line
