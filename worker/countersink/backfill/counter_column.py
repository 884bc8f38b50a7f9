"""``--counter-column``: which counters an export holds, at most how many (``MOST_COUNTERS``), and
the notices about lines that name none.

Each counter is then counted by a run of its own, with identity, settings and undo as ever, which
leaves out the lines of the others and those that are of none.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from countersink.backfill import formats
from countersink.backfill.count.task import refuse, require_unique
from countersink.backfill.errors import BackfillError
from countersink.backfill.formats import Reader, RecordTally
from countersink.backfill.history import RejectedLine
from countersink.backfill.input import files
from countersink.backfill.input.content import head_of, open_content
from countersink.backfill.input.spans import SpanReader, window_of
from countersink.backfill.options import BackfillOptions
from countersink.backfill.rejects import named
from countersink.producers.access_log.formats.reader import Window
from countersink.runtime.limits import check_counter
from countersink.store.connection import Session
from countersink.store.counters.catalog import load
from countersink.store.sessions import PatientSession, open_tables

MOST_COUNTERS: Final = 1_000
"""Counters of one export: each is a run, which reads all of it."""
_SHOWN: Final = 1_000


@dataclass(frozen=True, slots=True)
class Exported:
    """The counters that an export names, and the lines that name none.

    Attributes:
        counters: those that can be counted, in order.
        strays: lines that are of none of them, up to 1,000.
        stray_lines: how many there are.
        lines: how many were read, without blank ones and headers.
    """

    counters: tuple[str, ...]
    strays: tuple[RejectedLine, ...]
    stray_lines: int
    lines: int


def exported(
    mysql_url: str, options: BackfillOptions, stop: Callable[[], bool] = lambda: False
) -> Exported:
    """Read the sources of ``options``, and nothing else than their column of counters.

    Raises:
        BackfillError: there are lines, but none names a counter that may be counted; or a source
            cannot be read.
        StoreError: MySQL did not do its part.
    """
    try:
        formats.check(options.recipe)
    except ValueError as error:
        raise BackfillError(str(error)) from error
    recipe = replace(
        options.recipe,
        key="",
        dimensions=(),
        visitor=(),
        key_column=options.recipe.counter_column,
        counter_column="",
        time_column="",
        more_time_columns=(),
        amount_column="",
        strip_query=False,
        exclude_keys=(),
    )
    found, failed = files.expand(options.sources)
    if failed:
        raise BackfillError(f"{failed[0].source}: {failed[0].detail}")
    seen: dict[str, tuple[str, int, int]] = {}
    strays: list[RejectedLine] = []
    stray_lines = filtered = 0
    for source in found:
        if source.path is None or not source.path.is_file():
            raise BackfillError(
                f"{source.name} can be read only once, and --counter-column reads an export once"
                " for each counter: write it to a file"
            )
        with open_content(source, stop) as content:
            head = head_of(content)
            reader = formats.make_reader(recipe, head, None)
            at, line = 0, 1
            while not stop():
                spans = SpanReader(content, at, line, quoted=reader.quoted)
                for piece in spans.pieces():
                    window = window_of(piece, reader.quoted)
                    tally = RecordTally()
                    reader.count(window, tally)
                    stray_lines += len(tally.rejected)
                    filtered += tally.filtered
                    strays += named(source.name, tally.rejected[: _SHOWN - len(strays)])
                    if _names(tally).keys() - set(seen):
                        for name, number in _first_lines(reader, window).items():
                            seen.setdefault(name, (source.name, number, 0))
                    for name, lines in _names(tally).items():
                        first, number, before = seen.get(name, (source.name, window.numbers[0], 0))
                        seen[name] = first, number, before + lines
                if spans.span is None:
                    break
                at, line = spans.span.end, spans.span.next_line
    with PatientSession(partial(open_tables, mysql_url), stop).open() as link:
        refused = link.run(_refused, names=sorted(seen), visitor=bool(options.recipe.visitor))
    read = stray_lines + filtered + sum(lines for _, _, lines in seen.values())
    for name, why in refused.items():
        first, number, lines = seen[name]
        stray_lines += lines
        why = f"{why} (this line and {lines - 1:,} others)" if lines > 1 else why
        strays.append(RejectedLine(first, number, why, ""))
    counters = tuple(sorted(set(seen) - set(refused)))
    if strays and not counters:
        raise BackfillError(f"no line names a counter that can be counted: {strays[0].reason}")
    if len(counters) > MOST_COUNTERS:
        raise BackfillError(
            f"{len(counters):,} counters are more than the {MOST_COUNTERS:,} of one command: is"
            f" {options.recipe.counter_column!r} the column of counters?"
        )
    return Exported(counters, tuple(strays), stray_lines, read)


def _names(tally: RecordTally) -> dict[str, int]:
    """How many lines have which name."""
    return {name: lines for name, lines in tally.amounts[0].items() if isinstance(name, str)}


def _first_lines(reader: Reader, window: Window) -> dict[str, int]:
    """The names that a window's lines hold, and where each stands first."""
    found: dict[str, int] = {}
    for number, line in zip(window.numbers, window.lines, strict=True):
        tally = RecordTally()
        reader.count(Window([number], [line], []), tally)
        for name in _names(tally):
            found.setdefault(name, number)
    return found


def _refused(session: Session, names: list[str], *, visitor: bool) -> dict[str, str]:
    """Names of which no counter may be counted, and why."""
    catalog = load(session)
    refused: dict[str, str] = {}
    for name in names:
        try:
            check_counter(name)
            refuse(session, catalog, name)
            if visitor:
                require_unique(catalog, name)
        except (BackfillError, ValueError) as error:
            refused[name] = str(error)
    return refused
