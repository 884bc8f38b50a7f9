"""Formats of a backfill's sources: ``check`` validates the options for reading lines
(``--input-format``, ``--key``, ``--time-column``, ``--delimiter`` ...), ``recipe_for`` detects the
format of a source, and ``make_reader`` makes its reader.

A reader turns a line into key, minute and amount, or leaves the line out if the options say so, or
rejects it with a reason. Blank lines are ignored.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import PurePath
from typing import Final, Protocol

from countersink.backfill.csv_records import CsvRecords
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import INPUT_FORMATS, Recipe
from countersink.backfill.spans import Quoting, SpanPiece, block_of, last_end
from countersink.logs.errors import Malformed, UnknownFormat
from countersink.logs.file import BOM, EXTENSIONS, wide_text
from countersink.logs.formats import line_reader
from countersink.logs.formats.detection import Detected, detect, undetected_reason
from countersink.logs.formats.json_objects import JSON_FORMATS, json_object
from countersink.logs.formats.reader import BLANK, Keys, LineReader, RecordTally, Rejected
from countersink.logs.formats.records import AmountFormat, JsonLines, is_array, shown
from countersink.logs.formats.w3c import W3cLog
from countersink.logs.times import LIKELY, UNITS, no_day

__all__ = ["Reader", "RecordTally", "Rejected", "check", "check_head", "make_reader", "recipe_for"]

_NAMED: Final = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson"}
"""Formats that the extension of a source's name implies, before that of a compression."""
_AMOUNT: Final = re.compile(
    "(amount|count)s?|n|num|qty|quantity|sum|total"
    "|clicks|downloads|events|hits|(page_?)?views|requests|visits",
    re.IGNORECASE,
)
"""The pattern of names of columns that probably have amounts."""
_NO_DELIMITERS: Final = '"\r\n\0'
_FIRST_LIKELY: Final = LIKELY[0] // 60
_EMPTY: Final = Recipe()
_RECORDS: Final = ("auto", "csv", "ndjson", *JSON_FORMATS)
_OPTIONS: Final = (
    (
        ("key_column", "time_column", "amount_column"),
        _RECORDS,
        "is for csv, ndjson and JSON logs (--input-format): with access logs, use --key",
    ),
    (
        ("time_format",),
        _RECORDS,
        "is for csv, ndjson and JSON logs; in other formats the time format is fixed",
    ),
    (("counter_column",), ("auto", "csv", "ndjson"), "is for csv and ndjson"),
    (("delimiter", "columns", "comment"), ("auto", "csv"), "is for CSV"),
    (("envelope",), {*INPUT_FORMATS, "log-format"} - {"csv", "w3c"}, "is not for csv or w3c"),
)
"""Rows of: attributes of a recipe, the formats that allow them, the error with any other format."""


class Reader(LineReader, Protocol):
    """Reader of the records of one source, which also knows where records end."""

    @property
    def quoted(self) -> Quoting | None:
        """Regular expressions that find the ends of records in which newlines may be quoted; None
        if each record is one line."""


