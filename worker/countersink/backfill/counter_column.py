"""``--counter-column``: ``exported`` finds the counters in an export, at most ``MOST_COUNTERS``,
and the lines that name none.

The export is read once as a dry run whose keys are the names of counters. Each counter is then
counted by an ordinary run of its own, which leaves out all lines that do not name it.
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
"""Maximum of counters of one export: each run reads the whole export."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The counters that an export names, and its lines without a countable counter.

    Attributes:
        counters: names of the countable counters, sorted.
        strays: for users: the first lines without a counter, and counters that cannot be counted,
            with reasons.
        stray_lines: number of lines without a countable counter.
        lines: number of lines read, without blank lines and headers.
    """

    counters: tuple[str, ...]
    strays: tuple[str, ...]
    stray_lines: int
    lines: int


def exported(
    mysql_url: str, options: BackfillOptions, stop: Callable[[], bool] = lambda: False
) -> Exported:
    """Find the counters of an export: reads the counter column of all sources of ``options``.

    Raises:
        BackfillError: there are lines, but none names a countable counter; or there are too many
            counters; or a source cannot be read, or only once.
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
    """Names of counters that a backfill may not count → reasons."""
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
