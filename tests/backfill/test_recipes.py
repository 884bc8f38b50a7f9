"""What can be told to be wrong with a recipe before anything is read; conditions."""

import shlex
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from countersink.backfill import formats
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Recipe
from countersink.cli.app import app
from countersink.cli.commands.backfill import command
from countersink.cli.commands.log_options import read
from countersink.logs import template
from countersink.logs.template import Condition
from tests.backfill.format_helpers import where

DAY = date(2015, 5, 17)


NUMBERS: Any = {"input_format": "csv", "key_column": "k", "time_column": "t", "amount_column": "n"}


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (Recipe(key="{nope}"), "no field 'nope'; they have: host, ident"),
        (Recipe(where=(where("nope", "=", "1"),)), "no field 'nope'"),
        (Recipe(input_format="common", key="{agent}"), "no field 'agent'"),
        (Recipe(key="{path"), "has no partner"),
        (Recipe(key="{{status}}"), "names no field"),
        (Recipe(input_format="haproxy"), "times without a zone: give the server"),
        (Recipe(key_column="path"), "--key-column is for csv, ndjson and JSON logs"),
        (Recipe(time_zone="UTC"), "leave --time-zone out"),
        (Recipe(time_format="unix"), "in other formats the time format is fixed"),
        (Recipe(delimiter=";"), "--delimiter is for CSV"),
        (Recipe(input_format="csv", columns=("a", "a")), "names a column twice"),
        (Recipe(input_format="csv", comment='"'), "the beginning of comment lines"),
        (Recipe(input_format="w3c", envelope="syslog"), "not for csv or w3c"),
        (Recipe(start=date(2015, 5, 18), end=DAY), "--from 2015-05-18 is after --to 2015-05-17"),
        (
            Recipe(where=(where("status", "=", "200"), where("status", "=", "304"))),
            "no line has status '200' and '304'",
        ),
        (Recipe(input_format="csv", key_column="a"), "csv needs the column of times"),
        (Recipe(input_format="csv", time_column="t"), "csv needs the columns of keys"),
        (Recipe(input_format="csv", key="{a}", key_column="a", time_column="t"), "give one"),
        (Recipe(input_format="csv", key="{a}", time_column="t", delimiter='"'), "one character"),
        (Recipe(input_format="csv", key="{a}", time_column="t", delimiter="::"), "one character"),
        (Recipe(**NUMBERS | {"amount_column": ""}, thousands="."), "need --amount-column"),
        (Recipe(**NUMBERS, thousands=".", decimal_point="."), "two different characters"),
        (Recipe(**NUMBERS, decimal_point="0"), "no digits"),
        (Recipe(input_format="ndjson", key="{a..b}", time_column="t"), "without a name"),
        (Recipe(input_format="nginx-json", time_zone="Nope"), "is no time zone"),
        (Recipe(input_format="nginx-json", time_format="%H"), "has no year"),
        (Recipe(input_format="xml"), "no input format 'xml'"),
    ],
)
def test_recipes_that_cannot_be_say_what_to_do(recipe: Recipe, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        formats.check(recipe)


TEXT = '{"a": 1, "t": "ä, ö and ü"}\n'
MARKS = {
    "UTF-16LE": b"\xff\xfe",
    "UTF-16BE": b"\xfe\xff",
    "UTF-32LE": b"\xff\xfe\0\0",
    "UTF-32BE": b"\0\0\xfe\xff",
}


@pytest.mark.parametrize("name", MARKS)
@pytest.mark.parametrize("text", ["a,t\n", "дата;ключ\n", TEXT, TEXT * 2000])
def test_a_source_of_wide_characters_says_how_to_convert_it(name: str, text: str) -> None:
    head = MARKS[name] + text.encode(name)
    named = name[:6]
    columns: Any = {"key_column": "a", "time_column": "t"}
    for form in "combined", "common", "nginx-json", "csv", "ndjson":
        recipe = Recipe(input_format=form, **(columns if form in ("csv", "ndjson") else {}))
        with pytest.raises(BackfillError, match=f"it is {named}") as caught:
            formats.make_reader(recipe, head[: 64 * 1024], None)
        assert f"iconv -f {named} -t UTF-8 FILE | countersink backfill -" in str(caught.value)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"a\0",
        bytes(100) + b"127.0.0.1 - - [",
        b"a\0b\0c\0 but then text of single bytes goes on for a while",
        bytes(64 * 1024),
        b"\0a" * 4 + b"text" * 40,
        b"\xff\xfe nonsense\n",
    ],
)
def test_nuls_or_two_odd_bytes_alone_do_not_make_wide_characters(head: bytes) -> None:
    formats.make_reader(Recipe(), head, None)


