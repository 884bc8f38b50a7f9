"""``countersink track``."""

import click

from countersink.cli import output, progress, settings, track_view
from countersink.cli.failures import Misuse
from countersink.cli.types import COUNTER
from countersink.store import Store, StoreError
from countersink.store.counter_reads import DEFAULT_APP_SLOTS
from countersink.store.policy_changes import MAX_APP_SLOTS


@click.command("track", cls=settings.Command)
@click.argument("table", required=False)
@settings.one_off(
    "--counter",
    metavar="COUNTER",
    type=COUNTER,
    help="The counter to count in, which nobody has used.  [default: the table's name]",
)
@settings.one_off(
    "--by",
    metavar="COLUMN",
    multiple=True,
    help="Count by the values of this column; may be repeated.",
)
@settings.one_off(
    "--day", metavar="COLUMN", help="Count by the date of this DATE, DATETIME or TIMESTAMP."
)
@settings.one_off(
    "--slots",
    type=click.IntRange(1, MAX_APP_SLOTS),
    default=DEFAULT_APP_SLOTS,
    show_default=True,
    help="Over how many slots writers spread: about as many as write at once.",
)
@settings.one_off(
    "--dry-run", is_flag=True, help="Print the SQL that would run, and change nothing."
)
@settings.one_off("--list", "listing", is_flag=True, help="List the tracked tables.")
@settings.output_format("table", "json")
@settings.mysql_url
def command(
    table: str | None,
    counter: str | None,
    by: tuple[str, ...],
    day: str | None,
    slots: int,
    dry_run: bool,
    listing: bool,
    format: str,
    mysql_url: str | None,
) -> None:
    """Keep a table's row count, by triggers, from now on.

    TABLE is a table of the application's: name (in the database of countersink), schema.name, or
    either part in backquotes. Writers go on. But where a transaction has the table in use, making a
    trigger waits for it, a second at a time, and whoever comes meanwhile waits behind; and ALTER
    TABLE waits while the rows are counted. LOCK TABLES on a tracked table is to be avoided. If it
    is interrupted, run it again. See docs/row-counts.md.
    """
    context = click.get_current_context()
    with Store(settings.needed(mysql_url, "mysql")) as store:
        if listing:
            if table is not None or counter or by or day or dry_run:
                raise Misuse("--list takes no table, nor options of one", context)
            tracked = store.tracked.list()
            if format == "json":
                output.write_json({"tables": [track_view.document(one) for one in tracked]})
            else:
                track_view.show_list(tracked)
            return
        if table is None:
            raise Misuse("name a table, or give --list", context)
        try:
            if dry_run:
                plan = store.tracked.plan(table, counter=counter, by=by, day=day, app_slots=slots)
                track_view.show_plan(plan, as_json=format == "json")
                return
            with progress.rows("track", f"counting {table}") as shown:
                made = store.tracked.track(
                    table,
                    counter=counter,
                    by=by,
                    day=day,
                    app_slots=slots,
                    progress=shown,
                    notice=progress.say,
                )
        except StoreError:
            raise  # some of them are ValueErrors too
        except ValueError as error:
            raise Misuse(str(error), context) from error
        rows = store.row_count(made.counter)
    if format == "json":
        output.write_json({**track_view.document(made), "rows": rows})
    else:
        click.echo(f"tracking {track_view.described(made)}: {rows:,} rows")
