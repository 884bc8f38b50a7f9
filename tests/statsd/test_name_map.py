"""Which counter and key a name becomes."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import check_counter, cut_key
from countersink.statsd.errors import MapError
from countersink.statsd.options import Rules, counter_name, load, read
from tests.support.examples import examples

MAP = r"""
[[rule]]
match = "web.*.hits"
counter = "page_views"
key = "$1"

[[rule]]
regex = 'api\.([a-z]+)\.v(\d+)'
counter = "api_$1"
key = "{tag:region} v$2 of {name} costs $$1 in {{}}"

[[rule]]
match = "debug.**"
drop = true

[[rule]]
match = "job-*.**"
counter = "jobs"
key = "${1}0/$2"

[[rule]]
match = "shop.*"
counter = "orders"
dimensions = { what = "$1", country = "{tag:country}", fixed = "x" }

[[rule]]
match = "all.**"
counter = "all"
"""


@pytest.fixture
def rules() -> Rules:
    return read(tomllib.loads(MAP))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("web.home.hits", ("page_views", "home")),
        ("web.home.page.hits", ("web.home.page.hits", "")),  # * stays within a segment
        ("web..hits", ("web..hits", "")),
        ("xweb.home.hits", ("xweb.home.hits", "")),
        ("web.home.hits.x", ("web.home.hits.x", "")),
        ("api.users.v2", ("api_users", "eu v2 of api.users.v2 costs $1 in {}")),
        ("api.users.v2\n", ("api.users.v2_", "")),  # the whole name, not up to a newline
        ("debug.x.y", None),
        ("debug", ("debug", "")),
        ("job-mail.a.b", ("jobs", "mail0/a.b")),
        ("all.a\nb", ("all", "")),
        (
            "shop.order",
            ("orders", (("country", ""), ("fixed", "x"), ("what", "order"))),
        ),
    ],
)
def test_the_first_rule_that_matches_decides(
    rules: Rules, name: str, target: tuple[str, RowKey] | None
) -> None:
    assert rules.target(name, {"region": "eu"}) == target


def test_a_missing_tag_is_empty(rules: Rules) -> None:
    assert rules.target("api.x.v1", {}) == ("api_x", " v1 of api.x.v1 costs $1 in {}")


def test_a_counter_that_comes_out_empty_is_the_name() -> None:
    rules = read({"rule": [{"match": "a.*", "counter": "{tag:app}"}]})
    assert rules.target("a.b", {"app": "shop"}) == ("shop", "")
    assert rules.target("a.b", {}) == ("a.b", "")


def test_a_group_that_took_no_part_is_empty() -> None:
    rules = read({"rule": [{"regex": "a(b)?c", "counter": "x", "key": "[$1]"}]})
    assert rules.target("ac", {}) == ("x", "[]")


def test_tags_are_the_dimensions_that_the_map_names(rules: Rules) -> None:
    found = rules.target("shop.order", {"country": "DE", "other": "y"})
    assert found == ("orders", (("country", "DE"), ("fixed", "x"), ("what", "order")))
    long = rules.target("shop.order", {"country": "é" * 200})
    assert long is not None
    assert not isinstance(long[1], str)
    assert dict(long[1])["country"] == cut_key("é" * 200)


def test_names_without_a_rule_can_be_dropped() -> None:
    rules = read({"unmatched": "drop", "rule": [{"match": "a", "counter": "b"}]})
    assert rules.target("a", {}) == ("b", "")
    assert rules.target("b", {}) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[rule]]\ncounter = 'x'", "rule 1: either match or regex is required"),
        ("[[rule]]\nmatch = 'a'", "either a counter or drop"),
        ("[[rule]]\nmatch = 'a'\ndrop = true\nkey = 'x'", "excludes a key"),
        (
            "[[rule]]\nmatch = 'a'\ncounter = 'x'\nkey = 'y'\ndimensions = { a = 'x' }",
            "key and dimensions exclude each other",
        ),
        (
            "[[rule]]\nmatch = 'a'\ncounter = 'x'\ndimensions = { a = 1 }",
            "Expected `str`, got `int` - at `[$].dimensions",
        ),
        ("[[rule]]\nmatch = 'a'\ncounter = 'x'\ndimensions = { day = 'x' }", "--by"),
        ("[[rule]]\nmatch = 'a'\ncounter = 'x'\ndimensions = { a = '$1' }", r"no \$1"),
        ("[[rule]]\nmatch = 'a'\ndrop = 'yes'", "Expected `bool`, got `str` - at `[$].drop`"),
        ("[[rule]]\nmatch = 'a'\ncounter = ''", "counter is empty"),
        ("[[rule]]\nmatch = ''\ncounter = 'x'", "match is empty"),
        ("[[rule]]\nmatch = 'a'\ncounter = 'x'\nkey = '$1'", r"no \$1: the pattern captures 0"),
        ("[[rule]]\nmatch = '*'\ncounter = 'x'\nkey = '${1'", "no placeholder"),
        ("[[rule]]\nmatch = '**.**'\ncounter = 'x'", "at most one"),
        ("[[rule]]\nregex = '('\ncounter = 'x'", "regex '\\(' is no regular expression"),
        ("[[rule]]\nmatch = 'a'\ncounter = 'x'\nname = 'y'", "rule 1: .* unknown field `name`"),
        ("[[rules]]\nmatch = 'a'", "the file: .* unknown field `rules`"),
        ("unmatched = 'ignore'", "'ignore' - at `[$].unmatched`"),
        ("rule = 3", "the file: Expected `array`, got `int`"),
        ("[[rule]", "line 1"),
    ],
)
def test_a_map_that_is_wrong_says_where(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "map.toml"
    file.write_text(text)
    with pytest.raises(MapError, match=why) as raised:
        load(file)
    assert str(file) in str(raised.value)


def test_a_map_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MapError, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "latin").write_bytes(b"# \xe4\n")
    with pytest.raises(MapError, match="not UTF-8"):
        load(tmp_path / "latin")


@examples(few=25, many=100)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200))
def test_any_name_is_a_valid_counter(name: str) -> None:
    check_counter(counter_name(name))


def test_long_names_stay_apart() -> None:
    names = {counter_name("x" * 70 + end) for end in "ab"} | {counter_name("x" * 64)}
    assert len(names) == 3
    assert {len(name) for name in names} == {64}
