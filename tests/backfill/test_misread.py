"""Sources whose amounts, times, quotes or line ends are not as the options say: what is refused
before anything is counted, and what is read all the same; and dates, which are days of the counter,
whatever its zone and resolution."""

import gzip
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from countersink.store import Store
from tests.backfill.helpers import COUNTER, Logs, details, line, outcomes

CSV = {"input_format": "csv", "key_column": "k", "time_column": "t"}
NDJSON = CSV | {"input_format": "ndjson"}
GERMAN = b"t;k;n\n2026-05-12;/a;1.000\n2026-05-12;/b;725\n2026-05-12;/c;1.234\n"


def refused(logs: Logs, content: bytes, **recipe: object) -> str:
    """Why a source is refused, of which nothing is counted."""
    report = logs.add(logs.write("source", content), **recipe)
    assert (outcomes(report), report.lines, logs.totals()) == (["failed"], 0, {})
    return details(report)


def test_thousands_or_a_fraction_are_not_guessed(logs: Logs) -> None:
    asked = CSV | {"amount_column": "n", "delimiter": ";"}
    why = refused(logs, GERMAN, **asked)
    assert why.startswith("line 2: the amount '1.000' may have thousands or a fraction: say which")
    assert "line 4" in refused(logs, GERMAN.replace(b"1.000", b"1"), **asked)
    report = logs.add(logs.write("source", GERMAN), **asked, thousands=".")
    assert (report.counted, report.amount) == (3, 1000 + 725 + 1234)


AMOUNTS = b"t,k,views\n2026-05-12,/a,5\n2026-05-12,/b,7\n"


@pytest.mark.parametrize(
    ("content", "asked"),
    [
        (AMOUNTS, CSV),
        (b"2026-05-12,/a,5\n2026-05-12,/b,7\n", CSV | {"columns": ("t", "k", "views")}),
        (
            b'[{"t":"2026-05-12","k":"/a","views":5},\n{"t":"2026-05-12","k":"/b","views":7}]',
            NDJSON,
        ),
        (
            b'[\n{"t":"2026-05-12","k":"/a","views":5},\n{"t":"2026-05-12","k":"/b","views":7}\n]',
            NDJSON,
        ),
    ],
)
def test_amounts_that_nobody_names_are_asked_about(
    logs: Logs, content: bytes, asked: dict[str, Any]
) -> None:
    why = refused(logs, content, **asked)
    assert "'views': add up its amounts by --amount-column views, or" in why
    assert "--count-lines" in why
    assert logs.add(logs.write("sums", content), **asked, amount_column="views").amount == 12
    lines = logs.add(logs.write("lines", content), **asked, name="lines", count_lines=True)
    assert lines.amount == 2


@pytest.mark.parametrize(
    ("content", "asked"),
    [
        (b"t,n\n2026-05-12,5\n", CSV | {"key_column": "n"}),
        (b"t,n\n2026-05-12,5\n", CSV | {"key_column": "", "key": "page {n}"}),
        (b"t,k,note\n2026-05-12,5,7\n", CSV),
        (b'{"t":"2026-05-12","k":"/a","views":{"of":7}}\n', NDJSON),
        (b'{"t":"2026-05-12","k":"/a","views":"many","n":true}\n', NDJSON),
    ],
)
def test_what_is_the_key_or_no_number_is_no_amount(
    logs: Logs, content: bytes, asked: dict[str, Any]
) -> None:
    assert logs.add(logs.write("source", content), **asked).amount == 1


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.csv.gz", "a.b.csv.zst", "views"])
def test_a_name_or_a_column_of_keys_implies_the_format(logs: Logs, name: str) -> None:
    auto = CSV | {"input_format": "auto", "amount_column": "views"}
    assert logs.add(logs.write(name, AMOUNTS), **auto).amount == 12
    # It is the same source as one whose format was named.
    assert logs.add(logs.write("again", AMOUNTS), **CSV, amount_column="views").known_lines == 3


