"""``countersink export``."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import BinaryIO, NoReturn

import click

from countersink.cli import output, settings
from countersink.cli.chosen_totals import chosen_totals
from countersink.cli.failures import Failure, Misuse
from countersink.cli.types import COUNTER
from countersink.reads import Reads
from countersink.reads.files import whole
from countersink.reads.rows import COLUMNS, Value, Wanted, rows
from countersink.reads.writing import csv_bytes, ndjson_bytes
from countersink.store import RolledUp, Store, StoreError, UnknownCounter
from countersink.stream.connection import connect

Rows = Iterator[tuple[Value, ...]]
Write = Callable[[BinaryIO, Sequence[str], Rows], object]


@click.command("export", cls=settings.Command)
@click.argument("counters", type=COUNTER, nargs=-1, metavar="COUNTER…|--all")
@settings.one_off("--all", "everything", is_flag=True, help="Every counter.")
@settings.one_off(
    "--by",
    type=click.Choice(list(COLUMNS)),
    default="key-day",
    show_default=True,
    help="What the rows are.",
)
@chosen_totals
@settings.one_off(
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to: it gets this name when it is whole.  [default: stdout]",
)
@settings.output_format("csv", "ndjson", "parquet")
@settings.redis_url
@settings.mysql_url
def command(
    counters: Sequence[str],
    everything: bool,
    by: str,
    keys: Sequence[str],
    start: date | None,
    end: date | None,
    time_zone: str | None,
    file: Path | None,
    format: str,
    redis_url: str | None,
    mysql_url: str | None,
) -> None:
    """Write out all totals of counters, for other programs: CSV, NDJSON or Parquet.

    Everything is of one snapshot of the database, whatever is counted meanwhile, and memory does
    not grow with it. What is still in the queue is not in it; stderr says how fresh it is. Keys
    come in the order of their bytes.
    """
    if bool(counters) is everything:
        _refuse("name one COUNTER or more, or say --all")
    if start and end and end < start:
        _refuse(f"the range ends ({end}) before it begins ({start})")
    if format == "parquet" and file is None and sys.stdout.isatty():
        _refuse("a Parquet file is not for a terminal: give --output FILE")
    write = _writer(format)
    wanted = Wanted(by=by, keys=keys or None, start=start, end=end, time_zone=time_zone)
    client = connect(redis_url, client_name="countersink-export") if redis_url else None
    with Store(settings.needed(mysql_url, "mysql")) as store:
        # Before the snapshot: what was acknowledged by now is in it.
        known = Reads(store, client).names()
        names = known.value if everything else list(dict.fromkeys(counters))
        written = _Counted()
        with _destination(file) as opened, _told():
            write(opened, COLUMNS[by], written.of(_all(store, names, wanted)))
        gone = None
        if by in ("day", "hour", "key-day") and start is None:
            rolled = [known.rolled_up_to] if everything else map(store.totals.rolled_up_to, names)
            gone = max((day for day in rolled if day is not None), default=None)
    complete = output.iso(known.complete_up_to)
    fresh = f"complete up to {complete}" if complete else "how fresh it is is not known"
    click.echo(
        f"countersink: {_number(written.rows, 'row')} of {_number(len(names), 'counter')}, {fresh}",
        err=True,
    )
    if gone is not None:
        click.echo(
            f"countersink: days before {gone} are rolled up to months: --by month and"
            " --by key-month have them",
            err=True,
        )


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


class _Counted:
    """Counts rows that go by."""

    def __init__(self) -> None:
        self.rows = 0

    def of(self, each: Rows) -> Rows:
        for row in each:
            self.rows += 1
            yield row


def _all(store: Store, names: Sequence[str], wanted: Wanted) -> Rows:
    with store.reading() as session:
        for name in names:
            yield from rows(session, name, wanted)


def _writer(format: str) -> Write:
    """Writes rows, with these columns, to a file."""
    if format == "parquet":
        try:
            from countersink.reads import parquet
        except ImportError as error:
            raise Failure(
                "Parquet needs pyarrow: pip install 'countersink[parquet]', or use --format csv"
            ) from error
        return parquet.write
    parts = csv_bytes if format == "csv" else ndjson_bytes

    def write(file: BinaryIO, columns: Sequence[str], each: Rows) -> None:
        for part in parts(columns, each):
            file.write(part)

    return write


@contextmanager
def _destination(file: Path | None) -> Iterator[BinaryIO]:
    if file is not None:
        with whole(file) as opened:
            yield opened
        return
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


@contextmanager
def _told() -> Iterator[None]:
    """What cannot be exported, as a sentence that says what can."""
    try:
        yield
    except UnknownCounter as error:
        raise Failure(f"{error}: countersink totals --all lists what was") from error
    except RolledUp as error:
        raise Failure(f"{error}; --by month and --by key-month have them") from error
    except StoreError:
        raise  # some of them are ValueErrors too
    except ValueError as error:
        raise Failure(str(error)) from error


def _refuse(why: str) -> NoReturn:
    raise Misuse(why, click.get_current_context())
