"""Recipes: what can be told to be wrong with one before any line is read."""

from typing import Final

from countersink.backfill import conditions, template
from countersink.backfill.formats import json_paths
from countersink.backfill.formats.access_fields import FIELDS
from countersink.backfill.recipe import INPUT_FORMATS, Recipe
from countersink.backfill.times import Clock

_NO_DELIMITERS: Final = '"\r\n\0'


def check(recipe: Recipe) -> None:
    """Find what is wrong with ``recipe``, as far as that can be told without the source.

    Raises:
        ValueError: the message says what to do.
    """
    if recipe.input_format not in INPUT_FORMATS:
        raise ValueError(
            f"there is no input format {recipe.input_format!r}: use {', '.join(INPUT_FORMATS)}"
        )
    if recipe.key and recipe.key_column:
        raise ValueError("--key and --key-column both say what the key is: give one")
    if recipe.start is not None and recipe.end is not None and recipe.start > recipe.end:
        raise ValueError(f"--from {recipe.start} is after --to {recipe.end}")
    parts = template.parse(recipe.key)
    conditions.check(recipe.where)
    for glob in recipe.exclude_keys:
        conditions.pattern(glob)
    if recipe.delimiter != "," and recipe.input_format != "csv":
        raise ValueError("--delimiter is for CSV")
    names = [*template.fields(parts), *(each.field for each in recipe.where)]
    if recipe.input_format in FIELDS:
        _check_access_log(recipe, names)
        return
    Clock(recipe.time_format, recipe.time_zone)
    if recipe.input_format == "nginx-json":
        return
    if not recipe.time_column:
        raise ValueError(f"{recipe.input_format} has times where you say: give --time-column")
    if not (recipe.key or recipe.key_column):
        raise ValueError(
            f"{recipe.input_format} has keys where you say: give --key-column, or --key with fields"
        )
    if recipe.input_format == "csv":
        if len(recipe.delimiter) != 1 or recipe.delimiter in _NO_DELIMITERS:
            raise ValueError(f"--delimiter is one character, not {recipe.delimiter!r}")
    else:
        for name in (*names, recipe.key_column, recipe.time_column, recipe.amount_column):
            if name:
                json_paths.path(name)


def _check_access_log(recipe: Recipe, names: list[str]) -> None:
    for option, given in (
        ("--key-column", recipe.key_column),
        ("--time-column", recipe.time_column),
        ("--amount-column", recipe.amount_column),
    ):
        if given:
            raise ValueError(f"{option} is for csv, ndjson and nginx-json: access logs say --key")
    if recipe.time_format != "auto" or recipe.time_zone:
        raise ValueError(
            f"{recipe.input_format} logs have times of one format, with their zone: leave"
            " --time-format and --time-zone out"
        )
    known = FIELDS[recipe.input_format]
    for name in names:
        if name not in known:
            raise ValueError(
                f"{recipe.input_format} logs have no field {name!r}; they have: {', '.join(known)}"
            )