def make_reader(
    recipe: Recipe,
    head: bytes,
    minutes: tuple[int, int] | None,
    begins: Callable[[date], int] | None = None,
    counter: str = "",
) -> Reader:
    """Return the reader of a source.

    Args:
        recipe: the options by which the source is read; :func:`check` has accepted them.
        head: the first 64 KiB of the source, uncompressed.
        minutes: half-open range of Unix minutes; lines of other times are left out. None: no line
            is left out for its time.
        begins: function from a date to the first Unix minute of that day in the counter's time
            zone, for times that are dates; None: days begin at midnight in the recipe's time zone.
        counter: name of the counter whose lines count, if the recipe has a counter column.

    Raises:
        BackfillError: the source cannot be read by this recipe: it is UTF-16 or UTF-32, a CSV
            without a valid header or without a needed column, or a W3C log whose fields cannot be
            counted.
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
    """Return the reader of a source that is not CSV.

    Args:
        recipe: the options by which the source is read.
        keys: rule that gives lines their keys, and says which lines are left out.
        begins: function from a date to the first Unix minute of that day in the counter's time
            zone; None: days begin at midnight in the recipe's time zone. Used only if the recipe
            has time columns.

    Raises:
        ValueError: the recipe's format, fields, key, envelope, time format or time zone are
            invalid; :func:`check` finds what else is wrong with a recipe.
    """
    times, amounts = recipe.times, None
    if recipe.decimal_point or recipe.thousands:
        amounts = AmountFormat(recipe.decimal_point, recipe.thousands)
    json_lines = partial(
        JsonLines,
        clock=recipe.clock(begins if times else no_day),
        times=times,
        amount_column=recipe.amount_column,
        amounts=amounts,
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
    """Check the first lines of a CSV, NDJSON or JSON log. Sources in other formats are not checked.
    Refused are a time or an amount that contradicts the options or can be read in two ways, and a
    JSON array (format ``ndjson``) whose objects are not each on a line. If the time format is a
    unit such as ``unix-ms``, times that are all before 1990 in this unit are refused, too. Other
    lines that cannot be read are rejected when they are counted.

    Args:
        recipe: the options by which the source is read.
        reader: reader of the source, from :func:`make_reader`.
        head: the first 64 KiB of the source, uncompressed.

    Raises:
        BackfillError: one of these was found; the message says what to do.
    """
    if recipe.input_format not in _RECORDS:
        return
    stop = last_end(head, quoted=reader.quoted)
    tally = RecordTally()
    piece = SpanPiece(1, head, stop, head.count(b"\n", 0, stop))
    reader.count(block_of(piece, reader.quoted), tally)
    for each in tally.rejected:
        if each.misread:
            raise BackfillError(f"line {each.line}: {each.reason}")
    if recipe.input_format == "ndjson" and is_array(head.removeprefix(BOM)):
        raise BackfillError(
            "it is a JSON array with several objects on a line, or objects on several lines: use"
            " `jq -c '.[]' FILE | countersink backfill - …`"
        )
    if recipe.time_format in UNITS and tally.amounts and max(tally.amounts) < _FIRST_LIKELY:
        raise BackfillError(
            f"all times of its first lines are before 1990 in {recipe.time_format}: for"
            f" --time-format give auto, {', '.join(UNITS)}, or a strptime pattern"
        )


def keys_of(recipe: Recipe, minutes: tuple[int, int] | None = None, counter: str = "") -> Keys:
    """Return the :class:`Keys` of a recipe, which make the key of each line and decide which lines
    are left out.

    Args:
        recipe: the options by which lines are read.
        minutes: half-open range of Unix minutes; lines of other times are left out. None: no line
            is left out for its time.
        counter: name of the counter whose lines count, if the recipe has a counter column.

    Raises:
        ValueError: an option is invalid; the message says what to do.
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
    """Check the options of a recipe, without reading a source.

    Raises:
        ValueError: an option is invalid; the message says what to do.
    """
    if recipe.input_format not in (*INPUT_FORMATS, "log-format"):
        raise ValueError(
            f"there is no input format {recipe.input_format!r}: use {', '.join(INPUT_FORMATS)}"
        )
    if recipe.key and recipe.key_column:
        raise ValueError("--key and --key-column both define the key: give one of them")
    marks = recipe.decimal_point + recipe.thousands
    if marks and not recipe.amount_column:
        raise ValueError("--decimal-point and --thousands need --amount-column")
    if len(set(marks)) != bool(recipe.decimal_point) + bool(recipe.thousands) or re.search(
        r"[\w+-]", marks
    ):
        raise ValueError("--decimal-point and --thousands: two different characters, no digits")
    if recipe.visitor and recipe.amount_column:
        raise ValueError("with --visitor, each line counts 1: leave out --amount-column")
    if recipe.start is not None and recipe.end is not None and recipe.start > recipe.end:
        raise ValueError(f"--from {recipe.start} is after --to {recipe.end}")
    keys = keys_of(recipe)
    for names, forms, why in _OPTIONS:
        for name in names:
            if recipe.input_format not in forms and getattr(recipe, name) != getattr(_EMPTY, name):
                raise ValueError(f"--{name.replace('_', '-')} {why}")
    if len(set(recipe.columns)) != len(recipe.columns):
        raise ValueError("--columns names a column twice")
    if recipe.comment and (recipe.comment.strip() != recipe.comment or '"' in recipe.comment):
        raise ValueError("--comment is the beginning of comment lines, such as #, without quotes")
    if len(recipe.delimiter) != 1 or recipe.delimiter in _NO_DELIMITERS:
        raise ValueError(f"--delimiter must be one character, not {recipe.delimiter!r}")
    if recipe.input_format in ("csv", "ndjson"):
        if not recipe.time_column:
            raise ValueError(f"{recipe.input_format} needs the column of times: give --time-column")
        if not (recipe.key or recipe.key_column or recipe.dimensions):
            raise ValueError(
                f"{recipe.input_format} needs the columns of keys: give --key-column, --key with"
                " fields, or --dimension"
            )
    if recipe.input_format in ("auto", "csv"):
        recipe.clock(no_day)
    else:
        _line_reader(recipe, keys, no_day)


