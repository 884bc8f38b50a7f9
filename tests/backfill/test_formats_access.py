"""Access logs: as `tail` counts them line by line, with filters and templates on top."""

from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.backfill.formats import RecordTally, make_reader
from countersink.backfill.options import Recipe
from countersink.database.errors import Refused
from countersink.logs import Counts, Malformed, Parser, Rejected
from countersink.logs.formats.line_format import COMBINED
from countersink.logs.formats.reader import RecordBlock
from tests.backfill.format_helpers import Cells, at, cell, read, reasons, where
from tests.support.examples import examples

MINUTE = at(2015, 5, 17, 10, 5)
KINDS = ("path", "target", "host", "status")


def line(
    request: str = "GET /a?b=1 HTTP/1.1",
    *,
    host: str = "127.0.0.1",
    user: str = "-",
    when: str = "17/May/2015:10:05:03 +0000",
    status: str = "200",
    rest: str = ' "http://referer/" "agent"',
) -> str:
    return f'{host} - {user} [{when}] "{request}" {status} 2326{rest}'


def sample(kind: str, lines: list[bytes]) -> tuple[Counts, list[Rejected]]:
    """What `tail` counts."""
    counts: Counts = {}
    return counts, Parser(kind, input_format="combined").count(lines, 1, counts)


TEXT = st.one_of(
    st.sampled_from(
        [
            "GET / HTTP/1.1",
            "GET /a?b HTTP/1.1",
            "-",
            "",
            r"GET /\"x\" HTTP/1.1",
            r"\x16\x03",
            "\\",
            '"',
            '" "',
            "GET /" + "x" * 300 + " HTTP/1.1",
            "GET /é HTTP/1.0",
            "POST /p",
        ]
    ),
    st.text('ab/ "\\?[]-', max_size=8),
)
TIMES = st.sampled_from(
    [
        "17/May/2015:10:05:03 +0000",
        "17/May/2015:10:05:59 +0000",
        "17/May/2015:10:06:60 -0330",
        "31/Dec/1969:23:59:00 +0000",
        "01/Jan/1970:00:00:00 +0100",
        "26/Dec/9999:00:30:00 +0100",
        "31/Feb/2015:10:05:03 +0000",
        "17/Mai/2015:10:05:03 +0000",
        "17/May/2015:24:05:03 +0000",
        "17/May/2015:10:60:03 +0000",
        "17/May/2015:10:05:03 +2400",
        "17/May/2015:10:05:61 +0000",
        "17/May/2015:10:05:03",
    ]
)


@st.composite
def access_lines(draw: st.DrawFn) -> bytes:
    """A line of the format, most of them spoiled somewhere."""
    made = line(
        draw(TEXT),
        host=draw(st.sampled_from(["127.0.0.1", "::1", "h", "v:80 127.0.0.1", "", "é"])),
        user=draw(st.sampled_from(["-", "bob", "b o b", "[bob", '"', "- -", "\\"])),
        when=draw(TIMES),
        status=draw(st.sampled_from(["200", "404", "20", "2000", "abc"])),
        rest=draw(
            st.one_of(
                st.sampled_from(["", " ", "\r", ' "-" "-"', ' "-" "-" 0.1 "x', ' "-"', ' "-" "']),
                st.builds(' "{}" "{}"'.format, TEXT, TEXT),
            )
        ),
    ).encode()
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(made)))
        new = draw(st.sampled_from([b"", b'"', b"\\", b" ", b"\0", b"\r", b"[", b"\xff", b"\x85"]))
        made = made[:place] + new + made[place + draw(st.integers(0, 3)) :]
    return made


SOURCES = st.lists(
    st.one_of(
        access_lines(),
        st.just(line().encode()),
        st.sampled_from([b"", b"  \r", b"\0\0", b"\0\0" + line().encode(), b"x"]),
        # Not beginning as UTF-16 does.
        st.binary(max_size=40).map(lambda data: b"x" + data.replace(b"\n", b"")),
    ),
    max_size=12,
)