@pytest.mark.parametrize(
    ("condition", "holds", "fails"),
    [
        (where("f", "=", "a"), ["a"], ["A", "", "ab"]),
        (where("f", "!=", "a"), ["A", ""], ["a"]),
        (where("f", "~", "*.css"), [".css", "a\n.css"], [".CSS", "a.css?", ""]),
        (where("f", "!~", "*.css"), [".CSS"], ["x.css"]),
        (where("f", "~", "[!a]?"), ["bx"], ["ax", "b"]),
        (where("f", "=", "*"), ["*"], ["a"]),
    ],
)
def test_conditions(condition: Condition, holds: list[str], fails: list[str]) -> None:
    test = template.condition_test(condition)
    assert [test(text) for text in holds] == [True] * len(holds)
    assert [test(text) for text in fails] == [False] * len(fails)


def test_a_pattern_of_many_stars_costs_no_more_than_its_text() -> None:
    # One that backtracks would not come back before the test's time limit.
    assert not template.shell_pattern("*a" * 30 + "b")("a" * 10_000)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe(), "(none)"),
        (Recipe(where=(where("status", "=", "200"),)), "--where status=200"),
        (
            Recipe(where=(where("path", "~", "/a b/*"), where("agent", "!~", "*'*"))),
            """--where 'path~/a b/*' --where 'agent!~*'"'"'*'""",
        ),
        (
            Recipe(
                input_format="csv",
                key_column="a",
                time_column="when",
                more_time_columns=("then",),
                amount_column="n",
                columns=("a", "n", "when", "then"),
                comment="//",
                delimiter="\t",
                time_format="%d.%m.%Y",
                time_zone="Europe/Berlin",
            ),
            (
                "--input-format csv --key-column a --time-column when --time-column then"
                " --amount-column n --columns a,n,when,then --comment //"
                " --delimiter '\t' --time-format %d.%m.%Y --time-zone Europe/Berlin"
            ),
        ),
        (
            Recipe(
                key="{host}{path}",
                exclude_keys=("*.css", "x"),
                strip_query=True,
                start=date(2026, 5, 1),
                end=date(2026, 5, 31),
            ),
            (
                "--key '{host}{path}' --exclude-key-glob '*.css' --exclude-key-glob x --strip-query"
                " --from 2026-05-01 --to 2026-05-31"
            ),
        ),
    ],
)
def test_a_recipe_is_described_by_the_options_that_make_it(recipe: Recipe, words: str) -> None:
    assert recipe.described() == words
    options, arguments = recipe.described(), ["SOURCE", "--counter", "c"]
    given = [] if options == "(none)" else shlex.split(options)
    # Under the app, as always: what a command's help is called is remembered with the command.
    with (
        app.make_context("countersink", ["backfill"]) as root,
        command.make_context("backfill", [*arguments, *given], parent=root) as context,
    ):
        parameters = {
            name: value
            for name, value in context.params.items()
            if name not in ("allow_rejects", "format", "redis_url", "mysql_url")
        }
        found = read(parameters).recipe
        if found.input_format == "auto":  # which is told by the source, combined mostly
            found = replace(found, input_format="combined")
        assert found == recipe
