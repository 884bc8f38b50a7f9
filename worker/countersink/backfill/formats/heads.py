"""How a source begins: what cannot be read at all, and what stands before the text."""

from typing import Final

from countersink.backfill.options import BackfillError

BOM: Final = b"\xef\xbb\xbf"
"""The mark that some programs put before UTF-8."""
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


def check(head: bytes) -> None:
    """Find a source that is text, but not as bytes of ASCII.

    Raises:
        BackfillError: it is UTF-16.
    """
    if head.startswith(_UTF16) and b"\0" in head[2:4]:
        raise BackfillError(
            "it is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8 FILE | countersink backfill -"
        )


def without_mark(line: bytes, number: int) -> bytes:
    """A line as it is to be read: the first one without the mark."""
    return line[len(BOM) :] if number == 1 and line.startswith(BOM) else line
