"""``countersink verify``."""

import click

from countersink.cli import exits, output, settings
from countersink.cli.types import COUNTER
from countersink.store.verify import Verified, open_session, verify


@click.command("verify", cls=settings.Command)
@settings.one_off("--counter", metavar="COUNTER", type=COUNTER, help="Only this one.")
@settings.output_format("table", "json")
@settings.mysql_url
def command(counter: str | None, format: str, mysql_url: str | None) -> int:
    """Prove that nothing was lost or doubled in the tables.

    Everything that was ever applied is in a ledger of its own, which compaction and retention do
    not touch. For each counter, slots and months must be equal to it. Safe at any time, beside
    live traffic. The status is 3 when something differs.
    """
    with open_session(settings.needed(mysql_url, "mysql")) as session:
        done = verify(session, counter)
    if format == "json":
        _write(done)
    else:
        _print(done)
    return exits.DIFFERS if done.differences else exits.DONE


def _write(done: Verified) -> None:
    output.write_json(
        {
            "counters": done.counters,
            "rows": done.rows,
            "differences": [
                {
                    "counter": one.counter,
                    "problem": one.problem,
                    "in_tables": one.in_tables,
                    "in_ledger": one.in_ledger,
                    "difference": one.difference,
                    "detail": one.detail,
                }
                for one in done.differences
            ],
        }
    )


def _print(done: Verified) -> None:
    looked_at = f"{done.counters:,} counters with {done.rows:,} rows"
    if not done.differences:
        click.echo(f"All agree: {looked_at}.")
        return
    table = output.table(
        {
            "counter": False,
            "in tables": True,
            "in ledger": True,
            "difference": True,
            "what": False,
        }
    )
    for one in done.differences:
        table.add_row(
            one.counter,
            output.cell(one.in_tables),
            output.cell(one.in_ledger),
            f"{one.difference:+,}",
            one.detail,
        )
    output.console().print(table)
    click.echo(f"{len(done.differences):,} differences; looked at {looked_at}.")
