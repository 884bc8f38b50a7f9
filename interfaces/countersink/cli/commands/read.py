"""``countersink totals``, ``countersink top`` and ``countersink export``: flags with help, table,
freshness notice and texts; columns are in ``counting/totals/query.py``, file formats in
``reads/formats.py``."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, BinaryIO, Final
from zoneinfo import ZoneInfo

import click
from redis import Redis

from countersink.cli import output, settings
from countersink.cli.errors import Failure, Misuse, values_checked
from countersink.cli.settings import COUNTER, EDGE, KEY, LAST, ZONE, Checked
from countersink.counting.totals.answer import rows
from countersink.counting.totals.query import (
    COLUMNS,
    EXPORTED,
    Answer,
    By,
    Query,
    Row,
    read_by,
    read_where,
)
from countersink.counting.totals.selection import (
    KeyMatch,
    Last,
    Selection,
    checked_where,
    wanted_keys,
)
from countersink.counting.totals.snapshot import Snapshot
from countersink.database.session import Session
from countersink.reads import Reads
from countersink.reads.formats import csv_bytes, ndjson_bytes, parquet_writer, replaced_file
from countersink.runtime.texts import iso

BY: Final = Checked("by", read_by)
WHERE: Final = Checked("dimension", read_where)


def _keys(flag: str, name: str, help: str) -> Callable[[settings.Decorated], settings.Decorated]:
    """Decorator: keys, or how keys begin."""
    metavar = "TEXT" if name.endswith("prefix") else "KEY"
    return settings.one_off(flag, name, type=KEY, multiple=True, metavar=metavar, help=help)


_MATCH: Final = ("keys", "prefix", "contains", "exclude_keys", "exclude_prefix")
_OPTIONS: Final = (
    settings.one_off(
        "--where",
        type=WHERE,
        multiple=True,
        metavar="DIMENSION=VALUE",
        help="Only events with this value of a dimension; repeatable. Empty: those without one.",
    ),
    _keys("--key", "keys", "Only this key; repeatable."),
    _keys("--prefix", "prefix", "Keys that begin with this; repeatable, and in addition to --key."),
    settings.one_off(
        "--search",
        "contains",
        type=KEY,
        default="",
        metavar="TEXT",
        help="Only keys that contain this.",
    ),
    _keys("--exclude-key", "exclude_keys", "Without this key; repeatable."),
    _keys("--exclude-prefix", "exclude_prefix", "Without keys that begin with this; repeatable."),
    settings.one_off(
        "--from",
        "start",
        type=EDGE,
        metavar="DAY|TIME",
        help="First day, or the time at which the range begins: 2026-11-21T08:00Z.",
    ),
    settings.one_off(
        "--to",
        "end",
        type=EDGE,
        metavar="DAY|TIME",
        help="Last day, inclusive, or the time before which the range ends.",
    ),
    settings.one_off(
        "--last",
        type=LAST,
        metavar="24h|90m|7d",
        help="Instead of --from and --to: so many minutes, hours or days up to now. Days are whole"
        " days, today's included; the rest is whole buckets, the one that is open now included.",
    ),
    settings.one_off(
        "--time-zone",
        type=ZONE,
        help="Time zone of days, hours and months: an IANA name.  [default: each counter's own]",
    ),
)


def chosen_totals(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: the options that choose totals; the command gets them as a ``selection`` that
    lacks its counter.
    """

    @wraps(function)
    def choosing(*, start: date | None, end: date | None, last: Last | None, **given: Any) -> None:
        zone = given.pop("time_zone")
        with values_checked():
            keys = wanted_keys(None, None, KeyMatch(**{name: given.pop(name) for name in _MATCH}))
            selection = Selection(
                keys=keys,
                where=checked_where(given.pop("where")),
                start=_of_zone(start, zone),
                end=_of_zone(end, zone),
                last=last,
                time_zone=zone,
            )
        function(selection=selection, **given)

    return settings.together(*_OPTIONS)(choosing)


