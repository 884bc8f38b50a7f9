"""Unpacks gzip, bzip2 and zstd block by block, with the errors for data that is corrupt or cut off;
how a compression is recognized: ``PACKINGS`` in ``producers/access_log/file.py``.

All three may be several streams one after the other (``cat a.gz b.gz``); gzip's may be padded with
zeros. Memory stays flat whatever they unpack to.

Formats: RFC 1952, RFC 8878, and bzip2's as its library writes it.
"""

import bz2
import zlib
from collections.abc import Callable, Mapping
from typing import Final

import zstandard

from countersink.backfill.errors import Damaged
from countersink.producers.access_log.file import Packing

BLOCK: Final = 256 * 1024
"""Uncompressed bytes that are handed out at once, about."""
SNIFF: Final = 16
"""First bytes of a file that tell how it is compressed."""

_SLICE: Final = 256
"""Compressed bytes given to zstd at once: it has no limit on what it makes of them (of the most
hostile, 8 MiB)."""


class _Gzip:
    """One stream, read as by :class:`bz2.BZ2Decompressor`: ``decompress`` wants b"" until
    ``needs_input``; after ``eof``, ``unused_data`` is what came after the stream.
    """

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        found = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        self.needs_input = not self._inflate.unconsumed_tail and len(found) < max_length
        return found


class _Zstd:
    """The same of a frame of zstd."""

    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._waiting = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def needs_input(self) -> bool:
        return not self._waiting

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + self._waiting

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data:
            self._waiting = memoryview(data)
        parts: list[bytes] = []
        missing = max_length
        while missing > 0 and self._waiting and not self._frame.eof:
            part = self._frame.decompress(self._waiting[:_SLICE])
            self._waiting = self._waiting[_SLICE:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


_Decoder = _Gzip | _Zstd | bz2.BZ2Decompressor
_DECODERS: Final[Mapping[str, Callable[[], _Decoder]]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "zstd": _Zstd,
}


def is_read(packed: Packing) -> bool:
    """Whether it can be unpacked here."""
    return packed.name in _DECODERS


class Unpacker:
    """The uncompressed bytes of what ``read`` gives, block by block; b"" is the end."""

    def __init__(self, packed: Packing, read: Callable[[], bytes]) -> None:
        self._packed = packed
        self._new = _DECODERS[packed.name]
        self._read = read
        self._decoder: _Decoder | None = None
        self._input = b""
        self._streams = 0
        self._error: Exception | None = None

    def next(self) -> bytes:
        """The next block.

        Raises:
            Damaged: there is none, for the compressed data is corrupt or cut off. What came before
                was handed out (of corrupt data all but the last block).
            Exception: from ``read``.
        """
        if self._error is not None:
            raise self._error
        parts: list[bytes] = []
        missing = BLOCK
        while missing > 0:
            try:
                part = self._some(missing)
            except Exception as error:
                if not parts:
                    raise
                self._error = error  # first what could be had
                break
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        """Some uncompressed bytes; b"" at the end."""
        while True:
            if self._decoder is None and not self._begin():
                return b""
            decoder = self._decoder
            assert decoder is not None
            if decoder.eof:
                self._input = decoder.unused_data
                self._decoder = None
                continue
            data = b""
            if decoder.needs_input:
                data, self._input = self._input or self._read(), b""
                if not data:
                    raise Damaged(f"its {self._packed.name} data is cut off")
            found = self._decoded(decoder, data, size)
            if found:
                return found

    def _decoded(self, decoder: _Decoder, data: bytes, size: int) -> bytes:
        try:
            return decoder.decompress(data, size)
        except (zlib.error, zstandard.ZstdError, OSError, ValueError, EOFError) as error:
            raise Damaged(f"its {self._packed.name} data is corrupt ({error})") from error

    def _begin(self) -> bool:
        """Begin with the next stream; whether there is one."""
        data = self._input
        while len(data) < SNIFF and (more := self._read()):
            data += more
            if self._streams:
                data = data.lstrip(b"\0")  # what tapes and block devices are filled up with
        if self._streams:
            data = data.lstrip(b"\0")
        self._input = data
        if not data:
            return False
        if not self._packed.magic.match(data):
            raise Damaged(f"after its {self._packed.name} data stands something else")
        self._decoder = self._new()
        self._streams += 1
        return True
