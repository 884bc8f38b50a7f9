"""Cutting a log's bytes into lines, with every line's number and offset."""

from dataclasses import dataclass
from typing import Final

from countersink.producers.access_log import Rejected

WINDOW: Final = 256 * 1024
"""Bytes looked at together; a longer line is rejected (servers write far shorter ones).

Where reading begins decides where each full window ends. The last one ends where the file ended at
that time: read again after the file has grown, it is cut differently.
"""


@dataclass(frozen=True, slots=True)
class Block:
    """Complete lines, in order.

    Attributes:
        first: the number of the first of ``lines``.
        lines: without their newlines.
        rejected: lines before them that were too long to be read.
    """

    first: int
    lines: list[bytes]
    rejected: list[Rejected]


class Cutter:
    """Bytes in, complete lines out.

    Attributes:
        offset: where the first line that was not handed out begins.
        line: how many lines were handed out; numbers begin at 1.
        counted: whether the line at ``offset`` was counted before its newline came.
    """

    def __init__(self, offset: int = 0, line: int = 0, *, counted: bool = False) -> None:
        self.offset = offset
        self.line = line
        self.counted = counted
        self._buffer = b""
        self._passed = 0  # bytes of the line at ``offset`` that are not in the buffer
        self._overlong = False

    @property
    def wanted(self) -> int:
        """How many bytes to read next."""
        return WINDOW - len(self._buffer)

    @property
    def reach(self) -> int:
        """The offset to read them from."""
        return self.offset + self._passed + len(self._buffer)

    @property
    def rest(self) -> bytes:
        """The beginning of a line whose newline has not come; empty for one already counted."""
        return b"" if self.counted or self._overlong else self._buffer

    def feed(self, data: bytes) -> Block:
        """Take the next bytes and hand out the lines that they complete."""
        buffer = self._buffer + data
        if buffer[:1] == b"\0" and not self._overlong:
            # What a log holds that was truncated under a server that does not append. May be huge.
            stripped = buffer.lstrip(b"\0")
            self._passed += len(buffer) - len(stripped)
            buffer = stripped
        cut = buffer.rfind(b"\n") + 1
        first = self.line + 1
        if cut == 0:
            if len(buffer) >= WINDOW:
                self._passed += len(buffer)
                self._overlong = True
                buffer = b""
            self._buffer = buffer
            return Block(first, [], [])
        lines = buffer[: cut - 1].split(b"\n")
        self._buffer = buffer[cut:]
        self.offset += self._passed + cut
        self.line += len(lines)
        rejected: list[Rejected] = []
        if self.counted or self._overlong:
            if not self.counted:
                rejected.append(Rejected(first, f"the line is longer than {WINDOW} bytes"))
            del lines[0]
            first += 1
        self._passed, self._overlong, self.counted = 0, False, False
        return Block(first, lines, rejected)

    def finish(self) -> Block:
        """Hand out what is left as the last line: nothing more will come."""
        if self.reach == self.offset:
            return Block(self.line + 1, [], [])
        block = self.feed(b"\n")
        self.offset -= 1  # that newline is not in the file
        return block
