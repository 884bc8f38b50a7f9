"""``countersink verify``: its flags, the tables and texts of differences and repairs, and its exit
status.

See ``store/verify.py`` for the comparisons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Exit, Misuse, sentence_of
from countersink.cli.settings import values_checked
from countersink.cli.values import COUNTER, TRACKED
from countersink.row_counts.check import RowDifference
from countersink.row_counts.definitions import TrackedTable
from countersink.row_counts.recount import Repaired
from countersink.runtime.texts import plural
from countersink.store import Store, StoreError, Unavailable
from countersink.store.verify import Verified, open_session, verify


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result of ``--repair``. A tracked table is repaired separately for each of its counters.

    Attributes:
        found: the result of the verification before the repair.
        repaired: the repairs that succeeded, one for each counter.
        failed: the reason, as text, for each counter that could not be repaired, by its name.
    """

    found: Verified
    repaired: Sequence[Repaired]
    failed: dict[str, str]


@click.command("verify", cls=settings.Command)
@click.argument("table", type=TRACKED, required=False)
@settings.one_off("--counter", type=COUNTER, help="Only this counter.")
@settings.one_off(
    "--repair", is_flag=True, help="Repair tracked tables that differ; writers go on."
)
@settings.mysql_options("table", "json")
def command(table: str | None, counter: str | None, repair: bool) -> int:
    """Check that the tables have neither lost nor doubled a count.

    The ledger has the sum of each bucket of a counter, from which totals without a key are read.
    The rows of each counter must add up to its ledger, and the counter of each tracked table must
    equal the table's number of rows. The command is safe at any time, also during live traffic. The
    status is 3 if something differs.

    With TABLE (or one of its counters), only this tracked table is verified, in all its counters;
    with --counter, only this counter. --repair creates missing triggers and counts the table's rows
    again; the status is then 3 if something still differs.
    """
    if table is not None and counter is not None:
        raise Misuse("give TABLE or --counter, not both")
    url = settings.mysql_url()
    repaired = None
    with values_checked():
        done = _verify(url, counter, table)
    if repair:
        repaired = _repair(url, done)
        done = _verify(url, counter, table)
    output.write_result(_document(done, repaired), partial(_show, done, repaired))
    return Exit.DONE if done.agrees else Exit.DIFFERS


def _verify(url: str, counter: str | None, table: str | None) -> Verified:
    with open_session(url) as session, output.progress_bar("verifying") as show:
        return verify(session, counter, table=table, progress=partial(show, None))


def _repair(url: str, found: Verified) -> RepairResult:
    """Repair each counter of a tracked table for which ``found`` has a difference, and return the
    result. Counters that cannot be repaired are in ``failed`` of the result, and the others are
    repaired all the same.

    Raises:
        Unavailable: MySQL is unavailable, such as in a failover. No further counter is repaired.
    """
    repaired, failed = [], dict[str, str]()
    with Store(url) as store, output.progress_of_rows("counting rows") as show:
        for counter in sorted(_wrong_counters(store, found)):
            try:
                repaired.append(
                    store.tracked.repair(counter=counter, progress=show, notice=output.say)
                )
            except Unavailable:
                raise
            except (StoreError, ValueError) as error:
                failed[counter] = (sentence_of(error) or str(error)).rstrip(".")
    return RepairResult(found, repaired, failed)


def _wrong_counters(store: Store, found: Verified) -> set[str]:
    """Return the names of the counters that are to be repaired: those that count the rows of a
    tracked table, and for which ``found`` has a difference of any kind."""
    wrong = {one.tracked.counter for one in found.row_differences}
    if found.differences:
        tracked = {each.counter for each in store.tracked.list()}
        wrong |= tracked & {one.counter for one in found.differences}
    return wrong


_SUM: Final = ("counter", "problem", "day", "in_tables", "in_ledger", "difference", "detail")
_ROW_COUNT: Final = ("problem", "day", "key", "in_counter", "in_table", "difference", "detail")
_REPAIRED: Final = ("rows", "triggers", "corrected", "difference")


def _document(done: Verified, repair: RepairResult | None) -> dict[str, object]:
    """Return the result as a JSON document. ``repair`` is None without ``--repair``. With
    ``--repair``, ``done`` is the verification after the repair: the member ``differences`` has the
    differences that remain, and ``found`` those before the repair."""
    document = output.document(done, ("counters", "rows", "tables"))
    document["differences"] = _differences(done)
    if repair is not None:
        document["found"] = _differences(repair.found)
        document["repaired"] = [
            _of_table(one.tracked) | output.document(one, _REPAIRED, corrected=one.cells)
            for one in repair.repaired
        ]
        document["failed"] = repair.failed
    return document


def _differences(done: Verified) -> list[dict[str, object]]:
    documents = [output.document(one, _SUM) for one in done.differences]
    for one in done.row_differences:
        figures = output.document(one, _ROW_COUNT, difference=one.in_counter - one.in_table)
        documents.append(_of_table(one.tracked) | figures)
    return documents


def _of_table(one: TrackedTable) -> dict[str, object]:
    return {"counter": one.counter, "table": one.name}


def _show(done: Verified, repair: RepairResult | None) -> None:
    """Print the result as text. Without ``--repair``, ``repair`` is None. With it, print first the
    differences before the repair and what was repaired; then ``done``, the verification after it.
    """
    if repair is not None:
        _print_repair(repair)
    verified = _verified_text(done)
    if done.agrees:
        click.echo(f"All agree: {verified}.")
        return
    _show_differences(done)
    differences = len(done.differences) + len(done.row_differences)
    click.echo(f"{plural(differences, 'difference')}; verified {verified}.")


def _verified_text(done: Verified) -> str:
    tables = f", {plural(done.tables, 'tracked table')}" if done.tables else ""
    return f"{plural(done.counters, 'counter')} with {plural(done.rows, 'row')}{tables}"


def _show_differences(done: Verified) -> None:
    if done.differences:
        output.write_rows(
            ("counter", ">in tables", ">in ledger", ">difference", "detail"),
            (
                (one.counter, one.in_tables, one.in_ledger, f"{one.difference:+,}", one.detail)
                for one in done.differences
            ),
        )
    if done.row_differences:
        output.write_rows(
            ("table", "counter", "day", "~key", ">counted", ">rows", "detail"),
            map(_row_cells, done.row_differences),
        )


def _row_cells(one: RowDifference) -> tuple[object, ...]:
    day, key = one.day if one.tracked.day else None, one.key if one.tracked.by else None
    counted = (one.in_counter, one.in_table) if one.problem == "row_count" else (None, None)
    return one.tracked.name, one.tracked.counter, day, key, *counted, one.detail


def _print_repair(repair: RepairResult) -> None:
    _show_differences(repair.found)
    for one in repair.repaired:
        done = f"{plural(one.cells, 'count')} corrected, by {one.difference:+,} in total"
        if one.triggers:
            done = f"{plural(one.triggers, 'trigger')} created, {done}"
        click.echo(f"Repaired {output.display(one.tracked.name)} ({one.tracked.counter}): {done}.")
    for counter, reason in repair.failed.items():
        click.echo(f"Not repaired: {counter}: {reason}")
