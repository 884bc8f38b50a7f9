"""``countersink compact``."""

from datetime import date
from functools import partial
from typing import Final

import click

from countersink.cli import compact_view, exits, settings
from countersink.cli.failures import Failure
from countersink.cli.types import COUNTER, DAY
from countersink.schedules.compaction import Selection, compact
from countersink.schedules.mover import open_tables
from countersink.store.errors import UnknownCounter

_DEFAULT: Final = Selection()


@click.command("compact", cls=settings.Command)
@settings.one_off("--counter", metavar="COUNTER", type=COUNTER, help="Only this one.")
@settings.one_off(
    "--before",
    type=DAY,
    metavar="DAY",
    help="Only days before this one, over or not.  [default: what is over, and crowded keys]",
)
@settings.one_off(
    "--grace",
    type=click.FloatRange(0),
    default=_DEFAULT.grace_s,
    show_default=True,
    metavar="SECONDS",
    help="How long a day (hour, quarter) has been over before it is compacted whole.",
)
@settings.one_off(
    "--threshold",
    type=click.IntRange(1),
    default=_DEFAULT.threshold,
    show_default=True,
    metavar="ROWS",
    help="Until then only keys with more rows than this are compacted.",
)
@settings.one_off(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=_DEFAULT.share,
    show_default=True,
    help="Share of the time spent working; the rest is pause, for the sake of writers.",
)
@settings.output_format("table", "json")
@settings.mysql_url
def command(
    counter: str | None,
    before: date | None,
    grace: float,
    threshold: int,
    share: float,
    format: str,
    mysql_url: str | None,
) -> int:
    """Add up the rows of each key into one, now.

    The scheduler does it by itself, at 4 % of the time. Safe at any time and to interrupt:
    totals stay the same, and writers go on. Rows that an open transaction holds are left for the
    next run. The status is 3 when keys had to be left as they are, because their sum does not fit
    64 bits or their bucket belongs to no policy.
    """
    what = Selection(
        counter=counter, before=before, grace_s=grace, threshold=threshold, share=share
    )
    connect = partial(open_tables, settings.needed(mysql_url, "mysql"))
    try:
        with compact_view.progress() as progress:
            done = compact(connect, what, progress=progress)
    except UnknownCounter as error:
        raise Failure(f"{error}: countersink totals --all lists what was") from error
    if format == "json":
        compact_view.write(done)
    else:
        compact_view.show(done)
    return exits.DIFFERS if done.overflowing or done.unknown else exits.DONE
