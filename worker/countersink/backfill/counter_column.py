"""``--counter-column``: ``exported`` finds the counters that an export names, and the lines that
name none. More than ``MOST_COUNTERS`` counters are refused.

The export is first read as in a dry run; the key of each line is then the name of its counter.
After that, each counter is counted by its own ordinary run, which leaves out the lines of all other
counters.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from countersink.backfill import content, formats
from countersink.backfill.count.source_count import count_source
from countersink.backfill.count.targets import TruthTarget
from countersink.backfill.count.task import NO_RUN, refuse_counter, require_unique
from countersink.backfill.dry_run import Trial
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import BackfillOptions
from countersink.backfill.run import open_work
from countersink.counting.counters.catalog import Catalog
from countersink.database.session import Session
from countersink.runtime.limits import check_counter
from countersink.runtime.texts import plural

MOST_COUNTERS: Final = 1_000
"""Maximum number of counters in one export. There is a maximum because the run of each counter
reads the whole export."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of reading the counter column of an export.

    Attributes:
        counters: sorted names of the counters that a backfill may count.
        strays: texts for users, with reasons: the first lines that name no counter or cannot be
            read, ten at most; then each counter that a backfill may not count.
        stray_lines: number of lines that name no counter, cannot be read, or name a counter that a
            backfill may not count.
        lines: number of lines that were read, without blank lines and headers.
    """

    counters: tuple[str, ...]
    strays: tuple[str, ...]
    stray_lines: int
    lines: int


def exported(
    mysql_url: str, options: BackfillOptions, stop: Callable[[], bool] = lambda: False
) -> Exported:
    """Find the counters of an export, by reading the counter column of all sources. Nothing is
    counted: the caller makes a run for each counter that was found.

    Args:
        mysql_url: URL of the database.
        options: options of the command, with the sources and the counter column.
        stop: called while reading; once it returns true, reading ends, and counters may be missing.

    Raises:
        BackfillError: lines were read that the options do not leave out, but none names a counter
            that may be counted; there are too many counters; a source cannot be read, or can be
            read only once, such as a pipe; or an option is invalid.
        StoreError: MySQL failed.
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
        time_format="auto",
        amount_column="",
        strip_query=False,
        exclude_keys=(),
        start=None,
        end=None,
    )
    names_only = replace(
        options,
        recipe=recipe,
        mode="add",
        count_repeats=True,
        count_lines=True,
        max_rejects=sys.maxsize,
        rejects=None,
        dry_run=True,
    )
    found, failed = content.expand(options.sources)
    if failed:
        raise BackfillError(f"{failed[0].source}: {failed[0].detail}")
    lines, trial = Counter[str](), Trial()
    with open_work(mysql_url, names_only, found, trial, stop=stop) as work:
        work.target = TruthTarget(NO_RUN, "day")
        for source in found:
            if source.path is None or not source.path.is_file():
                raise BackfillError(
                    f"{source.name} can be read only once, but --counter-column reads an export"
                    " once per counter: save it to a file"
                )
            with content.open_content(source, stop) as opened:
                own = formats.recipe_for(options.recipe, content.head_of(opened), source.name)
            one_format = replace(recipe, input_format=own.input_format)
            work.options = replace(names_only, recipe=one_format)
            result = count_source(work, source, trial.count).report
            if result.outcome == "failed":
                raise BackfillError(f"{source.name}: {result.detail}")
            lines.update(counted=result.counted, filtered=result.filtered, rejected=result.rejected)
        names = sum(trial.truth.values(), Counter[str]())
        refused = work.link.run(_refused, work.catalog, names, bool(options.recipe.visitor))
        first = work.rejects.first
    strays = [f"{one.source} line {one.line}: {one.reason}" for one in first]
    strays += [f"{why} ({plural(names[name], 'line')})" for name, why in refused.items()]
    counters = tuple(sorted(names.keys() - refused.keys()))
    if strays and not counters:
        raise BackfillError(f"no line names a counter that can be counted: {strays[0]}")
    if len(counters) > MOST_COUNTERS:
        raise BackfillError(
            f"the sources name {len(counters):,} counters, more than the {MOST_COUNTERS:,} that one"
            f" command can count: is {options.recipe.counter_column!r} the column of counters?"
        )
    stray_lines = lines["rejected"] + sum(names[name] for name in refused)
    return Exported(counters, tuple(strays), stray_lines, lines.total())


def _refused(
    session: Session, catalog: Catalog, names: Counter[str], visitor: bool
) -> dict[str, str]:
    """Return those of ``names`` that a backfill may not count, each with the reason.

    Args:
        session: session outside a transaction.
        catalog: the catalog.
        names: names of counters, with their numbers of lines.
        visitor: True if lines have visitors: then each counter must count different visitors.
    """
    refused: dict[str, str] = {}
    for name in sorted(names):
        try:
            check_counter(name)
            refuse_counter(session, catalog, name)
            if visitor:
                require_unique(catalog, name)
        except (BackfillError, ValueError) as error:
            refused[name] = str(error)
    return refused
