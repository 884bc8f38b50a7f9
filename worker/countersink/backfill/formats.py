"""Checks the options that say how lines are read (``--input-format``, ``--key``, ``--time-column``,
``--delimiter`` ...), with their error messages, and chooses the reader of a source.

A line comes to a key, a minute and an amount, is left out by the recipe, or is rejected with a
reason. Blank lines come to nothing.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Final, Protocol

from countersink.backfill.csv_records import CsvRecords, clock_of, times_of
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import INPUT_FORMATS, Recipe
from countersink.backfill.spans import Quoting, SpanPiece, last_end, window_of
from countersink.logs.errors import UnknownFormat
from countersink.logs.file import BOM, wide_text
from countersink.logs.formats import line_reader
from countersink.logs.formats.detection import detect, undetected_reason
from countersink.logs.formats.json_objects import JSON_FORMATS
from countersink.logs.formats.reader import Keys, LineReader, RecordTally, Rejected
from countersink.logs.formats.records import AmountFormat, JsonLines, is_array
from countersink.logs.formats.w3c import W3cLog
from countersink.logs.times import LIKELY, UNITS, no_day

__all__ = ["Reader", "RecordTally", "Rejected", "check", "check_head", "make_reader", "recipe_for"]

_NO_DELIMITERS: Final = '"\r\n\0'
_FIRST_LIKELY: Final = LIKELY[0] // 60
_NONE: Final = Recipe()
_RECORDS: Final = ("csv", "ndjson", *JSON_FORMATS)
_OPTIONS: Final = (
    (
        ("key_column", "time_column", "amount_column"),
        _RECORDS,
        "is for csv, ndjson and JSON logs (--input-format): access logs say --key",
    ),
    (
        ("time_format",),
        _RECORDS,
        "is for csv, ndjson and JSON logs: leave --time-format out, others have one format",
    ),
    (("counter_column",), ("csv", "ndjson"), "is for csv and ndjson"),
    (("delimiter", "columns", "comment"), ("csv",), "is for CSV"),
    (("envelope",), {*INPUT_FORMATS, "log-format"} - {"csv", "w3c"}, "is not for csv or w3c"),
)
"""Options, the formats that have them, and what to say of others."""


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
        recipe: how; :func:`check` has let it pass.
        head: how its uncompressed content begins: 64 KiB of it, or all.
        minutes: half-open range of Unix minutes; lines outside are left out. None: all are in.
        begins: the first minute of a day of the counter, for times that are dates alone; None: such
            a date begins where the recipe's time zone is.
        counter: whose lines count, where the recipe has a column of counters.

    Raises:
        BackfillError: the source cannot be read so: UTF-16, or a CSV without a named column.
    """
    check_encoding(head)
    keys = keys_of(recipe, minutes, counter)
    if recipe.input_format == "csv":
        return CsvRecords(recipe, head, keys, begins)
    reader = _line_reader(recipe, keys, begins)
    if isinstance(reader, W3cLog) and (reason := reader.begin(head)):
        raise BackfillError(reason)
    return reader


def _line_reader(recipe: Recipe, keys: Keys, begins: Callable[[date], int] | None) -> Reader:
    """What reads a source that is no CSV.

    Raises:
        ValueError: the recipe cannot be: see :func:`check`.
    """
    times = times_of(recipe)
    json_lines = partial(
        JsonLines,
        clock=clock_of(recipe, begins if times else no_day),
        times=times,
        amount_column=recipe.amount_column,
        amounts=AmountFormat(recipe.decimal_point, recipe.thousands),
    )
    return line_reader(
        recipe.input_format,
        keys,
        json_lines,
        log_format=recipe.log_format,
        envelope=recipe.envelope,
        time_zone=recipe.time_zone,
    )


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
    if recipe.input_format not in _RECORDS:
        return
    stop = last_end(head, quoted=reader.quoted)
    tally = RecordTally()
    piece = SpanPiece(1, head, stop, head.count(b"\n", 0, stop))
    reader.count(window_of(piece, reader.quoted), tally)
    for each in tally.rejected:
        if each.misread:
            raise BackfillError(f"line {each.line}: {each.reason}")
    if recipe.input_format == "ndjson" and is_array(head.removeprefix(BOM)):
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
    keys = keys_of(recipe)
    for names, forms, why in _OPTIONS:
        for name in names:
            if recipe.input_format not in forms and getattr(recipe, name) != getattr(_NONE, name):
                raise ValueError(f"--{name.replace('_', '-')} {why}")
    if len(set(recipe.columns)) != len(recipe.columns):
        raise ValueError("--columns names a column twice")
    if recipe.comment and (recipe.comment.strip() != recipe.comment or '"' in recipe.comment):
        raise ValueError("--comment is how a line of comment begins, such as #, without quotes")
    if len(recipe.delimiter) != 1 or recipe.delimiter in _NO_DELIMITERS:
        raise ValueError(f"--delimiter is one character, not {recipe.delimiter!r}")
    if recipe.input_format in ("csv", "ndjson"):
        if not recipe.time_column:
            raise ValueError(f"{recipe.input_format} has times where you say: give --time-column")
        if not (recipe.key or recipe.key_column or recipe.dimensions):
            raise ValueError(
                f"{recipe.input_format} has keys where you say: give --key-column, --key with"
                " fields, or --dimension"
            )
    if recipe.input_format in ("auto", "csv"):
        clock_of(recipe, no_day)
    else:
        _line_reader(recipe, keys, no_day)


def recipe_for(recipe: Recipe, head: bytes) -> Recipe:
    """``recipe`` with the format that a source is of.

    Args:
        recipe: as asked.
        head: how the source begins: 64 KiB of it, or all.

    Raises:
        BackfillError: it cannot be told, or the recipe does not suit it.
    """
    if recipe.input_format != "auto":
        return recipe
    check_encoding(head)
    lines = head.split(b"\n")
    try:
        detected = detect(lines)
        if detected is None:
            if reason := undetected_reason(lines):
                raise BackfillError(reason)
            return replace(recipe, input_format="combined")
        recipe = replace(
            recipe,
            input_format=detected.input_format,
            envelope=recipe.envelope or detected.envelope,
        )
        check(recipe)
    except (UnknownFormat, ValueError) as error:
        raise BackfillError(str(error)) from None
    return recipe


def check_encoding(head: bytes) -> None:
    """Find a source that is text, but not as bytes of ASCII.

    Raises:
        BackfillError: it is UTF-16 or UTF-32.
    """
    if reason := wide_text(head, "it", "backfill"):
        raise BackfillError(reason)