def recipe_for(recipe: Recipe, head: bytes, name: str) -> Recipe:
    """Return the recipe by which a source is read: it has the source's format and envelope instead
    of ``auto``. A recipe whose format is not ``auto`` is returned unchanged. If no format is
    recognized, but the name has an extension such as ``.csv``, or there is a key column, the format
    is ``ndjson`` if the first line begins with ``{`` or ``[``, else ``csv``. If there is neither,
    and the head has only blank lines, the format is ``combined``.

    Args:
        recipe: the recipe of the options.
        head: the first 64 KiB of the source, uncompressed.
        name: name of the source. ``.csv``, ``.ndjson`` or ``.jsonl`` at its end, or before the
            extension of a compression, says the format.

    Raises:
        BackfillError: the source is UTF-16 or UTF-32; its lines have several formats; or its format
            is not recognized, differs from that of the extension, or does not fit other options.
    """
    if recipe.input_format != "auto":
        return recipe
    check_encoding(head)
    lines = head.split(b"\n")
    extensions = [each for each in PurePath(name.lower()).suffixes if each not in EXTENSIONS]
    named = _NAMED.get("".join(extensions[-1:]), "")
    try:
        detected, first = detect(lines), _first(head)
        if detected is None and (named or recipe.key_column):
            detected = Detected("ndjson" if first.startswith((b"{", b"[")) else "csv")
        if detected is None:
            if reason := undetected_reason(lines):
                raise BackfillError(reason)
            return replace(recipe, input_format="combined")
        is_json = detected.input_format in ("ndjson", *JSON_FORMATS)
        if first and named and named != ("ndjson" if is_json else detected.input_format):
            begins = shown(first.decode(errors="replace"))
            raise BackfillError(
                f"its name says {named}, but it begins with {begins}: give {detected.options} or"
                f" --input-format {named}"
            )
        recipe = replace(
            recipe,
            input_format=detected.input_format,
            envelope=recipe.envelope or detected.envelope,
        )
        check(recipe)
    except (UnknownFormat, ValueError) as error:
        raise BackfillError(str(error)) from None
    return recipe


def _first(head: bytes) -> bytes:
    """Return the first line of a head that is not blank, stripped; b"" if all lines are blank."""
    lines = (line.strip(BLANK) for line in head.removeprefix(BOM).split(b"\n"))
    return next(filter(None, lines), b"")


def unnamed_amount(recipe: Recipe, head: bytes) -> str:
    """Return the name of a column that probably has amounts, judging by a name such as ``hits``,
    although the recipe counts each line as 1. In NDJSON, members of the first object that have
    numbers are the columns. Return '' if there is no such column, if the recipe has an amount
    column or a visitor, and for other formats than CSV and NDJSON.

    Args:
        recipe: the options by which the source is read.
        head: the first 64 KiB of the source, uncompressed.

    Raises:
        BackfillError: the CSV has no valid header, or lacks a column that the recipe uses.
    """
    names: list[str] = []
    if recipe.input_format == "csv":
        names = CsvRecords(recipe, head, keys_of(recipe), no_day).names
    elif recipe.input_format == "ndjson":
        with suppress(Malformed):
            begin = _first(head.removeprefix(BOM).lstrip(BLANK + b"[\n"))
            members = json_object(begin.strip(b", []"))
            names = [name for name, value in members.items() if type(value) in (int, float)]
    used = {recipe.key_column, *recipe.times, *dict(recipe.dimensions).values()}
    likely = (each for each in names if _AMOUNT.fullmatch(each) and each not in used)
    found = next((each for each in likely if f"{{{each}}}" not in recipe.key), "")
    return "" if recipe.amount_column or recipe.visitor else found


def check_encoding(head: bytes) -> None:
    """Check that a source is not UTF-16 or UTF-32.

    Raises:
        BackfillError: it is UTF-16 or UTF-32.
    """
    if reason := wide_text(head, "it", "backfill"):
        raise BackfillError(reason)
