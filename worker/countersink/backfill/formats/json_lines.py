"""NDJSON: an object on every line (https://github.com/ndjson/ndjson-spec)."""

from collections.abc import Callable
from typing import Final

import msgspec

from countersink.backfill.formats import heads, json_paths
from countersink.backfill.formats.reader import note_window
from countersink.backfill.formats.rule import Rule
from countersink.backfill.formats.tally import Tally
from countersink.backfill.recipe import Recipe
from countersink.backfill.spans import Window
from countersink.backfill.times import Clock
from countersink.producers.access_line import PERCENT, Malformed

_BLANK: Final = b"\0 \t\r"


class JsonLines:
    """Counts the objects of lines by a rule."""

    quoted = False

    def __init__(self, rule: Rule[object]) -> None:
        self._rule = rule
        self._decode = msgspec.json.Decoder().decode

    def count(self, window: Window, tally: Tally) -> None:
        """Add what the lines of ``window`` come to."""
        note_window(window, tally)
        make = self._rule.cell
        for number, line in zip(window.numbers, window.lines, strict=True):
            try:
                try:
                    record = self._decode(line)
                except (ValueError, RecursionError):
                    stripped = heads.without_mark(line, number).strip(_BLANK)
                    if not stripped:
                        continue
                    record = self._again(stripped)
                if not isinstance(record, dict):
                    raise Malformed("the line is JSON, but no object")
                cell = make(record)
            except Malformed as error:
                tally.reject(number, str(error), line)
                continue
            if cell is None:
                tally.filtered += 1
            else:
                tally.count(*cell)

    def _again(self, line: bytes) -> object:
        """Read a line that could not be read as it was."""
        try:
            return self._decode(line.decode("utf-8", PERCENT).encode())
        except RecursionError:
            raise Malformed("the line is JSON nested too deep") from None
        except ValueError as error:
            advice = ""
            if rb"\x" in line:
                advice = r" (\x is none of JSON's escapes; nginx: log_format … escape=json)"
            raise Malformed(f"the line is no JSON: {error}{advice}") from None


def ndjson(recipe: Recipe, minutes: tuple[int, int] | None) -> JsonLines:
    """Reads NDJSON for a recipe that :func:`countersink.backfill.formats.check` has let pass."""

    def field(name: str) -> Callable[[object], str]:
        get = json_paths.getter(name)
        return lambda record: json_paths.as_text(get(record), name)

    def optional(name: str) -> Callable[[object], str]:
        get = json_paths.getter(name)
        return lambda record: json_paths.as_optional_text(get(record), name)

    clock, time = Clock(recipe.time_format, recipe.time_zone), json_paths.getter(recipe.time_column)
    return JsonLines(
        Rule(
            recipe,
            minutes,
            field=field,
            optional=optional,
            minute=lambda record: clock.minute(time(record)),
            amount=json_paths.getter(recipe.amount_column) if recipe.amount_column else None,
        )
    )
