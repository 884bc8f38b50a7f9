"""How a content begins: by which it is found among the sources that are known."""

from dataclasses import dataclass
from typing import Final

from countersink.backfill.arriving import Stopped
from countersink.backfill.contents import Content
from countersink.backfill.options import Unreadable

HEAD_BYTES: Final = 64 * 1024
KNOWN_BYTES: Final = 4096
"""How many of them a source is known by."""


@dataclass(frozen=True, slots=True)
class Head:
    """How a content begins.

    Attributes:
        data: its first bytes, 64 KiB at most.
    """

    data: bytes

    @property
    def known(self) -> bytes:
        """Those that a source is known by."""
        return self.data[:KNOWN_BYTES]


def alike(one: bytes, other: bytes) -> bool:
    """Whether two beginnings may be those of one source: one is how the other begins."""
    return one.startswith(other) or other.startswith(one)


def head_of(content: Content) -> Head:
    """Read how a content begins; it stands somewhere after that then. One that is damaged ends
    where the damage is: that it does is found when it is read on.

    Raises:
        Unreadable: nothing of it can be read.
    """
    content.seek(0)
    data = b""
    try:
        while len(data) < HEAD_BYTES and (more := content.read(HEAD_BYTES - len(data))):
            data += more
    except Unreadable as error:
        if not data or isinstance(error.__cause__, Stopped):
            raise
    return Head(data)
