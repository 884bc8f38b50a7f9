"""Lines that stand in several sources: counted once, or refused; never left out by mistake."""

import gzip
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from countersink.backfill.count import chunks, overlap, transaction
from countersink.backfill.errors import BackfillError
from countersink.backfill.run import backfill
from countersink.backfill.undo import undo
from countersink.store import Store
from tests.backfill.helpers import (
    DAY,
    NOON,
    add,
    details,
    line,
    log,
    options,
    query,
    require_verified,
    small_chunks,
    totals,
    write,
)


def total(mysql_url: str) -> int:
    return sum(totals(mysql_url).values())


def lines_of(first: int, end: int, host: str = "a") -> list[bytes]:
    """Lines of one server, each at another second."""
    return [
        line(f"/{host}/{number % 20}?{number}", at=NOON + timedelta(seconds=number))
        for number in range(first, end)
    ]


A, B, C = lines_of(0, 60), lines_of(60, 120), lines_of(120, 180)
BIG = lines_of(0, 1500)

CASES: dict[str, tuple[list[list[bytes]], list[bytes]]] = {
    "both together": ([A, B], A + B),
    "the other way round": ([A, B], B + A),
    "twice itself": ([A], A + A),
    "twice itself, at once": ([], A + A),
    "with more before it": ([A], B + A),
    "between others": ([B], A + B + C),
    "three, one of them new": ([A, C], A + B + C),
    "the last lines": ([A], A[-12:]),
    "the last lines and more": ([A], A[-12:] + B),
    "the middle": ([BIG], BIG[601:661]),
    "a part of many": ([BIG], BIG[500:1250]),
    "all, after a part": ([BIG[500:1250]], BIG),
    "after a few of them": ([A[:9]], B + A),
}


def test_lines_of_several_sources_count_once(mysql_url: str, tmp_path: Path) -> None:
    for name, (before, now) in CASES.items():
        for number, lines in enumerate(before):
            part = write(tmp_path / f"{name}, part {number}", b"".join(lines))
            add(mysql_url, part, counter=slug(name))
        whole = write(tmp_path / f"{name}, whole.gz", gzip.compress(b"".join(now)))
        dry = add(mysql_url, whole, counter=slug(name), dry_run=True)
        report = add(mysql_url, whole, counter=slug(name))
        assert report.state == "done", details(report)
        assert (dry.amount, dry.known_lines) == (report.amount, report.known_lines), name
        assert report.lines + report.known_lines == len(now), name
        if before and report.lines < len(now) and "as lines of" in details(report):
            assert "part" in details(report) or "whole" in details(report)
        again = add(mysql_url, whole, counter=slug(name))
        assert (again.state, again.lines) == ("done", 0), name
    require_each_line_once(mysql_url)


