"""``countersink totals``."""

from collections.abc import Sequence
from datetime import date
from typing import NoReturn

import click

from countersink.cli import output, settings
from countersink.cli.chosen_totals import chosen_totals
from countersink.cli.failures import Failure, Misuse
from countersink.cli.types import COUNTER
from countersink.reads import Reads
from countersink.reads.query import COLUMNS, Answer, Query, ask
from countersink.store import Store, StoreError, UnknownCounter
from countersink.stream.connection import connect


@click.command("totals", cls=settings.Command)
@click.argument("counter", type=COUNTER, required=False, metavar="COUNTER|--all")
@settings.one_off("--all", "everything", is_flag=True, help="Every counter, named in each row.")
@settings.one_off(
    "--by",
    type=click.Choice(list(COLUMNS)),
    help="What the rows are.  [default: day; key with --top; counter with --all]",
)
@chosen_totals
@settings.one_off(
    "--top",
    type=click.IntRange(1),
    metavar="N",
    help="The N keys or counters with the largest totals.",
)
@settings.one_off(
    "--include-pending", is_flag=True, help="Add, exactly, what is still in the queue."
)
@settings.output_format("table", "json", "csv")
@settings.redis_url
@settings.mysql_url
def command(
    counter: str | None,
    everything: bool,
    by: str | None,
    keys: Sequence[str],
    start: date | None,
    end: date | None,
    time_zone: str | None,
    top: int | None,
    include_pending: bool,
    format: str,
    redis_url: str | None,
    mysql_url: str | None,
) -> None:
    """Show totals: by day, hour or month, by key, by counter, or one figure.

    Days without counts are 0; keys come with the largest total first. Without --from and --to it
    is the whole range that has data. Days are those of the counter's own time zone (UTC, where
    nobody has set another); those of another one (--time-zone) come exactly, or not at all. Redis
    is asked how fresh the totals are; without it, that is not known.
    """
    if (counter is None) is not everything:
        _refuse("name one COUNTER, or say --all")
    by = by or ("counter" if everything else "key" if top else "day")
    if top and by not in ("key", "counter"):
        _refuse(f"--top goes with --by key or --by counter, not --by {by}")
    if start and end and end < start:
        _refuse(f"the range ends ({end}) before it begins ({start})")
    query = Query(
        counter=counter,
        by=by,
        keys=keys,
        start=start,
        end=end,
        time_zone=time_zone,
        top=top,
        include_pending=include_pending,
    )
    if include_pending:
        settings.needed(redis_url, "redis")
    answer = _ask(query, settings.needed(mysql_url, "mysql"), redis_url)
    if answer.unknown_because is not None:
        click.echo(
            f"countersink: how fresh this is is not known: {answer.unknown_because}", err=True
        )
    if format == "json":
        output.write_json(
            {
                "counter": counter,
                "rows": answer.rows,
                "complete_up_to": output.iso(answer.complete_up_to),
                "rolled_up_to": answer.rolled_up_to and answer.rolled_up_to.isoformat(),
            }
        )
    elif format == "csv":
        output.write_csv(answer.columns, answer.rows)
    else:
        _print(answer, top)
    if answer.days_gone and (answer.rows or format != "table"):
        click.echo(f"countersink: {_gone(answer)}", err=True)
    if answer.truncated:
        click.echo(
            "countersink: this is the latest part of a longer series: --from and --to choose"
            " another one",
            err=True,
        )


def _ask(query: Query, mysql_url: str, redis_url: str | None) -> Answer:
    client = connect(redis_url, client_name="countersink-totals") if redis_url else None
    with Store(mysql_url) as store:
        try:
            return ask(Reads(store, client), query)
        except UnknownCounter as error:
            hint = (
                "" if query.include_pending else "; if it was a moment ago, add --include-pending"
            )
            raise Failure(f"{error}: countersink totals --all lists what was{hint}") from error
        except StoreError:
            raise  # some of them are ValueErrors too
        except ValueError as error:
            _refuse(str(error))


def _refuse(why: str) -> NoReturn:
    raise Misuse(why, click.get_current_context())


def _print(answer: Answer, top: int | None) -> None:
    totals = [total for row in answer.rows if isinstance(total := row["total"], int)]
    charted = len(answer.columns) > 1 and len(totals) > 1
    largest = max(totals, default=0)
    table = output.table({name: name == "total" for name in answer.columns} | {" ": False})
    for row, total in zip(answer.rows, totals, strict=True):
        cells = (output.cell(row[name]) for name in answer.columns)
        table.add_row(*cells, output.bar(total, largest) if charted else "")
    if charted and top is None:
        table.add_row("all", *([""] * (len(answer.columns) - 2)), output.cell(sum(totals)), "")
    if totals:
        output.write_table(table)
    elif answer.days_gone:
        # There may well be counts in this range: they are not to be told by the day.
        sentence = _gone(answer)
        click.echo(f"{sentence[0].upper()}{sentence[1:]}.")
    else:
        click.echo("Nothing was counted in this range.")
    click.echo(_freshness(answer))


def _gone(answer: Answer) -> str:
    return f"the days before {answer.rolled_up_to} are rolled up to months: --by month has them"


def _freshness(answer: Answer) -> str:
    known = output.iso(answer.complete_up_to)
    if known is None:
        return "How fresh this is is not known: Redis was not asked, or did not answer."
    included = f", with {answer.pending:,} entries from the queue" if answer.pending else ""
    return f"Complete up to {known}{included}."