@examples(few=50, many=300)
@given(SOURCES, st.sampled_from(KINDS), st.lists(st.integers(1, 4), max_size=3))
def test_a_block_at_once_comes_to_the_same_as_line_by_line(
    lines: list[bytes], kind: str, sizes: list[int]
) -> None:
    counts, rejected = sample(kind, lines)
    tally = read(Recipe(key=f"{{{kind}}}"), lines, sizes=sizes)
    assert tally.counts == counts
    assert [Rejected(each.line, each.reason) for each in tally.rejected] == rejected
    assert [each.text for each in tally.rejected] == [
        lines[each.line - 1][:1000] for each in rejected
    ]
    assert (tally.counted, tally.filtered) == (sum(counts.values()), 0)
    assert tally.lines == len(lines)


@examples(few=33, many=200)
@given(SOURCES, st.integers(1, 100), st.sampled_from(["combined", "common"]))
def test_a_line_that_was_broken_in_two_is_two_bad_lines(
    lines: list[bytes], cut: int, form: str
) -> None:
    """The faster pattern, for blocks without a backslash, may run over the end of a line."""
    good = line(rest=' "http://referer/" "a \'browser\'"').encode()
    lines = [good, good[:cut], good[cut:], *(each.replace(b"\\", b"/") for each in lines)]
    counts, rejected = sample("path", lines)
    tally = read(Recipe(input_format=form), lines)
    assert tally.counts == counts
    assert reasons(tally) == {each.line: each.reason for each in rejected}


RECIPES = [
    Recipe(where=(where("status", "=", "200"),)),
    Recipe(where=(where("path", "!~", "/a*"), where("agent", "!=", "-"))),
    Recipe(key="{host} {method} {status}", exclude_keys=("* GET 404",)),
    Recipe(key="all {protocol}"),
    Recipe(key="{target}", strip_query=True),
    Recipe(key="{user}{ident}{size}{referer}{agent}{protocol}{query}{time}"),
]


@examples(few=33, many=200)
@given(SOURCES, st.sampled_from(RECIPES), st.booleans())
def test_filters_and_templates_do_not_depend_on_what_stands_beside_a_line(
    lines: list[bytes], recipe: Recipe, ranged: bool
) -> None:
    minutes = (MINUTE, MINUTE + 1) if ranged else None
    whole, alone = read(recipe, lines, minutes=minutes), RecordTally()
    for number, each in enumerate(lines, 1):
        reader = make_reader(recipe, b"", minutes)
        # A blank neighbour makes no difference, but a malformed one lets no table be trusted.
        reader.count(RecordBlock([number, number + 100], [each, b"x"], []), alone)
    alone.rejected = [each for each in alone.rejected if each.line < 100]
    assert whole.counts == alone.counts
    assert whole.rejected == alone.rejected
    assert (whole.counted, whole.filtered) == (alone.counted, alone.filtered)
    assert whole.counted == sum(whole.counts.values())
    blank = sum(1 for each in lines if not each.strip(b"\0 \t\r"))
    assert whole.counted + whole.filtered + len(whole.rejected) + blank == whole.lines


DAY, HOUR, QUARTER = 1440, 60, 15
"""Minutes of a bucket."""


def _bucket(size: int, minute: int) -> int:
    return minute // size


def beside(lines: list[bytes], *, good: bytes | None = None) -> list[bytes]:
    """Lines that stand between so many good ones of one day that those of others are few."""
    around = [line().encode() if good is None else good] * (5 * len(lines) + 1)
    return [*around, *lines, *around]


