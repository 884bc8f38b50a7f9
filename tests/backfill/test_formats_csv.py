"""CSV: headers, quoting, what is rejected, and what a stray quote spoils."""

import csv
import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.backfill.errors import BackfillError
from countersink.backfill.formats import RecordTally, make_reader
from countersink.backfill.options import Recipe
from countersink.logs.formats.reader import RecordBlock
from tests.backfill.format_helpers import at, read, reasons
from tests.support.examples import examples

MINUTE = at(2015, 5, 17, 10, 5)
WHEN = "2015-05-17T10:05:03Z"


def recipe(
    *, key: str = "", amount: str = "amount", delimiter: str = ",", zone: str = ""
) -> Recipe:
    return Recipe(
        input_format="csv",
        key=key,
        key_column="" if key else "path",
        time_column="time",
        amount_column=amount,
        delimiter=delimiter,
        time_zone=zone,
    )


def test_columns_are_found_by_their_names() -> None:
    lines = ["amount,time,path,extra", f"3,{WHEN},/a,x", f"-1,{WHEN},/b,", f"4,{WHEN},/a,"]
    tally = read(recipe(), lines)
    assert tally.counts == {("/a", MINUTE): 7, ("/b", MINUTE): -1}
    assert (tally.lines, tally.counted, tally.filtered, tally.rejected) == (4, 3, 0, [])


@pytest.mark.parametrize(
    "head",
    [
        b"\xef\xbb\xbfpath,time\n",
        b'\xef\xbb\xbf"path","time"\r\n',
        b" path , time \n",
        b"\n \r\npath,time\n",
        b'"path",time\n',
    ],
)
def test_a_header_may_have_a_mark_spaces_quotes_or_blank_lines_before_it(head: bytes) -> None:
    tally = read(recipe(amount=""), head + f"/a,{WHEN}\r\n".encode())
    assert tally.counts == {("/a", MINUTE): 1}
    assert (tally.counted, tally.rejected) == (1, [])


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"url,time,amount\n", "no column 'path'; its columns are: url, time, amount"),
        (b"path;time;amount\n", "another --delimiter"),
        (b"path,path,time,amount\n", "2 columns named 'path'"),
        (b"path,time\n", "no column 'amount'"),
        (b'path,"time\n', "is not valid CSV"),
        (b"sep=;\npath;time\n", "its columns are: sep="),
        (b'path,time\r/a,2015\r"/a\nb",2015\r', "is not valid CSV"),
        (b'"path", "time"\n', "no column 'time'"),
        (b'"' + b"x" * 70_000, "longer than 64 KiB"),
        (b"\xff\xfep\0a\0t\0h\0", "UTF-16"),
    ],
)
def test_a_header_that_cannot_be_used_says_why(head: bytes, says: str) -> None:
    with pytest.raises(BackfillError, match=says):
        make_reader(recipe(), head[: 64 * 1024], None)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (f"/a,{WHEN}", "it has 2 columns, the header 3"),
        (f"/a,{WHEN},1,2", "it has 4 columns, the header 3"),
        ("/a,yesterday,1", "the time 'yesterday' cannot be"),
        ("/a,2015-05-17 10:05:03,1", "no time zone; give one by --time-zone"),
        ("/a,,1", "there is no time"),
        (f"/a,{WHEN},", "there is no amount"),
        (f"/a,{WHEN},1e3", "the amount '1e3' is no whole number"),
        (f"/a,{WHEN},1.5", "the amount '1.5' is no whole number"),
        (f'/a,{WHEN},"1,000"', "the amount '1,000' may have thousands or a fraction"),
        (f"/a,{WHEN},1.000", "the amount '1.000' may have thousands or a fraction"),
        (f"/a,{WHEN},-12.345.678", "say which, by --thousands '.' or --decimal-point '.'"),
        (f'/a,{WHEN},"1,234.00"', "say which, by --thousands ','"),
        (f"/a,{WHEN},1 234", "say which, by --thousands ' '"),
        (f"/a,{WHEN},٣", "the amount '٣' is no whole number"),
        (f"/a,{WHEN},9223372036854775808", "-2**63 to 2**63 - 1"),
        (f'"/a"b,{WHEN},1', "it is not valid CSV"),
        (f"/a\rb,{WHEN},1", "it is not valid CSV"),
        (f'"/a", "{WHEN}",1', "it is not valid CSV: there is a blank before a quote"),
        (f' "/a",{WHEN},1', "it is not valid CSV: there is a blank before a quote"),
        (f"/a,{WHEN},{'x' * 140_000}", "is no whole number"),
        (f"/a,{WHEN},9223372036854775808.0", "-2**63 to 2**63 - 1"),
    ],
)
def test_a_record_that_cannot_be_counted_says_why_and_spoils_no_other(
    record: str, reason: str
) -> None:
    tally = read(recipe(), ["path,time,amount", f"/a,{WHEN},1", record, f"/a,{WHEN},2"])
    assert tally.counts == {("/a", MINUTE): 3}
    assert list(reasons(tally)) == [3]
    assert reason in reasons(tally)[3]
    assert tally.rejected[0].text == record.encode()[:1000]


