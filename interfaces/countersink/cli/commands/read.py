"""``countersink totals``, ``top`` and ``export``: their flags, tables and texts, and the freshness
of totals (the time up to which they are complete).

See ``counting/totals/query.py`` for the columns, ``reads/formats.py`` for the file formats."""

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
from countersink.cli.errors import Failure, Misuse
from countersink.cli.settings import values_checked
from countersink.cli.values import COUNTER, END, KEY, LAST, START, ZONE, Checked
from countersink.counting.totals.answer import check_keys, rows
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
from countersink.runtime.texts import DayName, NamedRange, iso, plural

BY: Final = Checked("by", read_by)
WHERE: Final = Checked("dimension", read_where)


def _keys(flag: str, name: str, help: str) -> Callable[[settings.Decorated], settings.Decorated]:
    """Decorator that adds the repeatable option ``flag`` for keys or, if ``name`` ends in "prefix",
    for prefixes of keys. ``name`` is the argument in which click passes the values."""
    metavar = "TEXT" if name.endswith("prefix") else "KEY"
    return settings.one_off(flag, name, type=KEY, multiple=True, metavar=metavar, help=help)


Edge = date | DayName | None
"""One end of a range, as a user gives it."""
_MATCH: Final = ("keys", "prefix", "contains", "exclude_keys", "exclude_prefix")
_OPTIONS: Final = (
    settings.one_off(
        "--where",
        type=WHERE,
        multiple=True,
        metavar="DIMENSION=VALUE",
        help="Only events with this value of a dimension; repeatable. Empty: events without it.",
    ),
    _keys("--key", "keys", "Only this key; repeatable."),
    _keys("--prefix", "prefix", "Keys with this prefix, in addition to --key; repeatable."),
    settings.one_off(
        "--search",
        "contains",
        type=KEY,
        default="",
        metavar="TEXT",
        help="Only keys that contain this text.",
    ),
    _keys("--exclude-key", "exclude_keys", "Without this key; repeatable."),
    _keys("--exclude-prefix", "exclude_prefix", "Without keys with this prefix; repeatable."),
    settings.one_off(
        "--from",
        "start",
        type=START,
        metavar="DAY|WEEK|TIME",
        help="First day, or the time at which the range begins: 2026-11-21T08:00Z. A day is"
        " 2026-11-21, today, yesterday, or monday to sunday: the last one, today included. A week"
        " such as 2026-W48 begins on its Monday.",
    ),
    settings.one_off(
        "--to",
        "end",
        type=END,
        metavar="DAY|WEEK|TIME",
        help="Last day, inclusive, or the time before which the range ends. A week ends on its"
        " Sunday.",
    ),
    settings.one_off(
        "--last",
        type=LAST,
        metavar="24h|90m|7d|2w",
        help="Window of minutes, hours, days or weeks up to now, in place of --from and --to. It"
        " has whole weeks from Monday on including this one, whole days including today, or whole"
        " buckets including the open one.",
    ),
    settings.one_off(
        "--time-zone",
        type=ZONE,
        help="Time zone of days and other units: an IANA name.  [default: each counter's own]",
    ),
)