@pytest.mark.parametrize("name", ["a.ndjson", "a.jsonl.gz", "dump"])
def test_objects_are_told_from_csv(logs: Logs, name: str) -> None:
    source = logs.write(name, b'\n{"t":"2026-05-12","k":"/a"}\n')
    assert logs.add(source, **CSV | {"input_format": "auto"}).amount == 1
    template = {"time_column": "t", "key": "{k}", "input_format": "auto"}
    report = logs.add(source, **template, counter="other")
    assert (report.amount == 1) == (name != "dump"), details(report)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "a.csv",
            b'{"t":1}\n',
            "says csv, but it begins with '{\"t\":1}': give --input-format ndjson",
        ),
        ("a.jsonl", b"t,k\n", "says ndjson, but it begins with 't,k': give --input-format csv or"),
        ("a.csv.gz", line(), "give --input-format combined or --input-format csv"),
        ("a.ndjson", b'"%s"\n' % line().strip(), "combined --envelope quotes or"),
        ("access.log", line(), "--key-column is for csv, ndjson and JSON logs"),
    ],
)
def test_a_name_that_the_content_contradicts_is_refused(
    logs: Logs, name: str, content: bytes, says: str
) -> None:
    report = logs.add(logs.write(name, content), **CSV | {"input_format": "auto"})
    assert (outcomes(report), logs.totals()) == (["failed"], {})
    assert says in details(report)


@pytest.mark.parametrize("unit", ["unix-ms", "unix-us", "unix-ns"])
@pytest.mark.parametrize("write", [b"t,k\n%d,a\n%d,b\n", b'{"t":%d,"k":"a"}\n{"t":"%d","k":"b"}\n'])
def test_seconds_are_no_smaller_units(logs: Logs, unit: str, write: bytes) -> None:
    asked = (CSV if write.startswith(b"t") else NDJSON) | {"time_format": unit}
    why = refused(logs, write % (1778580000, 1778580001), **asked)
    assert "column 't': the time '1778580000' is not from 1990 to 2099 as" in why
    assert "--time-format unix reads 2026-05-12T10:00:00Z" in why


def test_times_that_no_unit_fits_are_refused_if_all_are_before_1990(logs: Logs) -> None:
    asked = CSV | {"time_format": "unix"}
    assert "before 1990 in unix" in refused(logs, b"t,k\n20585,a\n20586,b\n", **asked)
    source = logs.write("some", b"t,k\n20585,a\n1778580000,b\n")
    assert logs.add(source, **asked).counted == 2


def test_a_last_line_that_may_go_on_tells_nothing(logs: Logs) -> None:
    asked = CSV | {"time_format": "unix-ms"}
    source = logs.write("torn", b"k,t\n/a,1778580000000\n/b,1778580000")
    cut = logs.add(source, **asked)
    assert (cut.counted, logs.totals()) == (1, {("2026-05-12", "/a"): 1})
    source = logs.write("torn", b"k,t\n/a,1778580000000\n/b,1778580000000\n")
    logs.undo(cut)
    assert logs.add(source, **asked).counted == 2


@pytest.mark.parametrize(
    "text",
    [
        b'[{"t":"2026-05-12T10:00:00Z","k":"/a"},{"t":"2026-05-12T10:00:00Z","k":"/b"}]',
        b'[\n  {\n    "t": "2026-05-12T10:00:00Z",\n    "k": "/a"\n  }\n]\n',
        b'[{"t":"2026-05-12T10:00:00Z","k":"' + b"a" * 70_000,
    ],
)
def test_an_array_that_has_not_an_object_on_each_line_is_refused(logs: Logs, text: bytes) -> None:
    assert refused(logs, text, **NDJSON).startswith("it is a JSON array with several objects")


def test_a_date_with_an_offset_is_a_day_of_the_counter(logs: Logs) -> None:
    source = logs.write("xml", b"t,k\n2026-05-12+02:00,/a\n2026-05-12-05:00,/a\n2026-05-12Z,/a\n")
    assert logs.add(source, **CSV, time_zone="Asia/Tokyo").counted == 3
    assert logs.totals() == {("2026-05-12", "/a"): 3}