@pytest.mark.parametrize(
    ("amount", "is_"),
    [
        *((str(number), number) for number in (-(2**63), 2**63 - 1, 0)),
        *((" +007 ", 7), ("1.0", 1), ("-7.00", -7), ("12.", 12), ("1000.000", 1000), ("0.000", 0)),
    ],
)
def test_amounts_are_whole_numbers_of_64_bits(amount: str, is_: int) -> None:
    """With a point, too, as exports of columns with gaps have them; sums may leave 64 bits."""
    tally = read(recipe(), ["path,time,amount", *[f"/a,{WHEN},{amount}"] * 2])
    assert (tally.counts, tally.counted) == ({("/a", MINUTE): 2 * is_}, 2)


def test_a_blank_before_a_quote_within_quotes_is_one_of_the_value() -> None:
    lines = ["path,time,amount", f'" ""a"" ","{WHEN}"," 1"', f" a , {WHEN}, 1"]
    assert read(recipe(), lines).counts == {(' "a" ', MINUTE): 1, (" a ", MINUTE): 1}
    lines = ["path time amount", f'"a b" "{WHEN}" "1"']
    assert read(recipe(delimiter=" "), lines).counts == {("a b", MINUTE): 1}


def test_keys_may_hold_anything() -> None:
    data = f'path,time,amount\n"say ""a"", b\nc",{WHEN},1\n,{WHEN},1\n'.encode()
    data += b"caf\xe9," + WHEN.encode() + b",1\n"
    tally = read(recipe(), data)
    assert tally.counts == {
        ('say "a", b\nc', MINUTE): 1,
        ("", MINUTE): 1,
        ("caf%E9", MINUTE): 1,
    }


@pytest.mark.parametrize("delimiter", [";", "\t", "|", "§", " "])
def test_any_character_may_be_the_delimiter(delimiter: str) -> None:
    lines = [delimiter.join(each) for each in (("path", "time", "amount"), ("/a,b", WHEN, "2"))]
    assert read(recipe(delimiter=delimiter), lines).counts == {("/a,b", MINUTE): 2}


@pytest.mark.parametrize(
    ("decimal_point", "thousands", "amounts"),
    [
        (".", "", {"1.000": 1, "-12.00": -12, "7": 7, "1.234": None, "1,000": None}),
        (",", "", {"1,000": 1, "7": 7, "1.000": None}),
        ("", ".", {"1.000": 1000, "-1.234.567,00": -1234567, "7": 7, "1234": 1234, "1.00": None}),
        ("", ".", {"0.500": None, "00.123": None, "0": 0, "10.000": 10000}),
        ("", ",", {"1,000": 1000, "1,234.0": 1234, "12,34": None, "1,0000": None}),
        (",", " ", {"1 000": 1000, "1 000,0": 1000, "1.000": None}),
        ("", "\u202f", {"12\u202f000": 12000}),
        ("", "'", {"9'223'372'036'854'775'807": 2**63 - 1, "9'223'372'036'854'775'808": None}),
    ],
)
def test_thousands_and_fractions_are_what_the_options_say(
    decimal_point: str, thousands: str, amounts: dict[str, int | None]
) -> None:
    asked = replace(recipe(delimiter=";"), decimal_point=decimal_point, thousands=thousands)
    lines = ["path;time;amount", *(f"{text};{WHEN};{text}" for text in amounts)]
    counted = {key: amount for (key, _), amount in read(asked, lines).counts.items()}
    assert counted == {text: amount for text, amount in amounts.items() if amount is not None}


