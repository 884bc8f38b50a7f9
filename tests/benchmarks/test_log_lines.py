"""The log that backfill is measured with is what its writer says of it."""

import re
from collections import Counter
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path

from benchmarks.log_lines import CUT_EVERY, DAYS, FIRST, LATE, write

LINES = 105_000
LINE = re.compile(
    r'\d+\.\d+\.\d+\.\d+ - - \[([^]]+)\] "GET ([^ ?]+)(?:\?page=\d)? HTTP/1\.1" \d{3} \d+'
    r' "[^"]+" "[^"]+"'
)


@cache
def minute_of(text: str) -> datetime:
    return datetime.strptime(text, "%d/%b/%Y:%H:%M %z")


def time_of(text: str) -> datetime:
    """The time of a line; the parsing of a minute takes long, and lines share theirs."""
    minute, second, zone = text[:17], text[18:20], text[20:]
    return minute_of(minute + zone) + timedelta(seconds=int(second))


def test_holds_what_it_says(tmp_path: Path) -> None:
    log = write(tmp_path / "log", LINES)
    assert log.size == log.path.stat().st_size
    lines = log.path.read_text().splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert [number for number, match in enumerate(found, 1) if match is None] == [
        *range(CUT_EVERY // 2 + 1, LINES, CUT_EVERY)
    ]
    times = [time_of(each[1]) for each in found if each]
    paths = [each[2] for each in found if each]
    assert (len(lines), log.cut_off) == (LINES, LINES - len(times))
    days = [time.date() for time in times]
    assert log.hits == Counter(zip(days, paths, strict=True))
    assert (min(days), max(days)) == (FIRST.date(), FIRST.date().replace(day=FIRST.day + DAYS - 1))
    behind = max((before - time).total_seconds() for before, time in pairwise(times))
    assert 0 < behind <= LATE
