"""Lines through the readers of formats."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from countersink.backfill.formats import RecordTally, make_reader
from countersink.backfill.options import Recipe
from countersink.backfill.spans import split
from countersink.logs import Counts, Malformed, Parser
from countersink.logs.formats.reader import LONGEST_REASON, RecordBlock
from countersink.logs.template import Condition, Operator
from countersink.runtime.dimensions import RowKey

Cells = Counts
MINUTES = RecordTally().bucket
"""Each is a bucket of its own."""

_ADVICE = re.compile("(?:[;:] .*|…)?")
"""An option that `tail` has not got."""


def at(*when: int) -> int:
    """The Unix minute of a time in UTC."""
    return int(datetime(*when, tzinfo=UTC).timestamp()) // 60  # type: ignore[misc,arg-type]


def where(field: str, operator: Operator, value: str) -> Condition:
    """A condition."""
    return Condition(field, operator, value)


def read(
    recipe: Recipe,
    data: bytes | Iterable[str | bytes],
    *,
    minutes: tuple[int, int] | None = None,
    sizes: Sequence[int] = (),
    bucket: Callable[[int], int] = MINUTES,
) -> RecordTally:
    """What the whole content, or the lines, come to.

    Args:
        recipe: how they are read.
        data: a content, or lines.
        minutes: see ``make_reader``.
        bucket: see ``Tally``.
        sizes: of the first blocks, in records; the last one takes what is left.
    """
    if not isinstance(data, bytes):
        lines = [line.encode() if isinstance(line, str) else line for line in data]
        data = b"".join(line + b"\n" for line in lines)
    reader, tally = make_reader(recipe, data[: 64 * 1024], minutes), RecordTally(bucket)
    records, number, first = split(data, quoted=reader.quoted), 1, 0
    for size in (*sizes, len(records)):
        block: list[bytes] = records[first : first + size]
        numbers = []
        for record in block:
            numbers.append(number)
            number += record.count(b"\n") + 1
        reader.count(RecordBlock(numbers, block, []), tally)
        first += size
    return tally


def cell(parser: Parser, line: bytes) -> tuple[RowKey, int] | None:
    """Key and minute of one line; None where it is blank or left out.

    Raises:
        Malformed: it is rejected.
    """
    counts: Counts = {}
    for rejected in parser.count([line], 1, counts):
        raise Malformed(rejected.reason)
    return next(iter(counts), None)


def reasons(tally: RecordTally) -> dict[int, str]:
    """Line to reason of what was rejected."""
    return {each.line: each.reason for each in tally.rejected}


def both(recipe: Recipe, lines: Sequence[str | bytes]) -> tuple[Cells, dict[int, str]]:
    """What lines come to and why others are rejected, which `tail` and `backfill` agree on."""
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    counts: Cells = {}
    parser = Parser(
        recipe.key or "path",
        recipe.where,
        input_format=recipe.input_format,
        log_format=recipe.log_format,
        envelope=recipe.envelope,
        time_zone=recipe.time_zone,
    )
    rejected = {each.line: each.reason for each in parser.count(raw, 1, counts)}
    tally = read(recipe, raw)
    assert tally.counts == counts
    assert reasons(tally).keys() == rejected.keys()
    for line, reason in reasons(tally).items():
        same = rejected[line][: LONGEST_REASON - 1]  # `backfill` keeps them, so it cuts them
        assert reason.startswith(same), (reason, rejected[line])
        assert _ADVICE.fullmatch(reason.removeprefix(same)), (reason, rejected[line])
    return counts, rejected