@pytest.mark.parametrize(
    ("field", "key"),
    [
        (r'"/a \"x\""', '/a "x"'),
        (r'"\"x\""', '"x"'),
        (r'"5\""', '5"'),
        (r'"a\",\"b"', 'a","b'),
        (r'"a\", b"', 'a", b'),
        (r'"C:\dir \"x\" \\"', 'C:\\dir "x" \\'),
        (r'"C:\dir\"', "C:\\dir\\"),
        (r'"say ""a"" \n"', 'say "a" \\n'),
    ],
)
@pytest.mark.parametrize("sizes", [(), (1, 1, 1)])
def test_a_backslash_before_a_quote_is_read(field: str, key: str, sizes: tuple[int, ...]) -> None:
    lines = ["path,time,amount", f"/b,{WHEN},1", f"{field},{WHEN},2", f'"/c",{WHEN},4']
    tally = read(recipe(), lines, sizes=sizes)
    assert (tally.counts, reasons(tally)) == (
        {("/b", MINUTE): 1, (key, MINUTE): 2, ("/c", MINUTE): 4},
        {},
    )


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ('"/a \\"\nb"', '/a "\nb'),
        ('"say \\"hi\\" there\nmore"', 'say "hi" there\nmore'),
        ('"a\\", b\r\nc"', 'a", b\r\nc'),
        ('"\\"\n,"', '"\n,'),
        ('"\\"\n\n/b,x,5\n\\"\n"', '"\n\n/b,x,5\n"\n'),
    ],
)
@pytest.mark.parametrize("sizes", [(), (1, 1, 1)])
@pytest.mark.parametrize("last", [False, True])
def test_so_is_one_before_a_newline(
    field: str, key: str, sizes: tuple[int, ...], last: bool
) -> None:
    """MySQL: FIELDS ENCLOSED BY '"' ESCAPED BY '\\\\'."""
    names = ["time", "amount", "path"] if last else ["path", "time", "amount"]
    records = [[f'"{WHEN}"', '"1"', field], [WHEN, "2", '"/c"'], [WHEN, "4", "/d"]]
    if not last:
        records = [[path, time, amount] for time, amount, path in records]
    data = "".join(",".join(record) + "\n" for record in [names, *records]).encode()
    tally = read(recipe(), data, sizes=sizes)
    assert (tally.counts, reasons(tally)) == (
        {(key, MINUTE): 1, ("/c", MINUTE): 2, ("/d", MINUTE): 4},
        {},
    )


@pytest.mark.parametrize("following", ["/b", '"/b"', '"/b\nc"', '5" disk', '"5"" disk"'])
@pytest.mark.parametrize("last", [False, True])
def test_a_value_that_ends_in_a_backslash_is_whole(following: str, last: bool) -> None:
    """RFC 4180."""
    data = b""
    for path in ("path", *['"C:\\dir\\"', following] * 3):
        fields = [path, "time" if path == "path" else WHEN, "amount" if path == "path" else "1"]
        data += ",".join(fields[1:] + fields[:1] if last else fields).encode() + b"\n"
    tally = read(recipe(), data + b"x" * 70_000 + b"\n")
    other = next(csv.reader([following]))[0] if following != '"/b\nc"' else "/b\nc"
    assert {path: amount for (path, _), amount in tally.counts.items()} == {
        "C:\\dir\\": 3,
        other: 3,
    }
    assert len(tally.rejected) == 1


def test_an_inch_is_no_quotation() -> None:
    lines = ["path,time,amount", f'5" disk,{WHEN},1', f"/a,{WHEN},1", f'6" disk,{WHEN},1', "bad"]
    tally = read(recipe(), lines)
    assert tally.counts == {('5" disk', MINUTE): 1, ("/a", MINUTE): 1, ('6" disk', MINUTE): 1}
    assert list(reasons(tally)) == [5]
    assert (tally.lines, tally.counted) == (5, 3)


@pytest.mark.parametrize(
    "before", [f'5" disk,{WHEN},1\n', f'disk 5",{WHEN},1\n', '# "why\n', f'# 5,"{WHEN}\n']
)
def test_a_quote_of_a_field_or_comment_joins_no_lines_and_divides_none(before: str) -> None:
    first, second = (f'"/{name}\n/b,{WHEN},7\n",{WHEN},1\n' for name in "ac")
    data = f"path,time,amount\n{before}{first}{second}".encode()
    tally = read(replace(recipe(), comment="#"), data)
    counts = {key: amount for (key, _), amount in tally.counts.items() if "disk" not in key}
    assert counts == {f"/a\n/b,{WHEN},7\n": 1, f"/c\n/b,{WHEN},7\n": 1}
    assert tally.rejected == []