def chosen_totals(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options that select totals. The command's function gets their values
    as its argument ``selection``. Its ``counter`` is None: the function sets the counter itself."""

    @wraps(function)
    def decorated(*, start: Edge, end: Edge, last: Last | NamedRange | None, **given: Any) -> None:
        zone = given.pop("time_zone")
        with values_checked():
            if last is not None and (start or end):
                raise ValueError("give --from and --to, or --last, not both")
            start, end = _with_zone(start, zone), _with_zone(end, zone)
            if isinstance(start, DayName) or isinstance(end, DayName):
                start, end, last = None, None, NamedRange(start, end)
            keys = wanted_keys(None, None, KeyMatch(**{name: given.pop(name) for name in _MATCH}))
            selection = Selection(
                keys=keys,
                where=checked_where(given.pop("where")),
                start=start,
                end=end,
                last=last,
                time_zone=zone,
            )
        function(selection=selection, **given)

    return settings.together(*_OPTIONS)(decorated)


def _with_zone(edge: Edge, zone: str | None) -> Edge:
    """Return a time without a UTC offset as the same local time with the time zone ``zone``. Return
    a day, a time with an offset, or None unchanged.

    Raises:
        ValueError: the time has no offset and ``zone`` is None; or clocks change at that time, so
            that it happens twice or not at all.
    """
    if not isinstance(edge, datetime) or edge.utcoffset() is not None:
        return edge
    if zone is None:
        raise ValueError(
            f"{edge.isoformat(timespec='minutes')} has no time zone: add Z, an offset such as"
            " +01:00, or --time-zone"
        )
    placed = edge.replace(tzinfo=ZoneInfo(zone))
    if placed.utcoffset() != placed.replace(fold=1).utcoffset():
        raise ValueError(
            f"{edge.isoformat(timespec='minutes')} happens twice or not at all in {zone}, where"
            " clocks change at that time: add an offset, such as +01:00"
        )
    return placed


_SHOWN: Final = (
    settings.one_off(
        "--unique",
        is_flag=True,
        help="Count different members (producer.seen): an exact number, or an estimate (≈) with"
        " bounds that hold with 95 %.",
    ),
    settings.one_off(
        "--against",
        type=click.Choice(["previous"]),
        help="Show also each total of the previous window of the same length, and the change. With"
        " --by day, week or month: of the whole one before, unless the row's own is not over.",
    ),
    settings.one_off(
        "--include-pending", is_flag=True, help="Add the increments that are still in the queue."
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
    help="Unit of a row; or dimensions of the counter, such as page,country."
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
    """Show totals: by day, week, hour, minute, month, key, dimensions or counter, or one number.

    Days without counts are 0; keys with the largest totals come first. Without --from and --to, the
    command shows the whole range that has data. Days are in the counter's own time zone (UTC by
    default). Totals in another time zone (--time-zone), between times, and of the last minutes and
    hours (--last) are exact or refused. The freshness of totals comes from Redis; without Redis, it
    is unknown.
    """
    if (counter is None) is not everything:
        raise Misuse("give one COUNTER, or --all")
    by = by or ("counter" if everything else "key" if top else "day", ())
    _show(replace(selection, counter=counter), by, top, **shown)


@click.command("top", cls=settings.Command)
@click.argument("counter", type=COUNTER)
@chosen_totals
@settings.one_off(
    "--by",
    type=Checked("dimensions", partial(read_by, words=("key",))),
    metavar="key|DIMENSION,…",
    help="Unit of a row: key, or dimensions, such as page,country.  [default: key]",
)
@settings.one_off("--top", type=click.IntRange(1), default=10, metavar="N", help="Number of rows.")
@settings.together(*_SHOWN)
def top_command(counter: str, by: By | None, selection: Selection, top: int, **shown: Any) -> None:
    """Show the keys of a counter, or values of its dimensions, with the largest totals.

    With --last 24h --against previous, it shows the largest totals of the last 24 hours, and their
    change from the 24 hours before.
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
        output.say(f"freshness unknown: {answer.unknown_because}")
    listed = list(answer.documents())
    document = {"counter": selection.counter, "rows": listed, **answer.limits()}
    show = partial(_print, answer, listed, by, top)
    output.write_result(document, show, csv=(answer.columns, listed))
    for limit in _limits(answer, by):
        output.say(limit)


def _limits(answer: Answer, by: By) -> Iterator[str]:
    """Yield sentences for stderr that say which counts the answer lacks or does not show, and why.
    ``by`` names the unit of the answer's rows."""
    if answer.told_from is not None:
        unit, (wider, option) = by[0].removeprefix("key-"), _WIDER[by[0]]
        yield (
            f"the {unit}s before {iso(answer.told_from)} are rolled up to {wider}: --by {option}"
            " shows them"
        )
    if answer.since is not None:
        yield (
            f"events from before {iso(answer.since)} are missing: the breakdown for these totals"
            " was declared then"
        )
    if answer.truncated:
        yield (
            "the counts span too long a time: this is the part with most days; --from and --to"
            " select another part"
        )


_WIDER: Final = {
    "day": ("months", "month"),
    "week": ("months", "month"),
    "key-day": ("months", "key-month"),
    "hour": ("wider buckets", "day"),
    "minute": ("wider buckets", "day"),
}
"""For each ``--by`` whose rows may be rolled up: the wider buckets that then have their counts, and
the ``--by`` that shows these."""


def _queue(client_name: str) -> Redis | None:
    """Return a client of Redis, for the freshness of totals and the entries of
    ``--include-pending``. CLIENT LIST shows ``client_name``. None if no Redis is configured."""
    return settings.open_queue(client_name) if settings.option_value("redis_url") else None