def test_lines_of_several_sources_of_a_run_count_once_in_small_chunks(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run knows the lines of what it has read itself."""
    for name, (before, now) in CASES.items():
        small_chunks(monkeypatch, lines=400 if BIG in (*before, now) else 25)
        files = [
            write(tmp_path / f"{name}, {number}.log", b"".join(lines))
            for number, lines in enumerate([*before, now])
        ]
        dry = add(mysql_url, *files, counter=slug(name), dry_run=True)
        report = add(mysql_url, *files, counter=slug(name))
        assert report.state == "done", details(report)
        assert [(one.outcome, one.counted) for one in dry.sources] == [
            (one.outcome, one.counted) for one in report.sources
        ], name
        again = add(mysql_url, *files, counter=slug(name))
        assert (again.state, again.lines) == ("done", 0), name
    require_each_line_once(mysql_url)


def require_each_line_once(mysql_url: str) -> None:
    """Each case has a counter of its own, which has counted each of its lines."""
    require_verified(mysql_url)
    found = query(mysql_url, "SELECT counter, SUM(amount) FROM counter_slot GROUP BY counter")
    assert {counter: int(amount) for counter, amount in found} == {
        slug(name): len({line for lines in (*before, now) for line in lines})
        for name, (before, now) in CASES.items()
    }


def slug(name: str) -> str:
    """A name for a counter."""
    return "".join(filter(str.isalpha, name))


def merged(one: list[bytes], other: list[bytes]) -> list[bytes]:
    """As by sort: a line of the one, then a line of the other."""
    return [line for pair in zip(one, other, strict=True) for line in pair]


REFUSED: dict[str, tuple[list[bytes], list[bytes]]] = {
    "merged by time": (A, merged(A, lines_of(0, 60, "b"))),
    "merged, much longer": (BIG, merged(BIG, lines_of(0, 1500, "b"))),
    "every other line of it": (A, A[::2]),
    "all, after every other line": (A[::2], A),
    "changed in the midst": (A, A[:30] + C[:1] + A[31:]),
    "with another end": (A, A[:40] + C[:10]),
}


def test_lines_that_cannot_be_told_apart_are_refused_with_the_way_out(
    mysql_url: str, tmp_path: Path
) -> None:
    for name, (before, now) in REFUSED.items():
        first = write(tmp_path / f"{name}, before.log", b"".join(before))
        add(mysql_url, first, counter=slug(name))
        file = write(tmp_path / f"{name}, now.log", b"".join(now))
        for dry_run in True, False:
            report = add(mysql_url, file, counter=slug(name), dry_run=dry_run)
            assert (report.state, report.amount) == ("failed", 0), name
            assert "before.log" in details(report)
            assert "--count-repeats" in details(report)
        report = add(mysql_url, file, counter=slug(name), count_repeats=True)
        assert report.counted == len(now), name
        counted = totals(mysql_url, slug(name))
        assert sum(counted.values()) == len(before) + len(now), name


def csv(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in ("day,key,n", *rows)).encode()


COLUMNS = {
    "input_format": "csv",
    "time_column": "day",
    "key_column": "key",
    "amount_column": "n",
    "time_zone": "UTC",
}
MAY = [f"2026-05-{day:02},{key},{day}" for day in range(1, 29) for key in ("books", "films")]


def test_exports_of_days_that_overlap(mysql_url: str, tmp_path: Path) -> None:
    """The last ten days, every third day; and one of a day whose totals have changed since."""
    for last in range(10, 29, 3):
        rows = csv(*MAY[2 * last - 20 : 2 * last])
        report = add(mysql_url, write(tmp_path / f"{last}.csv", rows), **COLUMNS)
        assert report.state == "done", details(report)
    expected = sum(int(row.rpartition(",")[2]) for row in MAY)
    assert total(mysql_url) == expected
    changed = csv(*MAY[36:55], "2026-05-28,films,29")
    report = add(mysql_url, write(tmp_path / "new.csv", changed), **COLUMNS)
    assert report.state == "failed"
    assert total(mysql_url) == expected


def test_lines_that_are_equal_by_chance_or_rightly_count(mysql_url: str, tmp_path: Path) -> None:
    """Identical lines; two servers that saw some of the same; rows of exports that are equal."""
    same = line("/health") * 300
    add(mysql_url, write(tmp_path / "1.log", same))
    add(mysql_url, write(tmp_path / "2.log", A[0] + same + same + A[1]))
    assert total(mysql_url) == 902
    add(
        mysql_url,
        write(tmp_path / "3.log", log(*(f"/{key}" for key in "abcdefg")) * 200),
        counter="cycles",
    )
    assert totals(mysql_url, "cycles") == {(DAY, f"/{key}"): 200 for key in "abcdefg"}
    for host in "ab":
        own = lines_of(0, 100, host)
        own[40:43] = lines_of(40, 43, "both")
        add(mysql_url, write(tmp_path / f"{host}.log", b"".join(own[2:])))
    assert total(mysql_url) == 902 + 2 * 98
    for shop in "xyz":
        rows = csv(*MAY[:2], *(f"2026-05-09,{shop}{number},1" for number in range(40)))
        report = add(mysql_url, write(tmp_path / f"{shop}.csv", rows), **COLUMNS)
        assert report.state == "done", details(report)
    assert total(mysql_url) == 902 + 2 * 98 + 3 * 42


def test_a_log_that_grew_line_by_line_is_known_in_another(mysql_url: str, tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    for size in (1, 2, 3, 9, 19, 40, 60):
        add(mysql_url, write(file, b"".join(A[:size]) + (A[size][:30] if size == 40 else b"")))
    assert total(mysql_url) == 60
    report = add(mysql_url, write(tmp_path / "copy.log", b"".join(C + A + B)))
    assert report.state == "done", details(report)
    assert total(mysql_url) == 180


def test_what_comes_while_repeated_lines_are_left_out_counts_once(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(mysql_url, write(tmp_path / "a.log", b"".join(A)))
    growing = write(tmp_path / "b.log.gz", gzip.compress(b"".join(B + A)))

    def judged(*given: Any) -> Any:
        monkeypatch.undo()
        with growing.open("ab") as file:
            file.write(gzip.compress(b"".join(C)))
        return overlap.judge(*given)

    monkeypatch.setattr(transaction, "judge", judged)
    for _ in range(2):
        report = add(mysql_url, growing)
        assert report.state == "done", details(report)
    assert total(mysql_url) == 180


def test_a_last_line_without_its_newline_is_left_out_and_goes_on(
    mysql_url: str, tmp_path: Path
) -> None:
    add(mysql_url, write(tmp_path / "a.log", b"".join(A)[:-1]))
    tail = tmp_path / "tail.log"
    add(mysql_url, write(tail, b"".join(A[20:])[:-1]))
    assert total(mysql_url) == 60
    report = add(mysql_url, write(tail, b"".join(A[20:])[:-1] + b" 1\n" + b"".join(B)))
    assert report.rejected == 0
    assert total(mysql_url) == 121  # the one that is longer is another line


@pytest.mark.parametrize("more", [[], C], ids=["its newline alone", "more lines"])
def test_a_last_line_that_was_left_out_is_not_counted_when_its_newline_comes(
    mysql_url: str, tmp_path: Path, more: list[bytes]
) -> None:
    first = add(mysql_url, write(tmp_path / "a.log", b"".join(A))).run
    part = tmp_path / "part.log"
    left = add(mysql_url, write(part, b"".join(A[20:])[:-1])).run
    write(part, b"".join(A[20:] + more))
    dry = add(mysql_url, part, dry_run=True)
    report = add(mysql_url, part)
    assert (dry.amount, dry.known_lines) == (report.amount, report.known_lines)
    assert report.amount == len(more)
    assert total(mysql_url) == 60 + len(more)
    assert first is not None
    assert left is not None
    assert report.run is not None
    for run, needed in ((first, left), (first, report.run)):
        with pytest.raises(BackfillError, match=f"`countersink backfills undo {needed}`"):
            undo(mysql_url, run)
    undo(mysql_url, report.run)
    undo(mysql_url, left)
    undo(mysql_url, first)
    assert total(mysql_url) == 0
    add(mysql_url, part)
    assert total(mysql_url) == 40 + len(more)


def test_a_log_twice_in_one_file_whose_newline_comes_later(mysql_url: str, tmp_path: Path) -> None:
    twice = tmp_path / "twice.log"
    add(mysql_url, write(twice, b"".join(A + A)[:-1]))
    add(mysql_url, write(twice, b"".join(A + A)))
    assert total(mysql_url) == 60


def test_what_others_left_out_is_not_taken_back_before_them(mysql_url: str, tmp_path: Path) -> None:
    part = add(mysql_url, write(tmp_path / "part.log", b"".join(B))).run
    whole = add(mysql_url, write(tmp_path / "whole.log", b"".join(A + B + C))).run
    assert part is not None
    assert whole is not None
    with pytest.raises(BackfillError, match=f"`countersink backfills undo {whole}`"):
        undo(mysql_url, part)
    undo(mysql_url, whole)
    assert total(mysql_url) == 60
    undo(mysql_url, part)
    assert total(mysql_url) == 0
    for table in chunks.MARK_TABLES:
        assert query(mysql_url, f"SELECT COUNT(*) FROM {table}") == [(0,)]
    add(mysql_url, tmp_path / "whole.log")
    add(mysql_url, tmp_path / "part.log")
    assert total(mysql_url) == 180


def test_the_same_lines_with_other_options_are_refused(mysql_url: str, tmp_path: Path) -> None:
    add(mysql_url, write(tmp_path / "part.log", b"".join(B)))
    whole = write(tmp_path / "whole.log", b"".join(A + B))
    report = add(mysql_url, whole, key="{method}")
    assert report.state == "failed"
    assert "--key" in details(report)
    assert total(mysql_url) == 60
    assert add(mysql_url, whole, key="{method}", name="other").counted == 120
    assert add(mysql_url, whole, counter="hits").counted == 120


def test_sources_that_overlap_at_once(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many processes: which of them counts a line is open; none is counted twice."""
    small_chunks(monkeypatch, lines=750)
    parts = [BIG[:500], BIG[500:1000], BIG, BIG[1000:], BIG[-450:]]
    files = [write(tmp_path / f"{at}.log", b"".join(part)) for at, part in enumerate(parts)]
    with ThreadPoolExecutor(len(files)) as pool:
        reports = list(pool.map(partial(add, mysql_url), files))
    assert {report.state for report in reports} <= {"done", "failed"}
    assert sum(report.counted for report in reports) == total(mysql_url) <= len(BIG)


def test_a_reconcile_counts_each_line_of_its_sources_once(
    store: Store, mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    """A log, its own tail, its compressed copy, and both together."""
    files = [
        write(tmp_path / "a.log", b"".join(A)),
        write(tmp_path / "tail.log", b"".join(A[30:])),
        write(tmp_path / "a.gz", gzip.compress(b"".join(A))),
        write(tmp_path / "both.log", b"".join(B + A)),
    ]
    day = NOON.date()
    asked = options(*files, mode="reconcile", start=day, end=day)
    for _ in range(2):
        report = backfill(mysql_url, asked, redis_url=redis_url)
        assert report.state == "done", details(report)
        assert total(mysql_url) == 120
    sorted_together = write(tmp_path / "merged.log", b"".join(merged(A, lines_of(0, 60, "b"))))
    asked = options(files[0], sorted_together, mode="reconcile", start=day, end=day)
    assert backfill(mysql_url, asked, redis_url=redis_url).state == "failed"
    assert total(mysql_url) == 120
    for table in chunks.MARK_TABLES:
        assert query(mysql_url, f"SELECT COUNT(*) FROM {table}") == [(0,)]