def _of_zone(edge: date | None, zone: str | None) -> date | None:
    """A time without an offset is of the time zone of the question."""
    if not isinstance(edge, datetime) or edge.utcoffset() is not None:
        return edge
    if zone is None:
        raise ValueError(
            f"{edge.isoformat(timespec='minutes')} has no time zone, and guessing one would be"
            " wrong by hours: add Z, an offset such as +01:00, or --time-zone"
        )
    placed = edge.replace(tzinfo=ZoneInfo(zone))
    if placed.utcoffset() != placed.replace(fold=1).utcoffset():
        raise ValueError(
            f"{edge.isoformat(timespec='minutes')} happens twice or not at all in {zone}, where"
            " clocks are changed then: add an offset, such as +01:00"
        )
    return placed


_SHOWN: Final = (
    settings.one_off(
        "--unique",
        is_flag=True,
        help="How many different members there were (producer.seen): an exact number, or an"
        " estimate (≈) with bounds that hold with 95 %.",
    ),
    settings.one_off(
        "--against",
        type=click.Choice(["previous"]),
        help="Beside each total that of the window of the same length before.",
    ),
    settings.one_off(
        "--include-pending", is_flag=True, help="Add exactly what is still in the queue."
    ),
    settings.output_format("table", "json", "csv"),
    settings.urls("redis_url", "mysql_url", "mysql_read_url"),
)


@click.command("totals", cls=settings.Command)
@click.argument("counter", type=COUNTER, required=False, metavar="COUNTER|--all")
@settings.one_off(
    "--all", "everything", is_flag=True, help="Every counter; each row names its counter."
)
@settings.one_off(
    "--by",
    type=BY,
    metavar=f"{'|'.join(COLUMNS)}|DIMENSION,…",
    help="What the rows are; or dimensions of the counter, such as page,country."
    "  [default: day; key with --top; counter with --all]",
)
@chosen_totals
@settings.one_off(
    "--top",
    type=click.IntRange(1),
    metavar="N",
    help="The N keys or counters with the largest totals.",
)
@settings.together(*_SHOWN)
def totals_command(
    counter: str | None,
    everything: bool,
    by: By | None,
    selection: Selection,
    top: int | None,
    **shown: Any,
) -> None:
    """Show totals: by day, hour, minute or month, by key, by dimensions, by counter, or one figure.

    Days without counts are 0; keys with the largest totals come first. Without --from and --to, it
    shows the whole range that has data. Days are in the counter's own time zone (UTC by default);
    totals in another one (--time-zone) are exact, or refused, and so are those of times and of the
    last minutes and hours (--last). Redis says how fresh the totals are; without Redis, that is not
    known.
    """
    if (counter is None) is not everything:
        raise Misuse("name one COUNTER, or say --all")
    by = by or ("counter" if everything else "key" if top else "day", ())
    _show(replace(selection, counter=counter), by, top, **shown)


@click.command("top", cls=settings.Command)
@click.argument("counter", type=COUNTER)
@chosen_totals
@settings.one_off(
    "--by",
    type=Checked("dimensions", partial(read_by, words=("key",))),
    metavar="key|DIMENSION,…",
    help="What the rows are: keys, or dimensions, such as page,country.  [default: key]",
)
@settings.one_off("--top", type=click.IntRange(1), default=10, metavar="N", help="How many.")
@settings.together(*_SHOWN)
def top_command(counter: str, by: By | None, selection: Selection, top: int, **shown: Any) -> None:
    """Show the keys of a counter, or values of its dimensions, with the largest totals.

    With --last 24h --against previous: what is ahead now, and how that has changed since the 24
    hours before.
    """
    _show(replace(selection, counter=counter), by or ("key", ()), top, **shown)


