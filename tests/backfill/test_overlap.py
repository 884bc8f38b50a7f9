"""Lines that stand in several sources: counted once, or refused; never left out by mistake."""

import gzip
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from countersink.backfill.count import chunks, overlap, transaction
from countersink.backfill.errors import BackfillError
from countersink.store import Store
from tests.backfill.helpers import (
    DAY,
    NOON,
    Logs,
    details,
    line,
    log,
    query,
    require_verified,
    run_of,
    totals,
    write,
)
from tests.support.examples import MANY


def total(mysql_url: str) -> int:
    return sum(totals(mysql_url).values())


def lines_of(first: int, end: int, host: str = "a") -> list[bytes]:
    """Lines of one server, each at another second."""
    return [
        line(f"/{host}/{number % 20}?{number}", at=NOON + timedelta(seconds=number))
        for number in range(first, end)
    ]


A, B, C = lines_of(0, 60), lines_of(60, 120), lines_of(120, 180)
SIZE = 3000 if MANY else 1500
BIG = lines_of(0, SIZE)
PART = BIG[SIZE // 3 : SIZE // 6 * 5]

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
    "the middle": ([BIG], BIG[SIZE // 5 * 2 + 1 : SIZE // 5 * 2 + 61]),
    "a part of many": ([BIG], PART),
    "all, after a part": ([PART], BIG),
    "after a few of them": ([A[:9]], B + A),
}


@pytest.mark.random
@pytest.mark.parametrize(
    "chunk", [100_000, pytest.param(25, marks=pytest.mark.long("as the test after it, run by run"))]
)
def test_lines_of_several_sources_count_once(logs: Logs, chunk: int) -> None:
    for name, (before, now) in CASES.items():
        logs.small_chunks(700 if chunk == 25 and BIG in (*before, now) else chunk)
        for number, lines in enumerate(before):
            part = logs.write(f"{name}, part {number}", b"".join(lines))
            logs.add(part, counter=slug(name))
        whole = logs.write(f"{name}, whole.gz", gzip.compress(b"".join(now)))
        dry = logs.add(whole, counter=slug(name), dry_run=True)
        report = logs.add(whole, counter=slug(name))
        assert report.state == "done", details(report)
        assert (dry.amount, dry.known_lines) == (report.amount, report.known_lines), name
        assert report.lines + report.known_lines == len(now), name
        if before and report.lines < len(now) and "as lines of" in details(report):
            assert "part" in details(report) or "whole" in details(report)
        again = logs.add(whole, counter=slug(name))
        assert (again.state, again.lines) == ("done", 0), name
    require_each_line_once(logs.url)


@pytest.mark.random
def test_lines_of_several_sources_of_a_run_count_once_in_small_chunks(logs: Logs) -> None:
    """A dry run knows the lines of what it has read itself."""
    for name, (before, now) in CASES.items():
        logs.small_chunks(lines=400 if BIG in (*before, now) else 25)
        files = [
            logs.write(f"{name}, {number}.log", b"".join(lines))
            for number, lines in enumerate([*before, now])
        ]
        dry = logs.add(*files, counter=slug(name), dry_run=True)
        report = logs.add(*files, counter=slug(name))
        assert report.state == "done", details(report)
        assert [(one.outcome, one.counted) for one in dry.sources] == [
            (one.outcome, one.counted) for one in report.sources
        ], name
        again = logs.add(*files, counter=slug(name))
        assert (again.state, again.lines) == ("done", 0), name
    require_each_line_once(logs.url)


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
    "merged, much longer": (BIG, merged(BIG, lines_of(0, SIZE, "b"))),
    "every other line of it": (A, A[::2]),
    "all, after every other line": (A[::2], A),
    "changed in the midst": (A, A[:30] + C[:1] + A[31:]),
    "with another end": (A, A[:40] + C[:10]),
}


@pytest.mark.random
def test_lines_that_cannot_be_told_apart_are_refused_with_the_way_out(logs: Logs) -> None:
    for name, (before, now) in REFUSED.items():
        first = logs.write(f"{name}, before.log", b"".join(before))
        logs.add(first, counter=slug(name))
        file = logs.write(f"{name}, now.log", b"".join(now))
        for dry_run in True, False:
            report = logs.add(file, counter=slug(name), dry_run=dry_run)
            assert (report.state, report.amount) == ("failed", 0), name
            assert "before.log" in details(report)
            assert "--count-repeats" in details(report)
        report = logs.add(file, counter=slug(name), count_repeats=True)
        assert report.counted == len(now), name
        counted = logs.totals(slug(name))
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


@pytest.mark.random
def test_exports_of_days_that_overlap(logs: Logs) -> None:
    """The last ten days, every day or third day; and a day whose totals have changed since."""
    for last in range(10, 29, 1 if MANY else 3):
        rows = csv(*MAY[2 * last - 20 : 2 * last])
        report = logs.add(logs.write(f"{last}.csv", rows), **COLUMNS)
        assert report.state == "done", details(report)
    expected = sum(int(row.rpartition(",")[2]) for row in MAY)
    assert total(logs.url) == expected
    changed = csv(*MAY[36:55], "2026-05-28,films,29")
    report = logs.add(logs.write("new.csv", changed), **COLUMNS)
    assert report.state == "failed"
    assert total(logs.url) == expected


def test_lines_that_are_equal_by_chance_or_rightly_count(logs: Logs) -> None:
    """Identical lines; two servers that saw some of the same; rows of exports that are equal."""
    same = line("/health") * 300
    logs.add(logs.write("1.log", same))
    logs.add(logs.write("2.log", A[0] + same + same + A[1]))
    assert total(logs.url) == 902
    logs.add(
        logs.write("3.log", log(*(f"/{key}" for key in "abcdefg")) * 200),
        counter="cycles",
    )
    assert logs.totals("cycles") == {(DAY, f"/{key}"): 200 for key in "abcdefg"}
    for host in "ab":
        own = lines_of(0, 100, host)
        own[40:43] = lines_of(40, 43, "both")
        logs.add(logs.write(f"{host}.log", b"".join(own[2:])))
    assert total(logs.url) == 902 + 2 * 98
    for shop in "xyz":
        rows = csv(*MAY[:2], *(f"2026-05-09,{shop}{number},1" for number in range(40)))
        report = logs.add(logs.write(f"{shop}.csv", rows), **COLUMNS)
        assert report.state == "done", details(report)
    assert total(logs.url) == 902 + 2 * 98 + 3 * 42


@pytest.mark.random
def test_a_log_that_grew_line_by_line_is_known_in_another(logs: Logs) -> None:
    file = logs.directory / "access.log"
    few = 1, 2, 3, 9, 19, 40, 60
    for size in (*range(1, 20), 40, 60) if MANY else few:
        logs.add(write(file, b"".join(A[:size]) + (A[size][:30] if size == 40 else b"")))
    assert total(logs.url) == 60
    report = logs.add(logs.write("copy.log", b"".join(C + A + B)))
    assert report.state == "done", details(report)
    assert total(logs.url) == 180


def test_what_comes_while_repeated_lines_are_left_out_counts_once(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.add(logs.write("a.log", b"".join(A)))
    growing = logs.write("b.log.gz", gzip.compress(b"".join(B + A)))

    def judged(*given: Any) -> Any:
        monkeypatch.undo()
        with growing.open("ab") as file:
            file.write(gzip.compress(b"".join(C)))
        return overlap.judge(*given)

    monkeypatch.setattr(transaction, "judge", judged)
    for _ in range(2):
        report = logs.add(growing)
        assert report.state == "done", details(report)
    assert total(logs.url) == 180


def test_a_last_line_without_its_newline_is_left_out_and_goes_on(logs: Logs) -> None:
    logs.add(logs.write("a.log", b"".join(A)[:-1]))
    tail = logs.directory / "tail.log"
    logs.add(write(tail, b"".join(A[20:])[:-1]))
    assert total(logs.url) == 60
    report = logs.add(write(tail, b"".join(A[20:])[:-1] + b" 1\n" + b"".join(B)))
    assert report.rejected == 0
    assert total(logs.url) == 121  # the one that is longer is another line


@pytest.mark.parametrize("more", [[], C], ids=["its newline alone", "more lines"])
def test_a_last_line_that_was_left_out_is_not_counted_when_its_newline_comes(
    logs: Logs, more: list[bytes]
) -> None:
    first = run_of(logs.add(logs.write("a.log", b"".join(A))))
    part = logs.directory / "part.log"
    left = run_of(logs.add(write(part, b"".join(A[20:])[:-1])))
    write(part, b"".join(A[20:] + more))
    dry = logs.add(part, dry_run=True)
    report = logs.add(part)
    assert (dry.amount, dry.known_lines) == (report.amount, report.known_lines)
    assert report.amount == len(more)
    assert total(logs.url) == 60 + len(more)
    for run, needed in ((first, left), (first, report.run)):
        with pytest.raises(BackfillError, match=f"`countersink backfills undo {needed}`"):
            logs.undo(run)
    logs.undo(report)
    logs.undo(left)
    logs.undo(first)
    assert total(logs.url) == 0
    logs.add(part)
    assert total(logs.url) == 40 + len(more)


def test_a_log_twice_in_one_file_whose_newline_comes_later(logs: Logs) -> None:
    twice = logs.directory / "twice.log"
    logs.add(write(twice, b"".join(A + A)[:-1]))
    logs.add(write(twice, b"".join(A + A)))
    assert total(logs.url) == 60


def test_what_others_left_out_is_not_taken_back_before_them(logs: Logs) -> None:
    part = run_of(logs.add(logs.write("part.log", b"".join(B))))
    whole = run_of(logs.add(logs.write("whole.log", b"".join(A + B + C))))
    with pytest.raises(BackfillError, match=f"`countersink backfills undo {whole}`"):
        logs.undo(part)
    logs.undo(whole)
    assert total(logs.url) == 60
    logs.undo(part)
    assert total(logs.url) == 0
    for table in chunks.MARK_TABLES:
        assert logs.query(f"SELECT COUNT(*) FROM {table}") == [(0,)]
    logs.add(logs.directory / "whole.log")
    logs.add(logs.directory / "part.log")
    assert total(logs.url) == 180


def test_the_same_lines_with_other_options_are_refused(logs: Logs) -> None:
    logs.add(logs.write("part.log", b"".join(B)))
    whole = logs.write("whole.log", b"".join(A + B))
    report = logs.add(whole, key="{method}")
    assert report.state == "failed"
    assert "--key" in details(report)
    assert total(logs.url) == 60
    assert logs.add(whole, key="{method}", name="other").counted == 120
    assert logs.add(whole, counter="hits").counted == 120


@pytest.mark.random
def test_sources_that_overlap_at_once(logs: Logs) -> None:
    """Many processes: which of them counts a line is open; none is counted twice."""
    logs.small_chunks(lines=SIZE // 2)
    third = SIZE // 3
    parts = [BIG[:third], BIG[third : 2 * third], BIG, BIG[2 * third :], BIG[-third + 50 :]]
    files = [logs.write(f"{at}.log", b"".join(part)) for at, part in enumerate(parts)]
    with ThreadPoolExecutor(len(files)) as pool:
        reports = list(pool.map(partial(logs.add), files))
    assert {report.state for report in reports} <= {"done", "failed"}
    assert sum(report.counted for report in reports) == total(logs.url) <= len(BIG)


def test_a_reconcile_counts_each_line_of_its_sources_once(logs: Logs, store: Store) -> None:
    """A log, its own tail, its compressed copy, and both together."""
    files = [
        logs.write("a.log", b"".join(A)),
        logs.write("tail.log", b"".join(A[30:])),
        logs.write("a.gz", gzip.compress(b"".join(A))),
        logs.write("both.log", b"".join(B + A)),
    ]
    day = NOON.date()
    for _ in range(2):
        report = logs.reconcile(*files, start=day, end=day)
        assert report.state == "done", details(report)
        assert total(logs.url) == 120
    sorted_together = logs.write("merged.log", b"".join(merged(A, lines_of(0, 60, "b"))))
    report = logs.reconcile(files[0], sorted_together, start=day, end=day)
    assert report.state == "failed"
    assert total(logs.url) == 120
    for table in chunks.MARK_TABLES:
        assert logs.query(f"SELECT COUNT(*) FROM {table}") == [(0,)]