def test_a_quote_that_is_never_closed_spoils_at_most_the_next_quoted_record() -> None:
    broken = f'"/x,{WHEN},1\n# no line\n/y,{WHEN},1\n"/a\n,b",{WHEN},1\n'
    whole = f'"/c\n/d",{WHEN},1\n"/e",{WHEN},1\n'
    tally = read(replace(recipe(), comment="#"), f"path,time,amount\n{broken}{whole}".encode())
    assert tally.counts == {("/y", MINUTE): 1, ("/c\n/d", MINUTE): 1, ("/e", MINUTE): 1}
    assert sorted(reasons(tally)) == [2, 5, 6]


def test_a_quote_that_is_never_closed_spoils_its_own_line_only() -> None:
    reader, tally = make_reader(recipe(), b"path,time,amount\n", None), RecordTally()
    record = f'"/a,{WHEN},1\n/b,{WHEN},1'.encode()
    reader.count(RecordBlock([2], [record], []), tally)
    assert tally.counts == {("/b", MINUTE): 1}
    assert list(reasons(tally)) == [2]
    assert (tally.lines, tally.rejected[0].text) == (2, record.split(b"\n")[0])


@examples(few=25, many=150)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=12).filter(lambda text: "\r" not in text),
            st.integers(-(2**63), 2**63 - 1),
            st.text('",\n ab', max_size=6),
        ),
        max_size=10,
    ),
    st.lists(st.integers(1, 3), max_size=3),
    st.sampled_from([",", ";"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_what_a_csv_writer_writes_is_counted(
    records: list[tuple[str, int, str]], sizes: list[int], delimiter: str, end: str
) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    writer.writerow(["note", "path", "time", "amount"])
    expected: dict[tuple[str, int], int] = {}
    for key, amount, note in records:
        writer.writerow([note, key, WHEN, amount])
        expected[key, MINUTE] = expected.get((key, MINUTE), 0) + amount
    tally = read(recipe(delimiter=delimiter), out.getvalue().encode(), sizes=sizes)
    assert tally.counts == expected
    assert (tally.counted, tally.rejected) == (len(records), [])


@examples(few=25, many=150)
@given(st.binary(max_size=200), st.lists(st.integers(1, 3), max_size=3))
def test_no_bytes_raise_anything_and_blocks_make_no_difference(
    data: bytes, sizes: list[int]
) -> None:
    data = b"path,time\n" + data + b"\n"
    whole, cut = read(recipe(amount=""), data), read(recipe(amount=""), data, sizes=sizes)
    assert (whole.counts, whole.rejected) == (cut.counts, cut.rejected)
    assert whole.lines == cut.lines
    assert whole.counted + len(whole.rejected) < whole.lines


def test_columns_name_those_of_a_file_without_a_header() -> None:
    recipe = Recipe(
        input_format="csv",
        columns=("day", "time", "key"),
        key_column="key",
        time_column="day",
        more_time_columns=("time",),
        time_zone="Europe/Berlin",
    )
    lines = ["2026-05-12,00:30:00,a", "2026-05-12,10:00:00,b", "2026-05-12,x,b", "2026-05-12,a"]
    tally = read(recipe, lines)
    assert tally.counts == {
        ("a", at(2026, 5, 11, 22, 30)): 1,
        ("b", at(2026, 5, 12, 8)): 1,
    }
    assert sorted(reasons(tally)) == [3, 4]


def test_comment_lines_are_none_wherever_they_stand() -> None:
    recipe = Recipe(input_format="csv", comment="#", key_column="key", time_column="time")
    lines = [
        "# exported by a program",
        "#",
        "time,key",
        "2026-05-12T10:00Z,a",
        '# it does not say "why',
        "2026-05-12T10:00Z,b",
        '# nor when"',
        '2026-05-12T10:00Z,"#c"',
    ]
    for sizes in ((), (1, 1, 1)):
        tally = read(recipe, lines, sizes=sizes)
        assert {key: amount for (key, _), amount in tally.counts.items()} == {
            "a": 1,
            "b": 1,
            "#c": 1,
        }
        assert tally.rejected == []
        assert tally.lines == len(lines)
