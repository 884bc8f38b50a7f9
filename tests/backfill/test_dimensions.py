"""Lines whose fields are the dimensions of a counter: what readers make of them."""

import json
import random
from collections import Counter
from typing import Any

import pytest

from countersink.backfill import formats
from countersink.backfill.options import Recipe
from countersink.runtime.limits import cut_key
from tests.backfill.format_helpers import read, reasons, where
from tests.backfill.helpers import DAY, line

PAGE = (("page", "path"),)
BOTH = (("status", "status"), ("page", "path"))
CSV: dict[str, Any] = {"input_format": "csv", "time_column": "at"}


def sums(recipe: Recipe, lines: Any) -> dict[Any, int]:
    tally = read(recipe, lines)
    assert tally.rejected == []
    found: Counter[Any] = Counter()
    for (key, _), amount in tally.counts.items():
        found[key] += amount
    return dict(found)


def test_fields_of_access_logs_are_dimensions_whatever_the_block() -> None:
    rng = random.Random(3)
    lines, expected = [], Counter[Any]()
    for number in range(3_000):
        page, status = rng.choice(["/a", "/b?x", "/c\\x22"]), rng.choice([200, 404])
        lines.append(line(page, minutes=number % 2_000, status=status)[:-1])
        path = page.partition("?")[0].replace("\\x22", '"')
        expected[("page", path), ("status", str(status))] += 1
    assert sums(Recipe(dimensions=BOTH), lines) == dict(expected)
    of_page = sums(Recipe(dimensions=PAGE), lines)
    assert sum(of_page.values()) == 3_000
    assert of_page[("page", "/a"),] == sum(n for pairs, n in expected.items() if "/a" in pairs[0])


def test_lines_out_of_the_ordinary_count_and_conditions_hold() -> None:
    lines = [line("/a"), b"", b"nonsense", line("/b", status=500), line("/a").rstrip() + b"  "]
    tally = read(Recipe(dimensions=BOTH, where=(where("status", "=", "200"),)), lines)
    assert [key for key, _ in tally.counts] == [(("page", "/a"), ("status", "200"))]
    assert (tally.counted, tally.filtered) == (2, 1)
    assert list(reasons(tally)) == [4]


def test_strip_query_cuts_each_value() -> None:
    recipe = Recipe(dimensions=(("page", "target"), ("from_page", "referer")), strip_query=True)
    raw = line("/a?x=1").replace(b'"-"', b'"http://b/?y"')
    assert sums(recipe, [raw]) == {(("from_page", "http://b/"), ("page", "/a")): 1}


def test_columns_of_csv_are_dimensions() -> None:
    recipe = Recipe(dimensions=(("page", "url"), ("country", "land")), amount_column="n", **CSV)
    lines = [
        "at,url,land,n",
        f"{DAY}T12:00:00Z,/a,DE,3",
        f"{DAY}T12:00:00Z,/a,DE,4",
        f'{DAY}T12:00:00Z,"/b,c",,-1',
        f"{DAY}T12:00:00Z,{'x' * 300},DE,1",
    ]
    assert sums(recipe, lines) == {
        (("country", "DE"), ("page", "/a")): 7,
        (("country", ""), ("page", "/b,c")): -1,
        (("country", "DE"), ("page", cut_key("x" * 300))): 1,
    }


def test_a_path_that_is_missing_in_json_is_the_empty_value() -> None:
    recipe = Recipe(
        input_format="ndjson",
        time_column="at",
        dimensions=(("page", "request.path"), ("country", "geo.country")),
    )
    at = f"{DAY}T12:00:00Z"
    lines = [
        {"at": at, "request": {"path": "/a"}, "geo": {"country": "DE"}},
        {"at": at, "request": {"path": "/a"}},
        {"at": at, "request": {"path": 7}, "geo": {"country": None}},
    ]
    assert sums(recipe, [json.dumps(each) for each in lines]) == {
        (("country", "DE"), ("page", "/a")): 1,
        (("country", ""), ("page", "/a")): 1,
        (("country", ""), ("page", "7")): 1,
    }


BAD: list[tuple[dict[str, Any], str]] = [
    ({"dimensions": PAGE, "key": "{path}"}, "takes the place of a key"),
    ({"dimensions": PAGE, "key_column": "a", **CSV}, "takes the place of a key"),
    ({"dimensions": (("page", "nothing"),)}, "nothing"),
    ({"dimensions": (("page", ""),)}, "names no field"),
    ({"dimensions": (*PAGE, ("page", "host"))}, "given twice"),
    ({"dimensions": (("Page", "path"),)}, "1 to 32 characters"),
    ({"dimensions": (("day", "path"),)}, "--by"),
    ({"dimensions": tuple((f"d{n}", "path") for n in range(9))}, "at most 8 dimensions"),
]


@pytest.mark.parametrize(("given", "said"), BAD)
def test_a_recipe_that_cannot_be_says_why(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        formats.check(Recipe(**given))