def _show(
    selection: Selection,
    by: By,
    top: int | None,
    *,
    unique: bool,
    against: str | None,
    include_pending: bool,
) -> None:
    with values_checked():
        query = Query(
            selection,
            by=by[0],
            dimensions=by[1],
            top=top,
            against_previous=against is not None,
            include_pending=include_pending,
            unique=unique,
        )
    if include_pending:
        settings.redis_url()
    store = settings.open_store()
    with values_checked():
        answer = Reads(store, _queue("countersink-totals")).ask(query)
    if answer.unknown_because is not None:
        output.say(f"how fresh this is is not known: {answer.unknown_because}")
    listed = list(answer.documents())
    document = {"counter": selection.counter, "rows": listed, **answer.limits()}
    show = partial(_print, answer, listed, top)
    output.write_result(document, show, csv=(answer.columns, listed))
    for limit in _limits(answer, by):
        output.say(limit)


def _limits(answer: Answer, by: By) -> Iterator[str]:
    """What limits an answer, in sentences."""
    if answer.told_from is not None:
        unit, (wider, option) = by[0].removeprefix("key-"), _WIDER[by[0]]
        yield (
            f"the {unit}s before {iso(answer.told_from)} are rolled up to {wider}: --by {option}"
            " has them"
        )
    if answer.since is not None:
        yield (
            f"events from before {iso(answer.since)} are missing: the breakdown that answers this"
            " was declared then"
        )
    if answer.truncated:
        yield (
            "what was counted spans too long a time to be shown whole: this is the part with most"
            " days; --from and --to choose another"
        )


_WIDER: Final = {
    "day": ("months", "month"),
    "key-day": ("months", "key-month"),
    "hour": ("wider buckets", "day"),
    "minute": ("wider buckets", "day"),
}
"""What rows are rolled up to, and which option shows it, by what they are by."""


def _queue(client_name: str) -> Redis | None:
    """Redis, which tells how fresh totals are; None where it is not configured."""
    return settings.open_queue(client_name) if settings.noted("redis_url") else None


def _print(answer: Answer, rows: Sequence[dict[str, Any]], top: int | None) -> None:
    totals = [row["total"] for row in rows]
    shown_names = [name for name in answer.columns if name != "estimate"]
    named = [name for name in shown_names if name not in FIGURES]
    charted = bool(named) and len(totals) > 1
    largest = max(totals, default=0)
    compared = "previous" in answer.columns
    shown: list[Sequence[object]] = [
        (
            *(_figure(row, name) for name in shown_names),
            *((_change(row["total"], row["previous"]),) if compared else ()),
            output.bar(row["total"], largest) if charted else "",
        )
        for row in rows
    ]
    if charted and top is None and "estimate" not in answer.columns:  # those are no sum
        rest = ("", "") if compared else ()
        shown.append(("all", *([""] * (len(named) - 1)), sum(totals), *rest, ""))
    if totals:
        columns = [f">{name}" if name in FIGURES else name for name in shown_names]
        output.write_rows((*columns, *((f">{CHANGE}",) if compared else ()), " "), shown)
    elif answer.told_from is None:  # else there may well be counts: what is said of its limits
        click.echo("Nothing was counted in this range.")
    if answer.window is not None:
        window = answer.window.document()
        until = "to" if isinstance(answer.window.end, datetime) else "to the end of"
        click.echo(f"From {window['from']} {until} {window['to']}.")
    click.echo(_freshness(answer))


FIGURES: Final = ("total", "previous", "low", "high")
"""Columns of numbers."""
CHANGE: Final = "change"
"""The column of a table with the change from ``previous`` to ``total``."""


def _figure(row: dict[str, Any], name: str) -> object:
    """A cell; an estimate says that it is one."""
    value: object = row[name]
    return f"≈ {value:,}" if name == "total" and row.get("estimate") else value


def _change(total: int, previous: int | None) -> str:
    """By how much a total has changed, in percent of what it was."""
    if not previous:
        return ""
    return f"{(total - previous) / abs(previous):+.0%}"


