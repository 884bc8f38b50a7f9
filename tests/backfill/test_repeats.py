"""Lines that repeat: no line is left out; a source with many lines of another one is refused."""

import gzip
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from countersink.backfill.count import chunks
from countersink.backfill.dry_run import FirstSources
from countersink.backfill.options import BackfillReport
from countersink.logs.template import Condition
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    NOON,
    Logs,
    details,
    line,
    log,
    write,
    write_old,
)
from tests.support.examples import MANY

pytestmark = pytest.mark.servers("mariadb", "mysql")

NDJSON = {
    "input_format": "ndjson",
    "time_column": "day",
    "key_column": "region",
    "time_zone": "UTC",
}
REGIONS = "".join(
    f'{{"day":"{DAY}","region":"region-{number}"}}\n' for number in range(10)
).encode()
"""What a job writes at each run: the same ten lines."""


def total(logs: Logs, counter: str = COUNTER) -> int:
    return sum(logs.totals(counter).values())


def wrote(logs: Logs, name: str, lines: list[bytes]) -> Path:
    """A file of lines."""
    return logs.write(name, b"".join(lines))


def lines_of(first: int, end: int, host: str = "a") -> list[bytes]:
    """Lines of one server, each at another second."""
    return [
        line(f"/{host}/{number % 20}?{number}", at=NOON + timedelta(seconds=number))
        for number in range(first, end)
    ]