def test_backslashes_before_quotes_are_read_in_every_chunk(logs: Logs) -> None:
    logs.small_chunks(10)
    rows = [rb'2026-05-12,"5\""', rb'2026-05-12,"a \"b\""', b'2026-05-12,"/c"', b"2026-05-12,/d"]
    text = b"t,k\n" + b"".join(rows[n * n % 7 % 4] + b"\n" for n in range(300))
    for end in (text.index(b"\n", 1000) + 1, len(text)):  # it grows
        logs.add(logs.write("source", text[:end]), **CSV)
    expected = {'5"': 0, 'a "b"': 0, "/c": 0, "/d": 0}
    for n in range(300):
        expected[list(expected)[n * n % 7 % 4]] += 1
    assert logs.totals() == {("2026-05-12", key): total for key, total in expected.items() if total}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_that_end_in_a_carriage_return_alone_are_read_and_may_grow(
    logs: Logs, pack: Callable[[bytes], bytes]
) -> None:
    logs.small_chunks(1000)
    asked = CSV | {"amount_column": "n"}
    text = b"t,k,n\r" + b"".join(b"2026-05-12,/%d,1\r" % (n % 3) for n in range(9000))
    source = logs.write("mac", pack(text))
    assert logs.add(source, **asked).counted == 9000
    source = logs.write("mac", pack(text + b"2026-05-12,/9,5\r2026-05-12,/9,6"))
    report = logs.add(source, **asked)
    assert (report.counted, report.known_lines) == (2, 9001)
    source = logs.write("mac", pack(text + b"2026-05-12,/9,5\r2026-05-12,/9,6\r2026-05-12,/9,1\r"))
    assert logs.add(source, **asked).counted == 1
    three = {("2026-05-12", f"/{n}"): 3000 for n in range(3)}
    assert logs.totals() == three | {("2026-05-12", "/9"): 12}
    assert logs.add(source, **asked).known_lines == 9004


def test_a_newline_that_is_not_there_yet_is_no_sign_of_carriage_returns(logs: Logs) -> None:
    source = logs.write("torn", b"t,k\r")
    logs.add(source, **CSV)
    source = logs.write("torn", b"t,k\r\n2026-05-12,/a\r\n")
    assert logs.add(source, **CSV).counted == 1
    assert logs.totals() == {("2026-05-12", "/a"): 1}


DAYS = {"2026-03-28": 1, "2026-03-29": 2, "2026-03-30": 3}
DATED = {"input_format": "csv", "key_column": "key", "time_column": "day"}


@pytest.mark.parametrize(
    ("zone", "resolution"),
    [
        ("UTC", "day"),
        ("Europe/Berlin", "hour"),
        ("Pacific/Kiritimati", "day"),
        ("America/Nome", "quarter"),
    ],
)
def test_a_date_stays_its_day(logs: Logs, store: Store, zone: str, resolution: str) -> None:
    logs.set_counter(time_zone=zone, resolution=resolution)
    head = "day,key,total\n"
    iso = "".join(f"{day},a,{n}\n" for day, n in DAYS.items())
    german = "".join(f"{day[8:]}.{day[5:7]}.{day[:4]},b,{n}\n" for day, n in DAYS.items())
    objects = "".join(f'{{"day":"{day}","key":"c","total":{n}}}\n' for day, n in DAYS.items())
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "a": (head + iso, {}),
        "b": (head + german, {"time_format": "%d.%m.%Y"}),
        "c": (objects, {"input_format": "ndjson", "time_zone": "Europe/Berlin"}),
    }
    for key, (content, given) in cases.items():
        asked = {**DATED, "amount_column": "total", **given}
        source = logs.write(key, content.encode())
        assert logs.add(source, dry_run=True, **asked).by_day == tuple(DAYS.items())
        assert logs.add(source, **asked).state == "done"
        found = store.totals.daily(COUNTER, key=key)
        assert found == [(date.fromisoformat(day), n) for day, n in DAYS.items()]


def test_a_date_before_all_time_is_rejected(logs: Logs) -> None:
    source = logs.write("a.csv", b"day,key\n1969-12-31,a\n2026-02-30,a\n1970-01-01,a\n")
    done = logs.add(source, dry_run=True, **DATED)
    assert (done.by_day, done.rejected) == ((("1970-01-01", 1),), 2)
