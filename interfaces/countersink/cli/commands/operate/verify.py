"""``countersink verify``: flags, columns and texts of differences and of ``--repair``, exit status;
what is compared is in ``store/verify.py``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Exit, Misuse, sentence_of, values_checked
from countersink.cli.settings import COUNTER, NAME
from countersink.row_counts.check import RowDifference
from countersink.row_counts.definitions import TrackedTable
from countersink.row_counts.recount import Repaired
from countersink.store import Store, StoreError, Unavailable
from countersink.store.verify import Verified, open_session, verify


@dataclass(frozen=True, slots=True)
class Mending:
    """What became of the tracked tables that something was wrong with.

    Attributes:
        found: what was wrong with any of them, before.
        repaired: what was done.
        failed: counters that could not be repaired, and why.
    """

    found: Verified
    repaired: Sequence[Repaired]
    failed: dict[str, str]


@click.command("verify", cls=settings.Command)
@click.argument("table", type=NAME, required=False)
@settings.one_off("--counter", type=COUNTER, help="Only this counter.")
@settings.one_off(
    "--repair", is_flag=True, help="Repair tracked tables that differ, beside live writes."
)
@settings.of_mysql("table", "json")
def command(table: str | None, counter: str | None, repair: bool) -> int:
    """Prove that nothing was lost or doubled in the tables.

    The ledger has the sum of everything ever applied to a counter, which neither compaction nor
    retention changes. For each counter, its rows must add up to the ledger; for each tracked table,
    the counter must equal the rows of the table. It is safe at any time, beside live traffic. The
    status is 3 if something differs.

    With TABLE, or its counter, only this tracked table is verified, in all its counters; --counter
    verifies only one of them. --repair makes missing triggers again and counts the table's rows
    again; the status is then 3 if something still differs.
    """
    if table is not None and counter is not None:
        raise Misuse("give a table or --counter, not both")
    url = settings.mysql_url()
    mending = None
    with values_checked():
        done = _verify(url, counter, table)
    if repair:
        mending = _repair(url, done)
        done = _verify(url, counter, table)
    output.write_result(_document(done, mending), partial(_show, done, mending))
    return Exit.DONE if done.agrees else Exit.DIFFERS


def _verify(url: str, counter: str | None, table: str | None) -> Verified:
    with open_session(url) as session, output.progress_bar("verifying") as show:
        return verify(session, counter, table=table, looking=partial(show, None))


def _repair(url: str, found: Verified) -> Mending:
    """Mend each tracked table that something is wrong with."""
    repaired, failed = [], dict[str, str]()
    with Store(url) as store, output.progress_of_rows("counting rows") as shown:
        for counter in sorted(_wrong(store, found)):
            try:
                repaired.append(
                    store.tracked.repair(counter=counter, progress=shown, notice=output.say)
                )
            except Unavailable:
                raise
            except (StoreError, ValueError) as error:
                failed[counter] = (sentence_of(error) or str(error)).rstrip(".")
    return Mending(found, repaired, failed)


def _wrong(store: Store, found: Verified) -> set[str]:
    """The counters of tracked tables that something is wrong with."""
    wrong = {one.tracked.counter for one in found.row_differences}
    if found.differences:
        tracked = {each.counter for each in store.tracked.list()}
        wrong |= tracked & {one.counter for one in found.differences}
    return wrong


_SUM: Final = ("counter", "problem", "day", "in_tables", "in_ledger", "difference", "detail")
_ROW_COUNT: Final = ("problem", "day", "key", "in_counter", "in_table", "difference", "detail")
_REPAIRED: Final = ("rows", "triggers", "corrected", "difference")


def _document(done: Verified, mending: Mending | None) -> dict[str, object]:
    """The result as JSON; after mending the differences are those that remain."""
    document = output.document(done, ("counters", "rows", "tables"))
    document["differences"] = _differences(done)
    if mending is not None:
        document["found"] = _differences(mending.found)
        document["repaired"] = [
            _of_table(one.tracked) | output.document(one, _REPAIRED, corrected=one.cells)
            for one in mending.repaired
        ]
        document["failed"] = mending.failed
    return document


def _differences(done: Verified) -> list[dict[str, object]]:
    documents = [output.document(one, _SUM) for one in done.differences]
    for one in done.row_differences:
        figures = output.document(one, _ROW_COUNT, difference=one.in_counter - one.in_table)
        documents.append(_of_table(one.tracked) | figures)
    return documents


def _of_table(one: TrackedTable) -> dict[str, object]:
    return {"counter": one.counter, "table": one.name}


def _show(done: Verified, mending: Mending | None) -> None:
    """The result for people."""
    if mending is not None:
        _show_mending(mending)
    looked_at = _looked_at(done)
    if done.agrees:
        click.echo(f"All agree: {looked_at}.")
        return
    _show_differences(done)
    differences = len(done.differences) + len(done.row_differences)
    click.echo(f"{differences:,} differences; looked at {looked_at}.")


def _looked_at(done: Verified) -> str:
    tables = f", {done.tables:,} tracked tables" if done.tables else ""
    return f"{done.counters:,} counters with {done.rows:,} rows{tables}"


def _show_differences(done: Verified) -> None:
    if done.differences:
        output.write_rows(
            ("counter", ">in tables", ">in ledger", ">difference", "what"),
            (
                (one.counter, one.in_tables, one.in_ledger, f"{one.difference:+,}", one.detail)
                for one in done.differences
            ),
        )
    if done.row_differences:
        output.write_rows(
            ("table", "counter", "day", "key", ">counted", ">rows", "what"),
            map(_row_cells, done.row_differences),
        )


def _row_cells(one: RowDifference) -> tuple[object, ...]:
    day, key = one.day if one.tracked.day else None, one.key if one.tracked.by else None
    counted = (one.in_counter, one.in_table) if one.problem == "row_count" else (None, None)
    return one.tracked.name, one.tracked.counter, day, key, *counted, one.detail


def _show_mending(mending: Mending) -> None:
    _show_differences(mending.found)
    for one in mending.repaired:
        done = f"{one.cells:,} counts corrected, by {one.difference:+,} rows in all"
        if one.triggers:
            done = f"{one.triggers:,} triggers made, {done}"
        click.echo(f"Repaired {output.cell(one.tracked.name)} ({one.tracked.counter}): {done}.")
    for counter, reason in mending.failed.items():
        click.echo(f"Not repaired: {counter}: {reason}")
