"""What the lines of a source mean: a reader for each format.

A line comes to a key, a minute and an amount, is left out by the recipe, or is rejected with a
reason. Blank lines come to nothing.
"""

from countersink.backfill.formats import heads
from countersink.backfill.formats.access_logs import AccessLog
from countersink.backfill.formats.csv_records import CsvRecords
from countersink.backfill.formats.json_lines import ndjson
from countersink.backfill.formats.nginx_json import nginx_json
from countersink.backfill.formats.reader import Reader
from countersink.backfill.formats.recipes import check
from countersink.backfill.formats.tally import Reject, Tally
from countersink.backfill.recipe import Recipe

__all__ = ["Reader", "Reject", "Tally", "check", "make_reader"]


def make_reader(recipe: Recipe, head: bytes, minutes: tuple[int, int] | None) -> Reader:
    """What reads a source.

    Args:
        recipe: how.
        head: how its uncompressed content begins: 64 KiB of it, or all.
        minutes: half-open range of Unix minutes; lines outside are left out. None: all are in.

    Raises:
        ValueError: the recipe cannot be: see :func:`check`.
        BackfillError: the source cannot be read so: UTF-16, or a CSV without a named column.
    """
    check(recipe)
    heads.check(head)
    if recipe.input_format == "csv":
        return CsvRecords(recipe, head, minutes)
    if recipe.input_format == "ndjson":
        return ndjson(recipe, minutes)
    if recipe.input_format == "nginx-json":
        return nginx_json(recipe, minutes)
    return AccessLog(recipe, minutes)
