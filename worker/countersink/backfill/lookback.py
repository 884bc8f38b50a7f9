"""What was read of a stream lately, so that one can go back in it."""

import tempfile
from collections import deque
from typing import IO, Final

MEMORY: Final = 24 * 1024 * 1024
"""Bytes kept in memory: above what a span holds, so that one can be read again."""
_JOINED: Final = 64 * 1024
"""Blocks are joined up to this size: a writer may write byte by byte."""


class Lookback:
    """The last :data:`MEMORY` bytes of a stream; while ``keeping``, all from then on, on disk.

    Attributes:
        end: offset after the last byte.
        keeping: what leaves memory goes to a temporary file instead of being forgotten.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self.keeping = False
        self.end = 0
        self._limit = memory
        self._memory: deque[bytes] = deque()
        self._memory_at = 0
        self._file: IO[bytes] | None = None
        self._file_at = 0

    @property
    def start(self) -> int:
        """Offset of the first byte that is still there."""
        return self._memory_at if self._file is None else self._file_at

    def append(self, block: bytes) -> None:
        """Add what was read.

        Raises:
            OSError: the temporary file cannot be written; nothing was added.
        """
        while self._memory and self._forgettable(len(block)):
            self._evict()
        if self._memory and len(self._memory[-1]) + len(block) <= _JOINED:
            self._memory[-1] += block
        else:
            self._memory.append(block)
        self.end += len(block)

    def get(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; b"" at the end.

        Raises:
            OSError: the temporary file cannot be read.
        """
        if offset >= self._memory_at:
            at = self.end
            for block in reversed(self._memory):
                at -= len(block)
                if offset >= at:
                    return block[offset - at : offset - at + size]
            return b""
        assert self._file is not None
        self._file.seek(offset - self._file_at)
        return self._file.read(min(size, self._memory_at - offset))

    def clear(self) -> None:
        """Begin anew at offset 0."""
        self.close()
        self._memory.clear()
        self._memory_at = self.end = 0

    def close(self) -> None:
        """Forget the temporary file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forgettable(self, more: int) -> bool:
        """Whether enough stays in memory without its first block, when ``more`` bytes come."""
        return self.end + more - self._memory_at - len(self._memory[0]) >= self._limit

    def _evict(self) -> None:
        block = self._memory[0]
        if self.keeping:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="countersink-")  # noqa: SIM115
                self._file_at = self._memory_at
            self._file.seek(self._memory_at - self._file_at)
            self._file.write(block)
            self._file.flush()
        else:
            self.close()
        self._memory.popleft()
        self._memory_at += len(block)
