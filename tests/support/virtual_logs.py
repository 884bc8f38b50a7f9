"""Virtual logs: lines in three formats, no two of which are equal, with what each counts, and files
that hold parts of them.
"""

import bz2
import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import zstandard

KEYS: Final = ("/a", "/A", "/b", "/b/", "/", "/index.html")
AMOUNTS: Final = (1, 1, 1, 2, 7, 12, -1_000_003)
"""No sum of them is 0, which would be no addition to a day."""
OFFSETS: Final = (0, 0, 120, -330)
"""Minutes that the clock of who writes a line is ahead of UTC."""
_CSV: Final = ("--input-format", "csv", "--columns", "time,kind,key,number,amount")
_COLUMNS: Final = ("--time-column", "time", "--amount-column", "amount")
READING: Final[dict[str, tuple[str, ...]]] = {
    "combined": ("path", "status=200", "--input-format", "combined"),
    "csv": ("key", "kind=web", *_CSV, *_COLUMNS),
    "ndjson": ("key", "kind=web", "--input-format", "ndjson", *_COLUMNS),
}
"""By format the field of the key, the condition for what is ``web``, and options to read it."""
PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1),
    ".bz2": lambda data: bz2.compress(data, 1),
    ".zst": lambda data: zstandard.ZstdCompressor(level=1).compress(data),
}
"""By the suffix of a file's name."""


class LogEvent(NamedTuple):
    """What a line says; without an amount it is rejected, unless it is to be left out."""

    minute: int
    key: str
    amount: int | None
    web: bool


@dataclass
class LineWriter:
    """Writes lines of a format, of events at some of these minutes. ``said`` is what lines say, and
    such parts of them as say anything; all others are to be rejected.
    """

    form: str
    minutes: Sequence[int]
    said: dict[bytes, LogEvent] = field(default_factory=dict)
    _number: int = 0

    def lines(self, draw: random.Random, number: int) -> bytes:
        """So many lines, a few of which are in no format."""
        return b"".join(self._line(draw) for _ in range(number))

    def _line(self, draw: random.Random) -> bytes:
        self._number += 1
        number, minute, web = self._number, draw.choice(self.minutes), draw.random() < 0.8
        key, amount, kind = draw.choice(KEYS), str(draw.choice(AMOUNTS)), "web" if web else "job"
        ends: tuple[str, ...] = ("",)
        zone = timezone(timedelta(minutes=draw.choice(OFFSETS)))
        when = datetime.fromtimestamp(minute * 60 + number % 60, UTC).astimezone(zone)
        if self.form == "combined":
            begin = (
                f"203.0.113.{number % 200} - - [{when:%d/%b/%Y:%H:%M:%S %z}]"
                f' "GET {key}?n={number} HTTP/1.1" {200 if web else 404} '
            )
            # Without its end it is a line of common.
            ends = ("5", "51", "512", "512 ", '512 "-" "curl/8.0"')
        elif self.form == "csv":
            begin = f"{when.isoformat()},{kind},{key},{number},"
            ends = tuple(amount[:size] for size in range(len(amount) + 1))
        else:
            said = {"time": when.isoformat(), "kind": kind, "key": key, "number": number}
            begin = json.dumps(said | {"amount": int(amount)})
        for end in ends:
            text, of_csv = begin + end, int(end) if end.strip("-").isdigit() else None
            counted = {"combined": 1, "csv": of_csv, "ndjson": int(amount)}[self.form]
            self.said[text.encode()] = LogEvent(minute, key, counted, web)
        if draw.random() < 0.04:
            text = draw.choice((f"nonsense {number}", text[: len(text) // 2]))
        return f"{text}\n".encode()


@dataclass(eq=False)
class LogFile:
    """A file: where, its bytes uncompressed, and how it is packed, of :data:`PACKERS`."""

    path: Path
    content: bytes = b""
    packing: str = ""

    def save(self, draw: random.Random) -> "LogFile":
        """Write it; what is compressed has up to three members."""
        size, pack = len(self.content), PACKERS[self.packing]
        inner = sorted(draw.randrange(size + 1) for _ in range(draw.randrange(3)))
        parts = pairwise([0, *(inner if self.packing else ()), size])
        self.path.write_bytes(b"".join(pack(self.content[start:end]) for start, end in parts))
        return self


@dataclass(eq=False)
class VirtualLog(LogFile):
    """The file that a log is written to; what older ones have, and what is not written yet."""

    older: bytes = b""
    pending: bytes = b""

    def write(self, draw: random.Random, lines: bytes, *, whole: bool = False) -> None:
        """Write more lines, to their end or to any byte of the last ones."""
        self.pending += lines
        left = 0 if whole or draw.random() < 0.5 else draw.randrange(min(len(self.pending), 200))
        end = len(self.pending) - left
        self.content += self.pending[:end]
        self.pending = self.pending[end:]
        self.save(draw)

    def rotate(self, draw: random.Random, older: Path, packing: str) -> LogFile:
        """End the line, rename and pack the file, or a copy of it, and begin anew; the old one."""
        self.write(draw, b"", whole=True)
        if draw.random() < 0.7:
            self.path.rename(older)
        old = LogFile(older, self.content, packing).save(draw)
        self.older, self.content = self.older + old.content, b""
        self.save(draw)
        return old
