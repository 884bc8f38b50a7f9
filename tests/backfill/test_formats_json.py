"""NDJSON and nginx's JSON: paths, aliases, and lines that are no objects."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.backfill.options import Recipe
from countersink.logs.formats import json_objects
from countersink.logs.formats.records import is_array
from tests.backfill.format_helpers import Cells, at, read, reasons, where
from tests.support.examples import examples

MINUTE = at(2015, 5, 17, 10, 5)
WHEN = "2015-05-17T10:05:03Z"


def recipe(key: str = "path", *, amount: str = "", time: str = "time", zone: str = "") -> Recipe:
    return Recipe(
        input_format="ndjson",
        key_column=key,
        time_column=time,
        amount_column=amount,
        time_zone=zone,
    )


def entry(**fields: object) -> str:
    return json.dumps({"time": WHEN, "path": "/a"} | fields)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("plain", "p"),
        ("a.b", "deep"),
        ("list.1.x", "second"),
        ("/a/b", "deep"),
        ("/list/0", "first"),
        ("/with.dots", "dotted"),
        ("/with~1slash~0", "escaped"),
        ("/", "empty name"),
        ("number", "7"),
        ("yes", "true"),
    ],
)
def test_paths_lead_into_objects_and_arrays(path: str, key: str) -> None:
    line = entry(
        plain="p",
        a={"b": "deep"},
        list=["first", {"x": "second"}],
        number=7,
        yes=True,
        **{"with.dots": "dotted", "with/slash~": "escaped", "": "empty name"},
    )
    assert read(recipe(path), [line]).counts == {(key, MINUTE): 1}


@pytest.mark.parametrize("path", ["a..b", ".a", "a."])
def test_a_path_with_an_empty_step_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="JSON pointer"):
        json_objects.path(path)


@pytest.mark.parametrize("path", ["nope", "path.x", "list.9", "list.-1", "list.x", "/list/²"])
def test_what_is_not_there_is_rejected(path: str) -> None:
    tally = read(recipe(path), [entry(list=[1])])
    assert reasons(tally) == {1: f"there is no {path}"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "the line is no JSON"),
        ('{"path": "/a', "the line is no JSON"),
        ("[1]", "the line is JSON, but no object"),
        ("null", "the line is JSON, but no object"),
        ("{}", "there is no time"),
        (entry(path=None), "there is no path"),
        (entry(path=["/a"]), "path is an object or an array"),
        (entry(time=None), "there is no time"),
        (entry(time=[1]), "neither a text nor a number"),
        (entry(time=True), "neither a text nor a number"),
        (entry(time=5), "the time '5' cannot be"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_a_line_that_cannot_be_counted_says_why_and_spoils_no_other(line: str, reason: str) -> None:
    tally = read(recipe(), [entry(), line, "", " \t\r", entry()])
    assert tally.counts == {("/a", MINUTE): 2}
    assert list(reasons(tally)) == [2]
    assert reason in reasons(tally)[2]
    assert (tally.lines, tally.counted) == (5, 2)


@pytest.mark.parametrize(
    ("amount", "reason"),
    [
        (1.5, "no whole number"),
        (2.0**53, "may be rounded"),
        (-1e300, "may be rounded"),
        (float("nan"), "no JSON"),
        ("1e3", "no whole number"),
        (True, "no whole number"),
        (2**63, "signed 64-bit"),
        (None, "there is no amount"),
        ({}, "no whole number"),
    ],
)
def test_amounts_that_are_no_whole_number_are_rejected(amount: object, reason: str) -> None:
    tally = read(recipe(amount="n"), [entry(n=amount), entry(n=3), entry(n="-4")])
    assert tally.counts == {("/a", MINUTE): -1}
    assert reason in reasons(tally)[1]


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("1.0", 1),
        ("1e3", 1000),
        ("-2.5E1", -25),
        ("-0.0", 0),
        ("9007199254740991.0", 2**53 - 1),
        ('"2.0"', 2),
    ],
)
@pytest.mark.parametrize("form", ["ndjson", "nginx-json"])
def test_whole_numbers_may_be_written_as_json_does(form: str, written: str, amount: int) -> None:
    asked = replace(recipe(amount="n"), input_format=form)
    tally = read(asked, [entry(n="N").replace('"N"', written)])
    assert tally.rejected == []
    assert tally.counts == {("/a", MINUTE): amount}


def test_times_may_be_numbers() -> None:
    seconds = at(2015, 5, 17, 10, 5) * 60
    times = [seconds, seconds + 59.999, str(seconds), seconds * 1000 + 59_999, f"{seconds}.123"]
    tally = read(recipe(), [entry(time=time) for time in times])
    assert tally.counts == {("/a", MINUTE): 5}


def nginx(*lines: dict[str, object], key: str = "") -> Cells:
    tally = read(Recipe(input_format="nginx-json", key=key), [json.dumps(each) for each in lines])
    assert tally.rejected == []
    return tally.counts


@pytest.mark.parametrize(
    "time",
    [
        {"time_iso8601": "2015-05-17T12:05:03+02:00"},
        {"time_local": "17/May/2015:12:05:03 +0200"},
        {"msec": "1431857103.123"},
        {"msec": 1431857103.123},
        {"timestamp": WHEN},
        {"@timestamp": WHEN},
        {"time_iso8601": "", "msec": "1431857103.123"},
        {"time_local": "17/May/2015:12:05:03 +0200", "msec": "1.0"},
    ],
)
def test_nginx_tells_the_time_in_several_ways(time: dict[str, object]) -> None:
    assert nginx({"request_uri": "/a"} | time) == {("/a", MINUTE): 1}


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"request_uri": "/a?b=1"}, ("/a", "/a?b=1")),
        ({"request_uri": "http://x.org/a?b=1"}, ("/a", "http://x.org/a?b=1")),
        ({"uri": "/a", "args": "b=1"}, ("/a", "/a?b=1")),
        ({"uri": "/a"}, ("/a", "/a")),
        ({"request": "GET /a?b=1 HTTP/1.1"}, ("/a", "/a?b=1")),
        ({"uri": "/i.php", "args": "p", "request": "GET /a?b HTTP/1.1"}, ("/a", "/a?b")),
        (
            {"uri": "/i.php", "request_uri": "/a?b", "request": "GET /x HTTP/1.1"},
            ("/a", "/a?b"),
        ),
        ({"path": "/own", "target": "t", "request_uri": "/a"}, ("/own", "t")),
        ({"request_uri": '/é\\"?x'}, ('/é\\"', '/é\\"?x')),
    ],
)
def test_path_and_target_are_told_by_what_the_line_has(
    fields: dict[str, object], texts: tuple[str, str]
) -> None:
    path, target = texts
    line = {"time_iso8601": WHEN} | fields
    assert nginx(line) == {(path, MINUTE): 1}
    assert nginx(line, key="{target}") == {(target, MINUTE): 1}


def test_nginx_lines_without_a_request_are_rejected_if_their_path_is_asked_for() -> None:
    lines = [
        {"time_iso8601": WHEN, "request_uri": "", "request": "", "status": "400"},
        {"time_iso8601": WHEN, "status": "400"},
        {"request_uri": "/a", "status": "200"},
    ]
    texts = [json.dumps(each) for each in lines]
    tally = read(Recipe(input_format="nginx-json"), texts)
    assert reasons(tally) == {
        1: "the client sent no request",
        2: "there is no path",
        3: "there is no time",
    }
    tally = read(Recipe(input_format="nginx-json", key="{status}"), texts)
    assert list(reasons(tally)) == [3]
    asked = Recipe(input_format="nginx-json", where=(where("status", "!=", "400"),))
    assert read(asked, texts[:2]).filtered == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@examples(few=33, many=200)
@given(
    st.dictionaries(
        st.sampled_from(["time", "path", "n", "request", "request_uri", "uri", "args", "msec"]),
        VALUES,
    ),
    st.sampled_from(["ndjson", "nginx-json"]),
)
def test_no_values_raise_anything(fields: dict[str, object], form: str) -> None:
    asked = recipe(amount="n") if form == "ndjson" else Recipe(input_format="nginx-json")
    for base in ({}, {"time": WHEN, "time_iso8601": WHEN}):
        tally = read(asked, [json.dumps(base | fields)])
        assert tally.counted + len(tally.rejected) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[\n{0},\n{1}\n]\n",
        "[{0},\n{1}]\n",
        "[ {0}\n, {1}\n]",
        "[\r\n  {0},\r\n  {1}\r\n],\r\n",
    ],
)
def test_an_array_may_have_an_object_on_each_line(text: str) -> None:
    objects = [json.dumps({"k": key, "t": WHEN}) for key in ("/a", "/b")]
    asked = Recipe(input_format="ndjson", key_column="k", time_column="t")
    tally = read(asked, text.format(*objects).encode().split(b"\n"))
    assert (tally.counts, tally.rejected) == ({("/a", MINUTE): 1, ("/b", MINUTE): 1}, [])
    assert not is_array(text.format(*objects).encode())
