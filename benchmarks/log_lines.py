"""An access log to be counted: ``python -m benchmarks.log_lines LINES PATH [SEED]`` writes one.

A week in the combined format, about 200 bytes per line: paths by Zipf's law over 5,000 names, one
in eight with a query string; times out of order by up to 9 seconds; one line in 10,000 is cut off.
The same lines for the same arguments.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate, chain
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.workload import EXPONENT, NAMES

FIRST: Final = datetime(2025, 3, 3, tzinfo=UTC)
DAYS: Final = 7
SECONDS: Final = DAYS * 86_400
LATE: Final = 9
"""Seconds that a line's time may be before that of lines above it."""
CUT_EVERY: Final = 10_000
CUT_AT: Final = 5_000
"""Line 5,001, 15,001, … end after the minute."""
SEED: Final = 20_261_121
SIXTY: Final = [b"%02d" % second for second in range(60)]
BLOCK: Final = 20_000
HOSTS: Final = 9_973
REQUESTS: Final = 100_003
LATENESSES: Final = 1_009
"""How many of each are drawn. They are repeated; since no two of the numbers have a common factor,
no line comes again together with the one after it."""
STATUSES: Final = (b"200",) * 17 + (b"304", b"404", b"301")
AGENTS: Final = (
    b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    b"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/126.0.0.0 Safari/537.36",
    b"Mozilla/5.0 (compatible; ExampleBot/2.1; +http://www.example.com/bot.html)",
    b"curl/8.5.0",
)
REFERRERS: Final = (b"-", b"https://www.example.com/", b"https://search.example.org/?q=counters")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Log:
    """A log that was written.

    Attributes:
        path: where it is.
        lines: how many it has, those that are cut off included.
        cut_off: how many of them are cut off.
        size: bytes.
        hits: (day, path without its query string) to lines.
    """

    path: Path
    lines: int
    cut_off: int
    size: int
    hits: dict[tuple[date, str], int]


def write(path: Path, lines: int, seed: int = SEED) -> Log:
    """Write a log; about 4 million lines per second. Raises OSError: among others, no room."""
    draw = random.Random(seed)
    requests, names = _requests(draw)
    hosts = [_host(draw) for _ in range(HOSTS)]
    late = [draw.randrange(LATE + 1) for _ in range(LATENESSES)]
    counts = [Counter[str]() for _ in range(DAYS)]
    cut_off = size = 0
    with path.open("wb") as file:
        for start in range(0, lines, BLOCK):
            end = min(start + BLOCK, lines)
            seconds = [
                max(0, number * SECONDS // lines - behind)
                for number, behind in zip(range(start, end), _round(late, start, end), strict=True)
            ]
            first = min(seconds)
            known = _stamps(first, max(seconds))
            stamps = [known[second - first] for second in seconds]
            tails = _round(requests, start, end)
            paths: list[str | None] = [*_round(names, start, end)]
            for place in range((CUT_AT - start) % CUT_EVERY, end - start, CUT_EVERY):
                stamps[place] = stamps[place][: len("03/Mar/2025:00:00")]
                tails[place] = b"\n"
                paths[place] = None
                cut_off += 1
            _count(counts, seconds, paths)
            parts = zip(_round(hosts, start, end), stamps, tails, strict=True)
            size += file.write(b"".join(chain.from_iterable(parts)))
    hits = {
        (FIRST.date() + timedelta(number), name): count
        for number, counter in enumerate(counts)
        for name, count in counter.items()
    }
    return Log(path, lines, cut_off, size, hits)


def _requests(draw: random.Random) -> tuple[list[bytes], list[str]]:
    """What stands after the time, and the path in it."""
    known = [f"/articles/{number:04d}" for number in range(NAMES)]
    draw.shuffle(known)
    weights = list(accumulate(rank**-EXPONENT for rank in range(1, NAMES + 1)))
    names = draw.choices(known, cum_weights=weights, k=REQUESTS)
    requests = [
        b'] "GET %s%s HTTP/1.1" %s %d "%s" "%s"\n'
        % (
            name.encode(),
            b"?page=%d" % draw.randrange(1, 9) if draw.random() < 1 / 8 else b"",
            draw.choice(STATUSES),
            draw.randrange(200, 200_000),
            draw.choice(REFERRERS),
            draw.choice(AGENTS),
        )
        for name in names
    ]
    return requests, names


def _host(draw: random.Random) -> bytes:
    return b"%d.%d.%d.%d - - [" % tuple(draw.randrange(1, 255) for _ in range(4))


def _stamps(first: int, last: int) -> list[bytes]:
    """The times of these seconds, both inclusive."""
    stamps: list[bytes] = []
    for minute in range(first // 60, last // 60 + 1):
        text = (FIRST + timedelta(minutes=minute)).strftime("%d/%b/%Y:%H:%M:").encode()
        stamps += [b"%s%s +0000" % (text, second) for second in SIXTY]
    return stamps[first % 60 :]


def _round(parts: Sequence[T], start: int, end: int) -> list[T]:
    """Numbers ``start`` to ``end`` of the sequence repeated for ever."""
    at = start % len(parts)
    found = list(parts[at : at + end - start])
    while len(found) < end - start:
        found += parts[: end - start - len(found)]
    return found


def _count(
    counts: Sequence[Counter[str]], seconds: Sequence[int], paths: Sequence[str | None]
) -> None:
    """Add lines to the days that they are of; those without a path are cut off."""
    first, last = min(seconds) // 86_400, max(seconds) // 86_400
    for day in range(first, last + 1):
        ours: Iterable[str | None] = paths
        if first != last:
            ours = (
                path for second, path in zip(seconds, paths, strict=True) if second // 86_400 == day
            )
        counts[day].update(filter(None, ours))


def main() -> None:
    """Write what the arguments ask for, and say how long it took."""
    lines, path, *seed = sys.argv[1:]
    begun = time.monotonic()
    log = write(Path(path), int(lines), int(seed[0]) if seed else SEED)
    taken = time.monotonic() - begun
    print(
        f"{log.lines:,} lines, {log.size:,} bytes, {log.cut_off:,} cut off, {len(log.hits):,}"
        f" (day, path): {taken:.1f} s"
    )


if __name__ == "__main__":
    main()