def _freshness(answer: Answer) -> str:
    known = iso(answer.complete_up_to)
    if known is None:
        return "How fresh this is is not known: Redis was not asked, or did not answer."
    included = f", with {answer.pending:,} entries from the queue" if answer.pending else ""
    return f"Complete up to {known}{included}."


Rows = Iterator[Row]
Write = Callable[[BinaryIO, Sequence[str], Rows], object]


@click.command("export", cls=settings.Command)
@click.argument("counters", type=COUNTER, nargs=-1, metavar="COUNTER…|--all")
@settings.one_off("--all", "everything", is_flag=True, help="Every counter.")
@settings.one_off(
    "--by",
    type=Checked("layout", partial(read_by, words=EXPORTED)),
    default="key-day",
    metavar=f"{'|'.join(EXPORTED)}|DIMENSION,…",
    help="What the rows are; or dimensions of the counters, such as page,country.",
)
@chosen_totals
@settings.one_off(
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file, which gets this name when it is complete.  [default: stdout]",
)
@settings.output_format("csv", "ndjson", "parquet")
@settings.urls("redis_url", "mysql_url", "mysql_read_url")
def export_command(
    counters: Sequence[str],
    everything: bool,
    by: By,
    selection: Selection,
    file: Path | None,
) -> None:
    """Export all totals of counters for other programs: CSV, NDJSON or Parquet.

    All rows are of one snapshot of the database, whatever is counted meanwhile, and memory does not
    grow with their number. Increments that are still in the queue are missing; stderr says how
    fresh the export is. Keys are in the order of their bytes.
    """
    if bool(counters) is everything:
        raise Misuse("name one COUNTER or more, or say --all")
    format = settings.noted("format")
    if format == "parquet" and file is None and sys.stdout.isatty():
        raise Misuse("a Parquet file is not for a terminal: give --output FILE")
    write = _export_writer(format)
    store = settings.open_store()
    # Before the snapshot: what was acknowledged by now is in it.
    complete, _ = Reads(store, _queue("countersink-export")).applied_up_to()
    query = Query(selection, by=by[0], dimensions=by[1], streamed=True)
    found: dict[str, Answer] = {}
    number = 0

    def each(session: Session) -> Rows:
        """The rows, read while they are written."""
        nonlocal number
        for name in (
            Snapshot(session).names(lambda name: True) if everything else dict.fromkeys(counters)
        ):
            limits = found[name] = Answer(query.columns)
            one = replace(query, selection=replace(selection, counter=name))
            # One for each: what it remembers of a counter grows with its buckets.
            for row in rows(Snapshot(session), one, limits):
                number += 1
                yield name, *row

    with store.reading() as session, _destination(file) as opened, values_checked():
        write(opened, query.columns, each(session))
    limited: dict[str, list[str]] = {}
    for name, limits in found.items():
        for limit in _limits(limits, by):
            limited.setdefault(limit, []).append(name)
    for limit, named in limited.items():
        output.say(f"{output.few(named)}: {limit}")
    fresh = f"complete up to {iso(complete)}" if complete else "how fresh it is is not known"
    of = f"{len(found):,} counter{'s' * (len(found) != 1)}"
    output.say(f"{number:,} row{'s' * (number != 1)} of {of}, {fresh}")


def _export_writer(format: str) -> Write:
    """Writes rows, with these columns, to a file."""
    if format == "parquet":
        try:
            return parquet_writer()
        except ImportError as error:
            raise Failure(
                "Parquet needs pyarrow: pip install 'countersink[parquet]', or use --format csv"
            ) from error
    parts = ndjson_bytes
    if format == "csv":
        parts = partial(csv_bytes, spreadsheet=bool(settings.noted("spreadsheet")))

    def write(file: BinaryIO, columns: Sequence[str], each: Rows) -> None:
        for part in parts(columns, each):
            file.write(part)

    return write


@contextmanager
def _destination(file: Path | None) -> Iterator[BinaryIO]:
    if file is not None:
        with replaced_file(file) as opened:
            yield opened
        return
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()
