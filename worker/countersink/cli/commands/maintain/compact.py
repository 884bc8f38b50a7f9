"""``countersink compact``: flags, and what it prints of buckets compacted and left out; the work is
in ``schedules/jobs/compaction.py``."""

from collections.abc import Sequence
from datetime import date
from functools import partial
from typing import Final

import click

from countersink.cli import output, progress, settings
from countersink.cli.errors import Exit, Failure
from countersink.cli.settings import COUNTER, DAY
from countersink.schedules.jobs.compaction import Compacted, CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.schedules.jobs.ranges import BucketKey
from countersink.store.errors import UnknownCounter
from countersink.store.sql import label_text

_DEFAULT: Final = CompactOptions()


@click.command("compact", cls=settings.Command)
@settings.one_off("--counter", type=COUNTER, help="Only this counter.")
@settings.one_off(
    "--before",
    type=DAY,
    help="Only days before this day, over or not.  [default: days that are over, and crowded keys]",
)
@settings.one_off(
    "--grace",
    type=click.FloatRange(0),
    default=_DEFAULT.grace_s,
    metavar="SECONDS",
    help="How long ago a day (hour, quarter) must have ended before all of it is compacted.",
)
@settings.one_off(
    "--threshold",
    type=click.IntRange(1),
    default=_DEFAULT.threshold,
    metavar="ROWS",
    help="Before --grace is over, only keys with more rows than this are compacted.",
)
@settings.one_off(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=_DEFAULT.share,
    help="Share of the time spent working; the rest is pause, to spare writers.",
)
@settings.of_mysql("table", "json")
def command(
    counter: str | None,
    before: date | None,
    grace: float,
    threshold: int,
    share: float,
    format: str,
    mysql_url: str | None,
) -> int:
    """Compact now: add up the rows of each key in one row.

    The scheduled job does this by itself, in 4 % of the time. It is safe at any time and may be
    interrupted: totals stay the same, and writers go on. Rows that an open transaction holds are
    left for the next run. The status is 3 if keys were left as they are, because their sum does not
    fit 64 bits, their different members cannot be read, or their bucket belongs to no policy.
    """
    what = CompactOptions(
        counter=counter, before=before, grace_s=grace, threshold=threshold, share=share
    )
    connect = partial(open_tables, settings.needed(mysql_url, "mysql"))
    try:
        with progress.share("compact", "compacting", _described) as show:
            done = compact(connect, what, progress=show)
    except UnknownCounter as error:
        raise Failure(f"{error}: countersink totals --all lists what was") from error
    output.write_result(format, _document(done), partial(_show, done))
    wrong = done.overflowing or done.unreadable or done.unknown
    return Exit.DIFFERS if wrong else Exit.DONE


_NAMED: Final = 10
"""Places named; the others are counted."""


def _described(done: Compacted) -> tuple[float, str]:
    return done.share_done, f"{done.rows_before:,} rows became {done.rows_after:,}"


def _document(done: Compacted) -> dict[str, object]:
    """The result as JSON."""
    figures = output.document(done, ("rows_before", "rows_after", "ranges"))
    names = ("busy", "overflowing", "unreadable", "unknown")
    places = {name: _places(getattr(done, name)) for name in names}
    return {**figures, "seconds": round(done.seconds, 3), **places}


def _places(places: Sequence[BucketKey]) -> list[dict[str, object]]:
    return [
        {"counter": place.counter, "bucket": label_text(place.bucket), "key": _key(place)}
        for place in places
    ]


def _key(place: BucketKey) -> str | None:
    return None if place.key is None else place.key.decode("utf-8", "surrogateescape")


def _show(done: Compacted) -> None:
    """The result for people."""
    if done.rows_before:
        figures = (done.rows_before, done.rows_after, output.ago(done.seconds))
        output.write_rows((">rows before", ">rows after", ">time"), [figures])
    elif not (done.busy or done.overflowing or done.unreadable):
        click.echo(f"There was nothing to compact ({output.ago(done.seconds)}).")
    for what, places in done.left.items():
        click.echo(f"{what[0].upper()}{what[1:]}: {len(places):,}")
        for place in places[:_NAMED]:
            key = _key(place)
            bucket = f"  {place.counter} {label_text(place.bucket)}"
            click.echo(bucket if key is None else f"{bucket} '{output.printable(key)}'")
        if len(places) > _NAMED:
            click.echo(f"  and {len(places) - _NAMED:,} more: --format json names all")
