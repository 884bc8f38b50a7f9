"""Checks the options that say how lines are read (``--input-format``, ``--key``, ``--time-column``,
``--delimiter`` ...), with their error messages, and chooses the reader of a source.

A line comes to a key, a minute and an amount, is left out by the recipe, or is rejected with a
reason. Blank lines come to nothing.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from itertools import accumulate
from typing import Final, Protocol, cast

from countersink.backfill.errors import BackfillError
from countersink.backfill.formats.csv_json import CsvRecords, json_lines, times_of
from countersink.backfill.input.content import HEAD_BYTES
from countersink.backfill.input.spans import Quoting, last_end, split
from countersink.backfill.options import INPUT_FORMATS, InputFormat, Recipe
from countersink.producers.access_log.file import BOM, wide_text
from countersink.producers.access_log.formats import json_objects
from countersink.producers.access_log.formats.access_log import AccessLog
from countersink.producers.access_log.formats.detection import (
    ENVELOPES,
    detect,
    untold,
    without_envelope,
)
from countersink.producers.access_log.formats.json_objects import JSON_FORMATS
from countersink.producers.access_log.formats.line_format import LineFormat
from countersink.producers.access_log.formats.log_format import format_from_text
from countersink.producers.access_log.formats.named import PATTERNED, named_format
from countersink.producers.access_log.formats.reader import (
    BLANK,
    Keys,
    LineReader,
    Opened,
    RecordTally,
    Rejected,
    Window,
)
from countersink.producers.access_log.formats.records import is_array
from countersink.producers.access_log.formats.w3c_log import W3cLog
from countersink.producers.access_log.times import LIKELY, UNITS, Clock
from countersink.producers.errors import UnknownFormat

__all__ = ["Reader", "RecordTally", "Rejected", "check", "check_head", "make_reader", "recipe_for"]

_NO_DELIMITERS: Final = '"\r\n\0'
_FIRST_LIKELY: Final = LIKELY[0] // 60


class Reader(LineReader, Protocol):
    """Reads the records of one source."""

    @property
    def quoted(self) -> Quoting | None:
        """How records are told apart that may hold newlines; None: each is a line."""


def make_reader(
    recipe: Recipe,
    head: bytes,
    minutes: tuple[int, int] | None,
    begins: Callable[[date], int] | None = None,
    counter: str = "",
) -> Reader:
    """What reads a source.

    Args:
        recipe: how.
        head: how its uncompressed content begins: 64 KiB of it, or all.
        minutes: half-open range of Unix minutes; lines outside are left out. None: all are in.
        begins: the first minute of a day of the counter, for times that are dates alone; None: such
            a date begins where the recipe's time zone is.
        counter: whose lines count, where the recipe has a column of counters.

    Raises:
        ValueError: the recipe cannot be: see :func:`check`.
        BackfillError: the source cannot be read so: UTF-16, or a CSV without a named column.
    """
    check(recipe)
    check_encoding(head)
    keys = keys_of(recipe, minutes, counter)
    if recipe.input_format == "csv":
        return CsvRecords(recipe, head, keys, begins)
    reader: Reader
    if recipe.input_format in ("ndjson", *JSON_FORMATS):
        reader = json_lines(recipe, keys, begins)
    elif recipe.input_format == "w3c":
        reader = w3c = W3cLog(keys, recipe.time_zone)
        if reason := w3c.begin(head):
            raise BackfillError(reason)
    else:
        reader = AccessLog(keys, line_format(recipe))
    return Opened(reader, recipe.envelope) if recipe.envelope else reader


def check_head(recipe: Recipe, reader: Reader, head: bytes) -> None:
    """Find out from how a source begins whether the recipe reads its times and amounts as they are
    meant; its later lines are rejected where it does not.

    Args:
        recipe: how.
        reader: what :func:`make_reader` has made for it.
        head: how the content begins: 64 KiB of it, or all.

    Raises:
        BackfillError: an option has to say more, or the content has no records in lines.
    """
    if recipe.input_format not in ("csv", "ndjson", *JSON_FORMATS):
        return
    head = head.removeprefix(BOM)
    lines = split(head[: last_end(head, quoted=reader.quoted)], quoted=reader.quoted)
    numbers = list(accumulate((line.count(b"\n") + 1 for line in lines[:-1]), initial=1))
    tally = RecordTally()
    if lines:
        reader.count(Window(numbers, lines, []), tally)
    for each in tally.rejected:
        if each.misread:
            raise BackfillError(f"line {each.line}: {each.reason}")
    if recipe.input_format == "ndjson" and is_array(head):
        raise BackfillError(
            "it is a JSON array with several objects on a line, or objects on several lines:"
            " `jq -c '.[]' FILE | countersink backfill - …` counts it"
        )
    if recipe.time_format in UNITS and tally.amounts and max(tally.amounts) < _FIRST_LIKELY:
        raise BackfillError(
            f"all times of its first lines are before 1990 in {recipe.time_format}: --time-format"
            f" is one of auto, {', '.join(UNITS)}, or a pattern of strptime"
        )


def keys_of(recipe: Recipe, minutes: tuple[int, int] | None = None, counter: str = "") -> Keys:
    """Which keys lines have by a recipe, and which lines are left out.

    Raises:
        ValueError: something cannot be; the message says what to do.
    """
    return Keys(
        recipe.key,
        recipe.where,
        recipe.exclude_keys,
        strip_query=recipe.strip_query,
        dimensions=recipe.dimensions,
        visitor=recipe.visitor,
        column=recipe.key_column,
        counter_column=recipe.counter_column,
        counter=counter,
        minutes=minutes,
    )


def check(recipe: Recipe) -> None:
    """Find what is wrong with ``recipe``, as far as that can be told without the source.

    Raises:
        ValueError: the message says what to do.
    """
    if recipe.input_format not in (*INPUT_FORMATS, "log-format"):
        raise ValueError(
            f"there is no input format {recipe.input_format!r}: use {', '.join(INPUT_FORMATS)}"
        )
    if recipe.key and recipe.key_column:
        raise ValueError("--key and --key-column both say what the key is: give one")
    marks = recipe.decimal_point + recipe.thousands
    if marks and not recipe.amount_column:
        raise ValueError("--decimal-point and --thousands are of amounts: give --amount-column")
    if len(set(marks)) != bool(recipe.decimal_point) + bool(recipe.thousands) or re.search(
        r"[\w+-]", marks
    ):
        raise ValueError("--decimal-point and --thousands are two different characters, no digits")
    if recipe.visitor and recipe.amount_column:
        raise ValueError("--visitor makes each line one sighting: leave out --amount-column")
    if recipe.start is not None and recipe.end is not None and recipe.start > recipe.end:
        raise ValueError(f"--from {recipe.start} is after --to {recipe.end}")
    names = keys_of(recipe).fields
    if recipe.envelope and (
        recipe.envelope not in ENVELOPES or recipe.input_format in ("csv", "w3c")
    ):
        raise ValueError(f"--envelope is {', '.join(ENVELOPES)}, and not for csv or w3c")
    _check_csv_only(recipe)
    if recipe.input_format in ("auto", "w3c"):
        _check_log(recipe)
        if recipe.time_zone:
            Clock(time_zone=recipe.time_zone)
        return
    if recipe.input_format in (*PATTERNED, "log-format"):
        _check_log(recipe)
        form = line_format(recipe)
        for name in names:
            form.field(name)
        return
    Clock(recipe.time_format, recipe.time_zone, begins=lambda day: 0)
    if recipe.input_format in JSON_FORMATS:
        for name in names:
            json_objects.path(name)
        return
    if not recipe.time_column:
        raise ValueError(f"{recipe.input_format} has times where you say: give --time-column")
    if not (recipe.key or recipe.key_column or recipe.dimensions):
        raise ValueError(
            f"{recipe.input_format} has keys where you say: give --key-column, --key with fields,"
            " or --dimension"
        )
    if recipe.input_format == "csv":
        if len(recipe.delimiter) != 1 or recipe.delimiter in _NO_DELIMITERS:
            raise ValueError(f"--delimiter is one character, not {recipe.delimiter!r}")
    else:
        columns = (recipe.key_column, recipe.counter_column, recipe.amount_column)
        for name in filter(None, (*names, *columns, *times_of(recipe))):
            json_objects.path(name)


def _check_csv_only(recipe: Recipe) -> None:
    if recipe.counter_column and recipe.input_format not in ("csv", "ndjson"):
        raise ValueError("--counter-column is for csv and ndjson")
    if recipe.input_format != "csv":
        csv_only = {"delimiter": ",", "columns": (), "comment": ""}
        if given := _given(recipe, csv_only):
            raise ValueError(f"{given} is for CSV")
    if len(set(recipe.columns)) != len(recipe.columns):
        raise ValueError("--columns names a column twice")
    if recipe.comment and (recipe.comment.strip() != recipe.comment or '"' in recipe.comment):
        raise ValueError("--comment is how a line of comment begins, such as #, without quotes")


def line_format(recipe: Recipe) -> LineFormat:
    """What matches the lines of a recipe whose format is a pattern.

    Raises:
        ValueError: it cannot be; the message says what to do.
    """
    if recipe.input_format == "log-format":
        return format_from_text(recipe.log_format, recipe.time_zone)
    return named_format(recipe.input_format, recipe.time_zone)


def _check_log(recipe: Recipe) -> None:
    if given := _given(recipe, dict.fromkeys(("key_column", "time_column", "amount_column"), "")):
        raise ValueError(
            f"{given} is for csv, ndjson and JSON logs (--input-format): access logs say --key"
        )
    if recipe.time_format != "auto":
        raise ValueError(
            f"{recipe.input_format} logs have times of one format: leave --time-format out"
        )


def _given(recipe: Recipe, defaults: Mapping[str, object]) -> str:
    """The first of some options that is not as by default; '': none."""
    names = (name for name, default in defaults.items() if getattr(recipe, name) != default)
    return next((f"--{name.replace('_', '-')}" for name in names), "")


def recipe_for(recipe: Recipe, head: bytes) -> Recipe:
    """``recipe`` with the format that a source is of.

    Args:
        recipe: as asked.
        head: how the source begins, behind the NULs of a truncated log: 64 KiB of it, or all.

    Raises:
        BackfillError: it cannot be told, or the recipe does not suit it.
    """
    if recipe.input_format != "auto":
        return recipe
    check_encoding(head)
    lines = head.split(b"\n")
    if len(head) >= HEAD_BYTES and len(lines) > 1:
        del lines[-1]  # cut off
    if recipe.envelope:
        envelope = recipe.envelope
        lines = [without_envelope(line.strip(BLANK), envelope) or b"" for line in lines]
    lines = [line.strip(BLANK) for line in lines]
    try:
        detected = detect(lines)
    except UnknownFormat as error:
        raise BackfillError(str(error)) from None
    if detected is None:
        if reason := untold(lines):
            raise BackfillError(reason)
        return replace(recipe, input_format="combined")
    recipe = replace(
        recipe,
        input_format=cast(InputFormat, detected.input_format),
        envelope=recipe.envelope or detected.envelope,
    )
    try:
        check(recipe)
    except ValueError as error:
        raise BackfillError(str(error)) from None
    return recipe


def check_encoding(head: bytes) -> None:
    """Find a source that is text, but not as bytes of ASCII.

    Raises:
        BackfillError: it is UTF-16 or UTF-32.
    """
    if reason := wide_text(head, "it", "backfill"):
        raise BackfillError(reason)
