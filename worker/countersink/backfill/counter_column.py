"""``--counter-column``: which counters an export holds, at most how many (``MOST_COUNTERS``), and
what is said of lines that name none.

The export is read once as a dry run whose keys are the names of counters. Each counter is then
counted by a run of its own, with identity, settings and undo as ever, which leaves out the lines of
the others and those that are of none.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from countersink.backfill import content, formats
from countersink.backfill.count.source_count import count_source
from countersink.backfill.count.targets import TruthTarget
from countersink.backfill.count.task import NO_RUN, refuse, require_unique
from countersink.backfill.dry_run import Trial
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import BackfillOptions
from countersink.backfill.run import working
from countersink.counting.counters.catalog import Catalog
from countersink.database.session import Session
from countersink.runtime.limits import check_counter

MOST_COUNTERS: Final = 1_000
"""Counters of one export: each is a run, which reads all of it."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The counters that an export names, and the lines that name none.

    Attributes:
        counters: those that can be counted, in order.
        strays: for people: the first lines that are of none of them, and why others are not.
        stray_lines: how many there are.
        lines: how many were read, without blank ones and headers.
    """

    counters: tuple[str, ...]
    strays: tuple[str, ...]
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
        max_rejects=sys.maxsize,
        rejects=None,
        dry_run=True,
    )
    found, failed = content.expand(options.sources)
    if failed:
        raise BackfillError(f"{failed[0].source}: {failed[0].detail}")
    lines, trial = Counter[str](), Trial()
    with working(mysql_url, names_only, found, trial, stop=stop) as work:
        work.target = TruthTarget(NO_RUN, "day")
        for source in found:
            if source.path is None or not source.path.is_file():
                raise BackfillError(
                    f"{source.name} can be read only once, and --counter-column reads an export"
                    " once for each counter: write it to a file"
                )
            said = count_source(work, source, trial.count).report
            if said.outcome == "failed":
                raise BackfillError(f"{source.name}: {said.detail}")
            lines.update(counted=said.counted, filtered=said.filtered, rejected=said.rejected)
        names = sum(trial.said.values(), Counter[str]())
        refused = work.link.run(_refused, work.catalog, names, bool(options.recipe.visitor))
        first = work.rejects.first
    strays = [f"{one.source} line {one.line}: {one.reason}" for one in first]
    strays += [f"{why} ({names[name]:,} lines)" for name, why in refused.items()]
    counters = tuple(sorted(names.keys() - refused.keys()))
    if strays and not counters:
        raise BackfillError(f"no line names a counter that can be counted: {strays[0]}")
    if len(counters) > MOST_COUNTERS:
        raise BackfillError(
            f"{len(counters):,} counters are more than the {MOST_COUNTERS:,} of one command: is"
            f" {options.recipe.counter_column!r} the column of counters?"
        )
    stray_lines = lines["rejected"] + sum(names[name] for name in refused)
    return Exported(counters, tuple(strays), stray_lines, lines.total())


def _refused(
    session: Session, catalog: Catalog, names: Counter[str], visitor: bool
) -> dict[str, str]:
    """Names of which no counter may be counted, and why."""
    refused: dict[str, str] = {}
    for name in sorted(names):
        try:
            check_counter(name)
            refuse(session, catalog, name)
            if visitor:
                require_unique(catalog, name)
        except (BackfillError, ValueError) as error:
            refused[name] = str(error)
    return refused
