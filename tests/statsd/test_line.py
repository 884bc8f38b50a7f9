"""One line of StatsD."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.statsd.errors import MalformedMetric
from countersink.statsd.line import MAX_NAME, MAX_VALUES, UNIT, billionths, events_per_line, parse
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("line", "name", "amount", "tags"),
    [
        (b"a:1|c", "a", 1, {}),
        (b"a.b-c:12|c", "a.b-c", 12, {}),
        (b"a:-3|c", "a", -3, {}),
        (b"a:0|c", "a", 0, {}),
        (b"a:2|c|@0.1|#x:y", "a", 20, {"x": "y"}),
        (b"a:1|c|#x:y,flag,u:v:w", "a", 1, {"x": "y", "flag": "", "u": "v:w"}),
        (b"a:1|c|#x:y|@0.5", "a", 2, {"x": "y"}),
        (b"a:1:2|c|@0.5", "a", 6, {}),
        (b"a:0.5:1e1:-.5|c", "a", 10, {}),
        (b"a" + b":1" * MAX_VALUES + b"|c", "a", MAX_VALUES, {}),
        (b"a:1|c|#x:y|c:0123abc|e:it-false,cn-x|card:low", "a", 1, {"x": "y"}),
        (b"a:1:2|c|@0.5:3|c|@0.1", "a", 36, {}),
        (b"a:1|c:320|ms:4|g|@0.1:2|c", "a", 3, {}),
        (b"a:320|ms|@0.1:u|s:1|c", "a", 1, {}),
        (b"a:1|c:2|c|@0.5|#x:1|c:0123abc", "a", 5, {"x": "1"}),
        (b"a;x=y:1|c:2|c", "a", 3, {"x": "y"}),
        (b"a" + b":1|c" * MAX_VALUES, "a", MAX_VALUES, {}),
        (b"a:1|c|", "a", 1, {}),
        (b"a,x=y,z=w:1|c", "a", 1, {"x": "y", "z": "w"}),
        (b"a;x=y:1|c", "a", 1, {"x": "y"}),
        (b"a;x=y:1|c|#x:z", "a", 1, {"x": "z"}),
        (b"a#x=y,z=w:1|c", "a", 1, {"x": "y", "z": "w"}),
        (b"a[x=y,z=w]:1|c", "a", 1, {"x": "y", "z": "w"}),
        (b"a[x=y].b:1|c", "a.b", 1, {"x": "y"}),
        (b"a,x=y#[z=w]:1|c", "a", 1, {"x": "y#[z=w]"}),
        (b"a,b;x=y:1|c", "a,b", 1, {"x": "y"}),
        (b"a#b,x=y:1|c", "a#b", 1, {"x": "y"}),
        (b"a[0]:1|c", "a[0]", 1, {}),
        (b"a[x=y:1|c", "a[x=y", 1, {}),
        ("käse:1|c".encode(), "käse", 1, {}),
        (b"a b/c:1|c", "a b/c", 1, {}),
    ],
)
def test_counters(line: bytes, name: str, amount: int, tags: dict[str, str]) -> None:
    metric = parse(line)
    assert metric is not None
    assert (metric.name, metric.amount, dict(metric.tags)) == (name, amount * UNIT, tags)
    assert metric.minute is None


def test_a_time_of_its_own() -> None:
    metric = parse(b"a:1|c|T1764000059")
    assert metric is not None
    assert metric.minute == 1764000059 // 60


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"a", "no type"),
        (b"a|c", "no value"),
        (b":1|c", "no name"),
        (b"a:|c", "not a number"),
        (b"a:x|c", "not a number"),
        (b"a:1:|c", "not a number"),
        (b"a" + b":1" * (MAX_VALUES + 1) + b"|c", "more than 1,000 values"),
        (b"a:1|x", "type is unknown"),
        (b"a:1|", "type is unknown"),
        (b"a:1|c:2", "no type"),
        (b"a:1|c:2|x", "type is unknown"),
        (b"a:1|c:x|c", "not a number"),
        (b"a:1|c|@2:1|c", "sample rate"),
        (b"a" + b":1|c" * (MAX_VALUES + 1), "more than 1,000 values"),
        (b"a:1|c|0.1", "more behind its type"),
        (b"a:1|c|@0", "sample rate"),
        (b"a:1|c|@2", "sample rate"),
        (b"a:1|c|@0.1|@0.1", "two sections"),
        (b"a:1|c|Tnow", "time"),
        (b"a:1|c|T999999999999", "after 9999"),
        (b"\xff\xfe:1|c", "UTF-8"),
        (b"a" * (MAX_NAME + 1) + b":1|c", "longer than"),
        (b"\x00\x01\x02", "no type"),
    ],
)
def test_malformed_lines(line: bytes, why: str) -> None:
    with pytest.raises(MalformedMetric, match=why):
        parse(line)


@pytest.mark.parametrize(
    "line",
    [b"a:320|ms", b"a:1|g", b"a:+1|g", b"a:x|s", b"a:1|h|@0.1", b"a:1|d|#x:y", b"a:1|m", b"a:1|kv",
     b"_e{5,4}:title|text|t:error", b"_sc|Redis|0|#env:dev", b"a:1|ms:2|g", b"a:1|ms|@0.1:x:y|s",
     b"a:1|ms|@0.1|#x:1|c"],
)  # fmt: skip
def test_other_types(line: bytes) -> None:
    assert parse(line) is None


@examples(few=25, many=100)
@given(st.one_of(st.binary(max_size=80), st.text("ab:|c@#,;=.0123456789T-", max_size=40)))
def test_whatever_comes_is_a_counter_or_another_type_or_malformed(sent: bytes | str) -> None:
    line = sent if isinstance(sent, bytes) else sent.encode()
    try:
        metric = parse(line)
    except MalformedMetric:
        return
    if metric is not None:
        assert b"|c" in line
        assert metric.name
        assert type(metric.amount) is int


# --- amounts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "nan", "NaN", "inf", "-inf", "1_000", " 1", "1 ", "0x10", "1,5", "--1", "+", ".", "1e",
     "1e100", "٣", "1" * 31, "1/2", "1e-100"],
)  # fmt: skip
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(MalformedMetric, match="not a number"):
        billionths(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1", UNIT), ("-3", -3 * UNIT), ("+2", 2 * UNIT), ("0.5", UNIT // 2), (".5", UNIT // 2),
     ("5.", 5 * UNIT), ("1e3", 1000 * UNIT), ("007", 7 * UNIT), ("2.5E-1", UNIT // 4),
     ("9" * 30, (10**30 - 1) * UNIT), ("1e-20", 0), ("1e12", 10**12 * UNIT)],
)  # fmt: skip
def test_numbers(text: str, amount: int) -> None:
    assert billionths(text) == amount


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 9, 10, 11, 13, 100, 333, 997, 1000, 99_991])
def test_one_of_n_stands_for_n_exactly(n: int) -> None:
    # as clients print it: all digits, or as many as C's %f and %g leave
    for text in (repr(1 / n), f"{1 / n:.12f}", f"{1 / n:.8g}"):
        assert events_per_line(text) == n
        assert type(events_per_line(text)) is int


def test_a_third_written_with_six_digits_is_one() -> None:
    assert events_per_line("0.333333") == 3
    assert events_per_line("0.33333") != 3


@pytest.mark.parametrize("text", ["0", "0.0", "-0.1", "1.1", "2", "nan", "", "@", "1e-99999"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(MalformedMetric, match="sample rate"):
        events_per_line(text)


@pytest.mark.parametrize(
    ("line", "amount"),
    [
        (b"a:1|c|@0.3", 3_333_333_333),
        (b"a:-2|c|@0.3", -6_666_666_667),
        (b"a:1|c|@0.33", 3_030_303_030),
        (b"a:1|c|@0.75", 1_333_333_333),
        (b"a:-0.25|c|@0.5", -UNIT // 2),
        (b"a" + b":0.1" * 1_000 + b"|c", 100 * UNIT),
        (b"a:1:-3:7|c", 5 * UNIT),
        (b"a:%d:0.000000001:-%d|c" % (10**30 - 1, 10**30 - 1), 1),
    ],
)
def test_amounts_are_rounded_to_billionths_and_add_up_exactly(line: bytes, amount: int) -> None:
    metric = parse(line)
    assert metric is not None
    assert metric.amount == amount


@pytest.mark.parametrize("text", ["9" * 30 + "e99", "-" + "9" * 30 + "e99"])
def test_the_largest_numbers_and_the_smallest_rates_are_no_error(text: str) -> None:
    metric = parse(f"a:{text}|c|@.{'0' * 29}1e-99".encode())
    assert metric is not None
    assert abs(metric.amount) > 10**200