A, B, C = lines_of(0, 60), lines_of(60, 120), lines_of(120, 180)
SIZE = 3 * chunks.SMALL_CHUNK
BIG = lines_of(0, SIZE)
PART = BIG[SIZE // 3 : SIZE // 6 * 5]


def merged(one: list[bytes], other: list[bytes]) -> list[bytes]:
    """As by sort: a line of the one, then a line of the other."""
    return [line for pair in zip(one, other, strict=True) for line in pair]


REFUSED: dict[str, tuple[list[bytes], list[bytes]]] = {
    "put together": (A, B + A),
    "the last lines": (A, A[-12:]),
    "the last lines and more": (A, A[-12:] + B),
    "the middle of many": (BIG, PART),
    "few of many": (BIG, BIG[-150:]),
    "all, after a part": (PART, BIG),
    "all, after few": (BIG[500:1500], BIG),
    "merged by time": (A, merged(A, lines_of(0, 60, "b"))),
    "merged, much longer": (BIG, merged(BIG, lines_of(0, SIZE, "b"))),
    "every other line of it": (A, A[::2]),
    "changed in the midst": (A, A[:30] + C[:1] + A[31:]),
}


def refused(report: BackfillReport) -> None:
    assert (report.state, report.amount) == ("failed", 0), details(report)
    for way_out in "--from 2026-", "--count-repeats", "before.log":
        assert way_out in details(report)


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_with_many_lines_of_another_is_refused_with_two_ways_out(
    logs: Logs, name: str
) -> None:
    before, now = REFUSED[name]
    logs.add(wrote(logs, "before.log", before))
    file = logs.write("now.log.gz", gzip.compress(b"".join(now)))
    for dry_run in True, False:
        refused(logs.add(file, dry_run=dry_run))
    together = logs.add(logs.directory / "before.log", file, counter="both", dry_run=True)
    assert [one.outcome for one in together.sources] == ["counted", "failed"]
    assert total(logs) == len(before)
    report = logs.add(file, count_repeats=True)
    assert (report.state, report.counted) == ("done", len(now)), details(report)
    assert total(logs) == len(before) + len(now)


def test_a_part_of_a_log_of_long_lines_is_refused(logs: Logs) -> None:
    """Its first chunk has 16 MiB and a part of a line: it is small all the same."""
    long = [one.replace(b"curl/8.0", b"u" * 60_000) for one in lines_of(0, 300)]
    assert logs.add(wrote(logs, "before.log", long)).counted == 300
    assert logs.rows("backfill_sample") > 250
    refused(logs.add(wrote(logs, "now.log", long[100:200])))


def test_a_refusal_names_the_lines_after_one_that_was_open(logs: Logs) -> None:
    path = write_old(logs.directory / "now.log", b"".join(A).removesuffix(b"\n"))
    assert logs.add(path).counted == 60
    assert logs.add(wrote(logs, "before.log", B)).counted == 60
    report = logs.add(write_old(path, b"".join(A + B)))
    refused(report)
    assert "Lines 61 to 120 were not counted" in details(report)


def test_a_dry_run_keeps_of_samples_what_a_dict_would() -> None:
    chance = random.Random(5)
    kept, expected = FirstSources(), dict[bytes, int]()
    for _ in range(20_000):
        # Of few bytes, so that parts of entries are found where others are looked for.
        sample = bytes(chance.choices(b"\0\1\xff", k=chunks.SAMPLE_BYTES))
        assert kept.get(sample) == expected.get(sample)
        source = chance.choice((-1, 1, -256, 2**40))
        kept.add(sample, source)
        expected.setdefault(sample, source)
    assert {sample: kept.get(sample) for sample in expected} == expected


def test_that_repeats_count_is_remembered_for_the_source(logs: Logs) -> None:
    logs.add(wrote(logs, "before.log", A + B + C))
    grows = wrote(logs, "grows.log", B)
    refused(logs.add(grows))
    logs.add(grows, count_repeats=True)
    write(grows, b"".join(B + C))
    dry, report = logs.add(grows, dry_run=True), logs.add(grows)
    assert (dry.amount, report.amount, report.state) == (60, 60, "done"), details(report)
    assert total(logs) == 180 + 120


def test_the_day_after_the_last_line_that_both_have_is_named_and_counts(logs: Logs) -> None:
    next_day = [line("/next", at=NOON + timedelta(days=1, seconds=at)) for at in range(20)]
    logs.add(wrote(logs, "before.log", A))
    both = wrote(logs, "both.log", B + A + next_day)
    day = NOON.date() + timedelta(days=1)
    assert f"`--from {day}`" in details(logs.add(both))
    until = details(logs.add(both, end=NOON.date()))
    assert "`--from" not in until  # which would leave no day
    assert "`--count-repeats`" in until
    assert logs.add(both, start=day).counted == 20
    assert total(logs) == 80


def test_a_source_that_is_counted_in_part_goes_on_from_a_later_day(logs: Logs) -> None:
    """As the refusal advises; afterwards it is read on as before."""
    tomorrow = NOON + timedelta(days=1)
    next_day = [line("/next", at=tomorrow + timedelta(seconds=at)) for at in range(20)]
    logs.add(wrote(logs, "before.log", BIG[1000:]))
    logs.small_chunks(1000)
    grows = wrote(logs, "grows.log", BIG + next_day)
    assert logs.add(grows).counted == 1000
    earlier = logs.add(grows, start=tomorrow.date(), end=tomorrow.date())
    assert "with other options" in details(earlier)
    for dry_run in True, False:
        report = logs.add(grows, start=tomorrow.date(), dry_run=dry_run)
        assert (report.state, report.counted) == ("done", 20), details(report)
    write(grows, b"".join([*BIG, *next_day, *next_day]))
    # What it left out is in no total, and nobody is told that it was counted.
    for before in {}, {"start": NOON.date()}:
        for dry_run in True, False:
            assert "with other options" in details(logs.add(grows, dry_run=dry_run, **before))
    assert logs.add(grows, start=tomorrow.date()).counted == 20
    assert total(logs) == SIZE + 40


def test_what_was_added_to_a_source_is_known_in_another(logs: Logs) -> None:
    grows = wrote(logs, "before.log", lines_of(0, 300))
    logs.add(grows)
    write(grows, b"".join(lines_of(0, 450)))
    logs.add(grows)
    refused(logs.add(wrote(logs, "tail.log", lines_of(300, 450))))
    assert total(logs) == 450


def test_a_dry_run_refuses_a_source_that_begins_as_one_with_other_options(logs: Logs) -> None:
    site = b"".join(b"shop.example:80 " + line(f"/{number}") for number in range(50))
    sources = logs.write("a.log", log("/a", "/b")), logs.write("b.log", log("/a", "/b") + site)
    for dry_run in True, False:
        first, second = logs.add(*sources, input_format="auto", dry_run=dry_run).sources
        assert (first.outcome, second.outcome) == ("counted", "failed")
        assert "with other options" in second.detail
    assert total(logs) == 2


@pytest.mark.parametrize("grows", [True, False])
def test_lines_that_a_source_repeats_itself_are_other_events(logs: Logs, grows: bool) -> None:
    for number in range(1, 7):
        counter = "grows" if grows else f"c{number}"
        file = logs.write(f"{counter}.ndjson", REGIONS * number)
        report = logs.add(file, counter=counter, **NDJSON)
        assert report.state == "done", details(report)
        assert total(logs, counter) == 10 * number


def test_a_reconcile_sets_what_its_sources_say_with_their_repeats(logs: Logs) -> None:
    day = NOON.date()
    file = logs.directory / "grows.ndjson"
    for number in 1, 2, 3:
        report = logs.reconcile(write(file, REGIONS * number), start=day, end=day, **NDJSON)
        assert report.state == "done", details(report)
        assert total(logs) == 10 * number
    both = wrote(logs, "both.log", A), wrote(logs, "again.log", B + A)
    report = logs.reconcile(*both, counter="hits", start=day, end=day)
    assert report.state == "failed"
    assert logs.totals("hits") == {}
    report = logs.reconcile(*both, counter="hits", start=day, end=day, count_repeats=True)
    assert total(logs, "hits") == 180
    assert logs.rows("backfill_sample") == 0


def test_few_lines_that_are_equal_by_chance_or_rightly_count(logs: Logs) -> None:
    """Health checks; two servers that saw some of the same; a cycle of few lines."""
    same = line("/health") * 300
    standby = [line("/health", at=NOON + timedelta(seconds=5 * at)) for at in range(100)]
    logs.add(logs.write("1.log", same))
    logs.add(logs.write("2.log", A[0] + same + same + A[1]))
    assert total(logs) == 902
    logs.add(logs.write("3.log", log(*(f"/{key}" for key in "abcdefg")) * 200), counter="cycles")
    assert logs.totals("cycles") == {(DAY, f"/{key}"): 200 for key in "abcdefg"}
    logs.add(wrote(logs, "standby.log", standby), counter="hits")
    busy = lines_of(0, 2000, "busy") + standby
    assert logs.add(wrote(logs, "busy.log", busy), counter="hits").counted == 2100


def test_w3c_lines_whose_day_a_directive_says_are_equal_on_that_day_alone(logs: Logs) -> None:
    lines = "".join(f"12:{number:02}:00 /health\n" for number in range(60))

    def log_of(*days: str) -> bytes:
        parts = (f"#Date: {day} 00:00:00\n#Fields: time cs-uri-stem\n{lines}" for day in days)
        return "".join(parts).encode()

    add = partial(logs.add, input_format="w3c")
    add(logs.write("before.log", log_of("2026-05-12", "2026-05-13")))
    report = add(logs.write("after.log", log_of("2026-05-14")))
    assert (report.state, report.counted) == ("done", 60), details(report)
    refused(add(logs.write("again.log", log_of("2026-05-15", "2026-05-13"))))
    report = add(logs.write("both.log", log_of("2026-05-11", "2026-05-12", "2026-05-13")))
    refused(report)
    assert "`--from 2026-05-14`" in details(report)


def test_only_lines_that_the_filters_leave_in_are_compared(logs: Logs) -> None:
    logs.add(wrote(logs, "before.log", A), exclude_keys=("/a/1*",))
    own = [line(f"/a/1{at}", at=NOON + timedelta(seconds=at)) for at in range(60)]
    now = wrote(logs, "now.log", own + A)
    rest = [one for one in A + own if b" /a/1" in one]
    report = logs.add(now, where=(Condition("path", "~", "/a/1*"),))
    assert (report.state, report.counted) == ("done", len(rest)), details(report)


def test_what_is_taken_back_is_not_known_again(logs: Logs) -> None:
    report = logs.add(wrote(logs, "before.log", B))
    whole = wrote(logs, "whole.log", A + B + C)
    refused(logs.add(whole))
    logs.undo(report)
    assert logs.rows("backfill_sample") == 0
    assert logs.add(whole).counted == 180
    refused_now = logs.add(logs.directory / "before.log")
    assert "whole.log" in details(refused_now)
    assert total(logs) == 180


def test_a_line_of_two_sources_is_known_until_both_are_taken_back(logs: Logs) -> None:
    first = logs.add(wrote(logs, "first.log", A))
    second = logs.add(wrote(logs, "second.log", B + A), count_repeats=True)
    third = wrote(logs, "third.log", C + A)
    both = details(logs.add(third))
    assert all(name in both for name in ("first.log", "second.log"))
    logs.undo(first)
    assert "second.log" in details(logs.add(third))
    logs.undo(second)
    assert logs.add(third).counted == 120
    assert total(logs) == 120


def test_sources_of_other_names_and_counters_are_not_compared(logs: Logs) -> None:
    logs.add(wrote(logs, "part.log", B))
    whole = wrote(logs, "whole.log", A + B)
    assert logs.add(whole, name="other").counted == 120
    assert logs.add(whole, counter="hits").counted == 120


@pytest.mark.random
def test_of_sources_with_the_same_lines_at_once_one_counts(logs: Logs) -> None:
    """Many processes: which of them counts is open; no line is counted by two of them."""
    for number in range(10 if MANY else 2):
        counter = f"c{number}"
        files = [
            logs.write(f"{number}-{name}.log", b"".join(lines))
            for name, lines in {"a": A, "b": B[:1] + A, "c": B[:2] + A, "d": B[:3] + A}.items()
        ]
        with ThreadPoolExecutor(len(files)) as pool:
            reports = list(pool.map(partial(logs.add, counter=counter), files))
        assert sorted(report.state for report in reports) == ["done", "failed", "failed", "failed"]
        done = next(report for report in reports if report.state == "done")
        assert total(logs, counter) == done.counted >= 60


def test_records_with_newlines_are_told_by_their_lines(logs: Logs) -> None:
    def records(column: str) -> bytes:
        rows = (f'{DAY},/{number},"two\nlines"\n' for number in range(60))
        return (f"day,key,{column}\n" + "".join(rows)).encode()

    csv = NDJSON | {"input_format": "csv", "key_column": "key"}
    first = logs.add(logs.write("before.csv", records("a")), **csv)
    assert (first.lines, first.known_lines, details(first)) == (61, 0, "")
    assert logs.add(logs.write("before.csv", records("a")), **csv).known_lines == 121
    for dry_run in True, False:
        now = logs.add(logs.write("now.csv", records("b")), dry_run=dry_run, **csv)
        assert "Lines 1 to 121 were not counted" in details(now)