@examples(few=50, many=300)
@given(SOURCES, st.sampled_from(["path", "target"]), st.sampled_from([DAY, HOUR, QUARTER]))
def test_a_block_of_one_period_comes_to_the_same_as_line_by_line(
    lines: list[bytes], kind: str, size: int
) -> None:
    lines = beside(lines)
    counts, rejected = sample(kind, lines)
    buckets: Cells = {}
    for (key, minute), hits in counts.items():
        cell = (key, minute // size)
        buckets[cell] = buckets.get(cell, 0) + hits
    tally = read(Recipe(key=f"{{{kind}}}"), lines, bucket=partial(_bucket, size))
    assert tally.counts == buckets
    assert [Rejected(each.line, each.reason) for each in tally.rejected] == rejected
    assert (tally.counted, tally.filtered) == (sum(counts.values()), 0)


OF_REQUESTS = [
    Recipe(where=(where("path", "!~", "/a*"),)),
    Recipe(key="{method} {target}", where=(where("request", "!=", ""),)),
    Recipe(key="[{request}]"),
    Recipe(key="{target}{protocol}", exclude_keys=("/a*",)),
]


@examples(few=50, many=300)
@given(
    SOURCES,
    st.sampled_from(OF_REQUESTS),
    st.sampled_from([None, (MINUTE, MINUTE + 1), (MINUTE // DAY * DAY, MINUTE + DAY)]),
    st.sampled_from([line(), line("POST /other HTTP/1.1"), line(rest="")]),
)
def test_recipes_mean_the_same_for_a_block_of_one_period(
    lines: list[bytes], recipe: Recipe, minutes: tuple[int, int] | None, good: str
) -> None:
    bucket = partial(_bucket, DAY)
    lines = beside(lines, good=good.encode())
    whole = read(recipe, lines, minutes=minutes, bucket=bucket)
    alone, reader = RecordTally(bucket), make_reader(recipe, b"", minutes)
    for number, each in enumerate(lines, 1):
        # The other line is of another year: there is no period.
        other = line(when="17/May/2016:10:05:03 +0000", request="-").encode()
        reader.count(RecordBlock([number, number + 1000], [each, other], []), alone)
    alone.rejected = [each for each in alone.rejected if each.line <= len(lines)]
    assert whole.rejected == alone.rejected
    assert {cell: n for cell, n in alone.counts.items() if cell[1] != at(2016, 5, 17) // DAY} == (
        whole.counts
    )
    assert whole.counted == sum(whole.counts.values())


def test_periods_are_no_larger_than_their_buckets() -> None:
    """A bucket may begin in the midst of a day or of an hour, and so may the range."""
    whens = ["00:00:00", "10:04:59", "10:05:00", "10:59:60", "11:00:00", "23:59:59"]
    lines = [line(when=f"17/May/2015:{when} +0000") for when in whens] * 3

    def bucket(minute: int) -> int:
        return 0 if minute < MINUTE else 1 if minute < at(2015, 5, 17, 11) else 2

    for order in (lines, lines[1:], lines[::-1]):
        for size in (1, 2, 3, 18):
            sizes = [size] * (len(order) // size)
            tally = read(Recipe(), order, bucket=bucket, sizes=sizes)
            found = {label: n for (_, label), n in tally.counts.items()}
            zero = 3 * 2 - (order == lines[1:])
            assert found == {0: zero, 1: 6, 2: 6}
            inside = read(Recipe(), order, minutes=(MINUTE, MINUTE + 1), bucket=bucket, sizes=sizes)
            assert inside.counts == {("/a", 1): 3}


def test_a_bucket_that_cannot_be_told_is_of_no_matter_to_malformed_lines() -> None:
    def bucket(minute: int) -> int:
        raise Refused("a time zone is unknown here")

    assert reasons(read(Recipe(), [line("-")] * 3, bucket=bucket)).keys() == {1, 2, 3}
    with pytest.raises(Refused):
        read(Recipe(), [line("-"), line()], bucket=bucket)


def test_a_reader_asks_again_where_other_buckets_hold() -> None:
    reader = make_reader(Recipe(), b"", None)
    for size in (DAY, HOUR, QUARTER, 1):
        tally = RecordTally(partial(_bucket, size))
        reader.count(RecordBlock(range(1, 10), [line().encode()] * 9, []), tally)
        assert tally.counts == {("/a", MINUTE // size): 9}


@examples(few=33, many=200)
@given(SOURCES)
def test_a_range_of_minutes_leaves_out_every_line_with_another_time(lines: list[bytes]) -> None:
    parser, expected = Parser("status", input_format="combined"), 0
    for each in lines:
        for read_as in (each, each.strip(b"\0 \t\r")):  # a NUL may be the host as well
            with suppress(Malformed):
                found = cell(parser, read_as)
                expected += found is not None and found[1] != MINUTE
                break
    tally = read(Recipe(), lines, minutes=(MINUTE, MINUTE + 1))
    assert tally.filtered == expected
    assert {minute for _, minute in tally.counts} <= {MINUTE}


def test_lines_that_a_condition_leaves_out_are_not_rejected() -> None:
    """`--where status=200` is asked for just because the others are what scanners send."""
    lines = [line(r"\x16\x03", status="400"), line("-", status="408"), line("-"), "nonsense"]
    tally = read(Recipe(where=(where("status", "=", "200"),)), lines)
    assert tally.filtered == 2
    assert sorted(reasons(tally)) == [3, 4]


def test_every_field_can_be_in_the_key() -> None:
    whole = (
        b'h i b o [17/May/2015:10:05:03 +0000] "GET http://x.org/p?q=\\\\1 HTTP/2.0" 304 -'
        b' "say \\"r\\"" "caf\xe9" further'
    )
    key = "|".join(f"{{{name}}}" for name in COMBINED)
    expected = {
        "host": "h",
        "ident": "i",
        "user": "b o",
        "time": "17/May/2015:10:05:03 +0000",
        "request": "GET http://x.org/p?q=\\1 HTTP/2.0",
        "method": "GET",
        "target": "http://x.org/p?q=\\1",
        "path": "/p",
        "query": "q=\\1",
        "protocol": "HTTP/2.0",
        "status": "304",
        "size": "-",
        "referer": 'say "r"',
        "agent": "caf%E9",
    }
    text = "|".join(expected[name] for name in COMBINED)
    for lines in ([whole], [whole, b"bad"], [whole.removesuffix(b" further") + b"\0"]):
        assert read(Recipe(key=key), lines).counts == {(text, MINUTE): 1}


def test_referer_and_agent_are_empty_where_the_line_ends_before_them() -> None:
    tally = read(Recipe(key="<{referer}{agent}>"), [line(rest=""), line(rest=' "" ""'), line()])
    assert tally.counts == {("<>", MINUTE): 2, ("<http://referer/agent>", MINUTE): 1}


def test_keys_are_cut_before_their_query_and_left_out_by_shell_patterns() -> None:
    lines = [line(f"GET {target} HTTP/1.1") for target in ("/a?1", "/a?2", "/B.css?v=1", "/b.CSS")]
    recipe = Recipe(key="{target}", strip_query=True, exclude_keys=("*.css", "/nothing"))
    tally = read(recipe, lines)
    assert tally.counts == {("/a", MINUTE): 2, ("/b.CSS", MINUTE): 1}
    assert tally.filtered == 1


def test_a_client_that_sends_long_and_new_requests_fills_no_memory() -> None:
    reader, tally = make_reader(Recipe(key="{method}{host}"), b"", None), RecordTally()
    for number in range(3):
        lines = [line(f"GET /?{'x' * 50_000}{number}{n} HTTP/1.1").encode() for n in range(5)]
        reader.count(RecordBlock(range(1, 6), lines, []), tally)
    assert tally.counts == {("GET127.0.0.1", MINUTE): 15}
    tables = [value for value in vars(reader).values() if isinstance(value, dict)]
    assert len(tables) == 2
    assert sum(len(b"".join(found)) for table in tables for found in table) < 10_000


@pytest.mark.parametrize(
    "hostile",
    [
        [b'h - - [17/May/2015:10:05:03 +0000] "' + b"\\" * 100_000] * 3,
        [b'h - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 ' + b'"' * 100_000] * 3,
        [b"h - " + b"[17/May/2015:10:05:03 +0000] " * 5_000] * 3,
        [b" " * 200_000, b"h - " + b" [" * 100_000],
        [b"a"] * 10_000,
        [b""] * 15_000,
        # A quote that no line closes, before many that the pattern would run over.
        [b'h - - [17/May/2015:10:05:03 +0000] "GET /'] * 6_000,
        [b'h - - [17/May/2015:10:05:03 +0000] "GET /', *[b"h - -"] * 5_000] * 2,
        [b'h - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "r" "'] * 4_000,
    ],
)
def test_a_hostile_block_costs_no_more_than_its_length(hostile: list[bytes]) -> None:
    # A pattern that backtracks would not come back before the test's time limit.
    tally = read(Recipe(key="{path}{agent}"), hostile)
    assert tally.counted == 0
    assert len(tally.rejected) == sum(1 for each in hostile if each.strip())