def _print(answer: Answer, rows: Sequence[dict[str, Any]], by: By, top: int | None) -> None:
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
    if charted and top is None and "estimate" not in answer.columns:  # estimates have no sum
        rest = ("", "") if compared else ()
        shown.append(("all", *([""] * (len(named) - 1)), sum(totals), *rest, ""))
    if totals:
        marks = dict.fromkeys(FIGURES, ">") | dict.fromkeys(("key", *by[1]), "~")
        columns = [marks.get(name, "") + name for name in shown_names]
        output.write_rows((*columns, *((f">{CHANGE}",) if compared else ()), "- "), shown)
    elif answer.told_from is None:  # else there may be counts in wider buckets
        lacking = " What was counted without dimensions has only a key: --by key." if by[1] else ""
        click.echo(f"Nothing was counted in this range.{lacking}")
    if answer.window is not None:
        window = answer.window.document()
        until = "to" if isinstance(answer.window.end, datetime) else "to the end of"
        click.echo(f"From {window['from']} {until} {window['to']}.")
    click.echo(_freshness(answer))


FIGURES: Final = ("total", "previous", "low", "high")
"""Names of the columns that have numbers."""
CHANGE: Final = "change"
"""Heading of the column with the change from ``previous`` to ``total``."""


def _figure(row: dict[str, Any], name: str) -> object:
    """Return the value that a table shows in the column ``name`` of a row. ``≈`` marks the total if
    the row's ``estimate`` is true. An empty text becomes ``(no NAME)`` with the name of the column,
    such as ``(no key)``."""
    value: object = row[name]
    if value == "":
        return f"(no {name})"
    return f"≈ {value:,}" if name == "total" and row.get("estimate") else value


def _change(total: int, previous: int | None) -> str:
    """Return the change from ``previous`` to ``total`` as text with a sign, such as ``+25%``: in
    percent of the absolute value of ``previous``. It is empty if ``previous`` is 0 or None."""
    if not previous:
        return ""
    return f"{(total - previous) / abs(previous):+.0%}"


def _freshness(answer: Answer) -> str:
    known = iso(answer.complete_up_to)
    if known is None:
        return "Freshness unknown: Redis is not configured, or does not answer."
    entries = plural(answer.pending, "entry", "entries")
    included = f", with {entries} from the queue" if answer.pending else ""
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
    help="Unit of a row; or dimensions of the counters, such as page,country.",
)
@chosen_totals
@settings.one_off(
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file, which appears when it is complete.  [default: stdout]",
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

    All rows are of one snapshot of the database, also while counting goes on, and memory does not
    grow with their number. Increments that are still in the queue are missing; the freshness of the
    export is printed on stderr. Keys are in the order of their bytes.
    """
    if bool(counters) is everything:
        raise Misuse("give one COUNTER or more, or --all")
    format = settings.option_value("format")
    if format == "parquet" and file is None and sys.stdout.isatty():
        raise Misuse("a terminal cannot show Parquet: give --output FILE")
    write = _export_writer(format)
    store = settings.open_store()
    # Before the snapshot, which then has all entries acknowledged up to that time.
    complete, _ = Reads(store, _queue("countersink-export")).applied_up_to()
    query = Query(selection, by=by[0], dimensions=by[1], streamed=True)
    found: dict[str, Answer] = {}
    number = 0

    def each(session: Session) -> Rows:
        """Yield the rows of the export, read while earlier rows are written. Count them in
        ``number``, and put each counter's :class:`Answer` into ``found``, for :func:`_limits`."""
        nonlocal number
        for name in (
            Snapshot(session).names(lambda name: True) if everything else dict.fromkeys(counters)
        ):
            limits = found[name] = Answer(query.columns)
            one = replace(query, selection=replace(selection, counter=name))
            # One Snapshot for each counter, as its memory grows with the counter's buckets.
            snapshot = Snapshot(session)
            if not everything:
                check_keys(snapshot, one.selection)
            for row in rows(snapshot, one, limits):
                number += 1
                yield name, *row

    with store.reading() as session, _destination(file) as opened, values_checked():
        write(opened, query.columns, each(session))
    limited: dict[str, list[str]] = {}
    for name, limits in found.items():
        for limit in _limits(limits, by):
            limited.setdefault(limit, []).append(name)
    for limit, named in limited.items():
        output.say(f"{output.first_names(named)}: {limit}")
    freshness = f"complete up to {iso(complete)}" if complete else "freshness unknown"
    output.say(f"{plural(number, 'row')} of {plural(len(found), 'counter')}, {freshness}")


def _export_writer(format: str) -> Write:
    """Return the function that writes rows to a file in ``format``: csv, ndjson or parquet. Failure
    if the format is Parquet, and pyarrow is not installed."""
    if format == "parquet":
        try:
            return parquet_writer()
        except ImportError as error:
            raise Failure(
                "Parquet needs pyarrow: pip install 'countersink[parquet]', or use --format csv"
            ) from error
    parts = ndjson_bytes
    if format == "csv":
        parts = partial(csv_bytes, spreadsheet=bool(settings.option_value("spreadsheet")))

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
