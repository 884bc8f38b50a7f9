"""Access logs of which it is known what each line counts, without a line of the product's code."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path

from tests.support.processes import PROJECT

REAL = PROJECT.parent / "shared" / "data" / "apache_access.log"
"""A real site's log, which is beside the project on some machines only."""
REAL_DAYS = {17: 1632, 18: 2893, 19: 2896, 20: 2578}
REAL_COUNTED = 9999
REAL_CELLS = 2355
REAL_KEYS = 1368
REAL_REJECTED = (8899,)
"""The figures that were published with it; there, a line whose key has 595 bytes was rejected."""

FIRST = datetime(2015, 5, 17, tzinfo=UTC)
"""Over for so long that its days are closed."""
DAYS = 3
LONGEST_KEY = 255
PATHS = (*(f"/page/{number}" for number in range(40)), "/", "/a", "/A", "/caf\u00e9", "/x y")
DRAWN = 2_000
"""Lines that a log is made of; the same line any number of times counts as often."""
ODD = 0.001
AGENT = "Mozilla/5.0 (X11; Linux x86_64)"
_LINE = re.compile(
    r'\S+ \S+ \S+ \[(\d\d)/May/2015:\d\d:\d\d:\d\d \+0000\] "\w+ (\S+) HTTP/1\.[01]"'
    r' \d{3} (?:\d+|-) "[^"]*" "[^"]*"'
)

Hit = tuple[date, bytes]
"""(UTC day, key)."""


@dataclass
class Book:
    """A log, and what is in it.

    Attributes:
        path: where it is.
        hits: how many lines count for each (day, key).
        rejected: numbers of the lines that cannot be counted.
        lines: how many it has.
    """

    path: Path
    hits: Counter[Hit] = field(default_factory=Counter)
    rejected: list[int] = field(default_factory=list)
    lines: int = 0

    @property
    def counted(self) -> int:
        """How many lines give a count."""
        return self.hits.total()


def _ascii_form(key: str) -> bytes:
    """What a key that is all ASCII is counted as."""
    if len(key) <= LONGEST_KEY:
        return key.encode("ascii")
    return f"{key[: LONGEST_KEY - 17]}~{sha256(key.encode()).hexdigest()[:16]}".encode("ascii")


def real() -> Book:
    """The real log, read by a regular expression that knows just as much as that log needs."""
    book = Book(REAL)
    text = REAL.read_text("utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        book.lines += 1
        found = _LINE.fullmatch(line)
        key = found[2].partition("?")[0] if found else ""
        if found is None:
            book.rejected.append(number)
        else:
            book.hits[date(2015, 5, int(found[1])), _ascii_form(key)] += 1
    by_day = Counter(dict.fromkeys(REAL_DAYS, 0))
    for (day, _), count in book.hits.items():
        by_day[day.day] += count
    figures = book.counted, len(book.hits), len({key for _, key in book.hits}), by_day
    assert figures == (REAL_COUNTED, REAL_CELLS, REAL_KEYS, REAL_DAYS)
    assert tuple(book.rejected) == REAL_REJECTED
    return book


class Writer:
    """Draws lines from a seed: hits, of which many come again and again, and odd ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._hits = [self._hit() for _ in range(DRAWN)]
        self._odd_ones = [self._odd() for _ in range(DRAWN // 10)]

    def lines(self, count: int) -> Iterator[tuple[bytes, Hit | None]]:
        """So many lines with their newlines, each with what it counts; None: nothing."""
        draw = self.random
        for _ in range(count):
            yield draw.choice(self._hits if draw.random() > ODD else self._odd_ones)

    def write(self, path: Path, count: int, *, append: bool = False) -> Book:
        """Write so many lines to a file, or after those that are in it."""
        book = Book(path)
        with path.open("ab" if append else "wb") as file:
            file.write(b"".join(self.entered(book, count)))
        return book

    def entered(self, book: Book, count: int) -> Iterable[bytes]:
        """So many lines, entered into a book."""
        for line, hit in self.lines(count):
            book.lines += 1
            if hit is not None:
                book.hits[hit] += 1
            elif line.strip():
                book.rejected.append(book.lines)
            yield line

    def _hit(self) -> tuple[bytes, Hit]:
        draw = self.random
        at = FIRST + timedelta(seconds=draw.randrange(DAYS * 86_400))
        path = PATHS[min(int(draw.expovariate(0.2)), len(PATHS) - 1)]
        query = f"?q={draw.randrange(1000)}" if draw.random() < 0.2 else ""
        line = self._line(at, path + query)
        return line, (at.date(), path.encode())

    def _line(self, at: datetime, target: str) -> bytes:
        draw = self.random
        zone = timezone(timedelta(minutes=draw.choice((0, 0, 0, 0, 120, -330))))
        time = at.astimezone(zone).strftime("%d/%b/%Y:%H:%M:%S %z")
        host = f"10.0.{draw.randrange(256)}.{draw.randrange(256)}"
        raw = "".join(
            character if character.isascii() else "".join(rf"\x{b:02x}" for b in character.encode())
            for character in target
        )
        status, size = draw.choice((200, 200, 304, 404)), draw.randrange(10**6)
        text = f'{host} - - [{time}] "GET {raw} HTTP/1.1" {status} {size} "-" "{AGENT}"\n'
        return text.encode()

    def _odd(self) -> tuple[bytes, Hit | None]:
        """Lines that cannot be counted, and such as look so and can."""
        good, hit = self._hit()
        kind = self.random.randrange(7)
        if kind == 0:
            return good[: good.index(b"GET")] + b"\n", None
        if kind == 1:
            path = "/" + "long" * 64
            return self._line(FIRST, path), (FIRST.date(), _ascii_form(path))
        if kind == 2:
            return b"\n", None
        if kind == 3:
            return b"\0" * 7 + good, hit
        if kind == 4:
            return good.replace(b"\n", b"\r\n"), hit
        if kind == 5:
            return self._line(FIRST, "/\x7f").replace(b"\x7f", b"\xff"), (FIRST.date(), b"/%FF")
        return good.replace(b"/May/", b"/Mai/"), None
