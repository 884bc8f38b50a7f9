"""How a content begins: by which it is found among the sources that are known."""

import hashlib
from dataclasses import dataclass
from typing import Final

from countersink.backfill.arriving import Stopped
from countersink.backfill.contents import Content
from countersink.backfill.options import Unreadable

HEAD_LINES: Final = 16
HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """How a content begins.

    Attributes:
        data: its first bytes, 64 KiB at most.
        heads: (bytes, SHA-256) of each head it may have been given: of none of its lines, when it
            had no more, of one, and so on; the last is the one it would be given now.
    """

    data: bytes
    heads: tuple[tuple[int, bytes], ...]

    @property
    def whole_lines(self) -> int:
        """How many lines are whole in the last of them: 16 at most."""
        return self.data.count(b"\n", 0, self.heads[-1][0])

    @property
    def first_lines(self) -> bytes:
        """SHA-256 of the first line, of the first two, and so on, one after the other."""
        return b"".join(digest for _, digest in self.heads[1 : self.whole_lines + 1])

    @property
    def short(self) -> bool:
        """Whether the content ends before it has as many lines as a head may have."""
        return 0 < self.whole_lines < HEAD_LINES and len(self.data) < HEAD_BYTES

    @property
    def ends_with_line(self) -> bool:
        """Whether nothing stands behind its last whole line; of one that is short."""
        return self.heads[-1][0] == len(self.data)


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
    ends = [0]
    while len(ends) <= HEAD_LINES and (newline := data.find(b"\n", ends[-1])) >= 0:
        ends.append(newline + 1)
    if len(ends) == 1 and len(data) == HEAD_BYTES:
        ends.append(HEAD_BYTES)  # the first line is longer than that
    return Head(data, tuple((end, hashlib.sha256(data[:end]).digest()) for end in ends))
