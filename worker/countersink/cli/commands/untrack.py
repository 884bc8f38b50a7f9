"""``countersink untrack``."""

import click

from countersink.cli import output, progress, settings, track_view
from countersink.cli.failures import Misuse
from countersink.cli.types import COUNTER
from countersink.store import Store, StoreError


@click.command("untrack", cls=settings.Command)
@click.argument("table_or_counter", metavar="[TABLE|COUNTER]", required=False)
@settings.one_off(
    "--counter", metavar="COUNTER", type=COUNTER, help="This counter, whatever tables are called."
)
@settings.output_format("text", "json")
@settings.mysql_url
def command(
    table_or_counter: str | None, counter: str | None, format: str, mysql_url: str | None
) -> None:
    """Stop counting a table's rows: drop the triggers and the counter.

    It drops exactly what track has made; the table stays as it is. One that is tracked in several
    counters is named by the counter. If it is interrupted, run it again.
    """
    context = click.get_current_context()
    if (table_or_counter is None) == (counter is None):
        raise Misuse("name a table or a counter, or give --counter", context)
    with Store(settings.needed(mysql_url, "mysql")) as store:
        try:
            gone = store.tracked.untrack(table_or_counter, counter=counter, notice=progress.say)
        except StoreError:
            raise  # some of them are ValueErrors too
        except ValueError as error:
            raise Misuse(str(error), context) from error
    if format == "json":
        output.write_json(track_view.document(gone))
    else:
        click.echo(f"tracking no more: {track_view.described(gone)}")
