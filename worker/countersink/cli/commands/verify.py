"""``countersink verify``."""

import click

from countersink.cli import exits, progress, settings, verify_view
from countersink.cli.failures import Misuse
from countersink.cli.server_errors import sentence_of
from countersink.cli.types import COUNTER
from countersink.cli.verify_view import Mending
from countersink.store import Store, StoreError, Unavailable
from countersink.store.verify import Verified, open_session, verify


@click.command("verify", cls=settings.Command)
@click.argument("table", required=False)
@settings.one_off("--counter", metavar="COUNTER", type=COUNTER, help="Only this counter.")
@settings.one_off(
    "--repair", is_flag=True, help="Mend what is wrong with tracked tables, beside live writes."
)
@settings.output_format("table", "json")
@settings.mysql_url
def command(
    table: str | None, counter: str | None, repair: bool, format: str, mysql_url: str | None
) -> int:
    """Prove that nothing was lost or doubled in the tables.

    Everything that was ever applied is in a ledger of its own, which compaction and retention do
    not touch. For each counter, slots and months must be equal to it; and for each tracked table
    the counter must be equal to the rows that there are. Safe at any time, beside live traffic. The
    status is 3 when something differs.

    TABLE, or its counter, is the only tracked table to look at, in all the ways in which it is
    tracked; --counter is one of them. With --repair its triggers are made
    again where they are missing and its rows are counted again; the status is then 3 when something
    still differs.
    """
    context = click.get_current_context()
    if table is not None and counter is not None:
        raise Misuse("give a table or --counter, not both", context)
    url = settings.needed(mysql_url, "mysql")
    mending = None
    try:
        done = _verify(url, counter, table)
    except StoreError:
        raise  # some of them are ValueErrors too
    except ValueError as error:
        raise Misuse(str(error), context) from error
    if repair:
        mending = _repair(url, done)
        done = _verify(url, counter, table)
    if format == "json":
        verify_view.write(done, mending)
    else:
        verify_view.show(done, mending)
    return exits.DONE if done.agrees else exits.DIFFERS


def _verify(url: str, counter: str | None, table: str | None) -> Verified:
    with open_session(url) as session, progress.looking("verify", "verifying") as looking:
        return verify(session, counter, table=table, looking=looking)


def _repair(url: str, found: Verified) -> Mending:
    """Mend each tracked table that something is wrong with."""
    repaired, failed = [], dict[str, str]()
    with Store(url) as store, progress.rows("verify", "counting rows") as shown:
        for counter in sorted(_wrong(store, found)):
            try:
                repaired.append(
                    store.tracked.repair(counter=counter, progress=shown, notice=progress.say)
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
