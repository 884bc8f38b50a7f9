"""``countersink dead list, retry, drop`` and ``countersink spool list, replay``: options, columns
and texts.

See ``counting/apply/dead.py`` for the selection of dead letters, ``counting/apply/dead_retry.py``
for retries, and ``producers/spool/`` for the spool.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Exit, Misuse
from countersink.cli.settings import values_checked
from countersink.cli.values import NAME, Checked
from countersink.counting.apply import dead
from countersink.counting.apply.dead import document
from countersink.counting.apply.dead_retry import retry
from countersink.database.lease import any_slot
from countersink.database.session import Session
from countersink.producers.spool import Replayed, SegmentInfo, list_segments, replay
from countersink.runtime.dead_letter import DeadReason, check_reason
from countersink.runtime.texts import iso_ms, plural
from countersink.stream.decode import decode_payload

COLUMNS: Final = ("ref", "reason", "detail", "stream", "at", "created", "payload", "truncated")


def _ref(text: str) -> str:
    dead.parse_ref(text)
    return text


REF: Final = Checked("ref", _ref)


@click.group("dead", cls=settings.CommandGroup)
def dead_group() -> None:
    """List, retry or drop rows that could not be counted.

    A row that cannot be counted (a bad key, an undeclared dimension, an entry of a newer format) is
    kept as a dead row with its reason; the other rows of its batch are counted. REF names a dead
    row as in the list: its entry's id and :POSITION, or :-1 for an entire entry. The id without a
    position names all dead rows of the entry.
    """


def _selection(everything: str) -> Callable[[settings.Decorated], settings.Decorated]:
    """Decorator that adds the argument REF... and the options --reason and --all, which select dead
    rows. ``everything`` is the help text of --all."""
    return settings.together(
        click.argument("refs", nargs=-1, type=REF, metavar="[REF]..."),
        settings.one_off("--reason", type=NAME, metavar="CODE", help="All rows with this reason."),
        settings.one_off("--all", "everything", is_flag=True, help=everything),
    )


def _selected(
    refs: Sequence[str], reason: str | None, everything: bool
) -> tuple[list[str] | None, str | None]:
    if sum((bool(refs), reason is not None, everything)) != 1:
        raise Misuse("give REF..., --reason CODE or --all")
    return list(refs) or None, reason


def _open_tables(reason: str | None) -> Session:
    """Return a session of the database, after a check of ``reason``: the argument of ``--reason``,
    or None without this option.

    Raises:
        Misuse: the reason is unknown to this version, and no dead row has it, kept or not kept.
    """
    session = settings.open_tables()
    if reason is not None and reason not in set(DeadReason):
        with values_checked():
            check_reason(reason, {*dead.count(session), *dead.not_kept_by_reason(session)})
    return session


@dead_group.command("list", cls=settings.Command)
@click.argument("refs", nargs=-1, type=REF, metavar="[REF]...")
@settings.one_off("--reason", type=NAME, metavar="CODE", help="Only rows with this reason.")
@settings.one_off("--limit", type=click.IntRange(1), default=100, help="Most rows to list.")
@settings.mysql_options("table", "json", "csv")
def list_command(refs: Sequence[str], reason: str | None, limit: int) -> None:
    """List dead rows, newest first.

    The first 10,000 rows of each reason and counter are kept, up to 64 MiB. Of later rows, only the
    number is kept: they cannot be retried. Rows that are retried or dropped make room for new ones.
    """
    database = _open_tables(reason)
    rows = dead.list_rows(database, reason=reason, refs=list(refs) or None, limit=limit)
    by_reason = dead.count(database)
    not_kept = [
        {"reason": why, "counter": counter, "rows": number}
        for (why, counter), number in dead.not_kept(database).items()
    ]
    shown = [document(row) for row in rows]
    listed = {
        "rows": shown,
        "by_reason": by_reason,
        "total": sum(by_reason.values()),
        "not_kept": not_kept,
    }
    people = partial(_print, shown, by_reason, not_kept)
    output.write_result(listed, people, csv=(COLUMNS, shown))


@dead_group.command("retry", cls=settings.Command)
@_selection("All rows except those with the reason too_old or reconciled.")
@settings.mysql_options("text", "json")
def retry_command(refs: Sequence[str], reason: str | None, everything: bool) -> int:
    """Retry dead rows: count each exactly once.

    Rows that fail again stay; the status is then 3. Rows with the reason too_old may be counted
    already, as their guards were deleted, and rows with the reason reconciled are in a total that a
    backfill has set: both are retried only with --reason or by their REF.
    """
    chosen, why = _selected(refs, reason, everything)
    database = _open_tables(why)
    done = retry(database, slot=any_slot(), decode=decode_payload, reason=why, refs=chosen)
    text = f"retried {done.retried:,} ({plural(done.rows, 'row')} counted), failed {done.failed:,}"
    if done.left_out:
        text += (
            f"\nleft out {done.left_out:,} with the reason too_old or reconciled, which may be"
            " counted already: --reason or REF retries them"
        )
    output.write_result(asdict(done), text)
    return Exit.DIFFERS if done.failed else Exit.DONE


@dead_group.command("drop", cls=settings.Command)
@_selection("All rows.")
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.mysql_options("text", "json")
def drop_command(refs: Sequence[str], reason: str | None, everything: bool, yes: bool) -> None:
    """Delete dead rows for good: they are never counted.

    --all and --reason also forget the numbers of rows that were not kept, and ask first, unless
    --yes is given.
    """
    chosen, why = _selected(refs, reason, everything)
    if chosen is None:
        which = "all dead rows" if why is None else f"all dead rows with the reason {why}"
        output.confirm(yes, f"Delete {which} for good?", "nothing was deleted")
    dropped = dead.drop(_open_tables(why), reason=why, refs=chosen)
    output.write_result({"dropped": dropped}, f"dropped {plural(dropped, 'row')}")


def _print(
    rows: Sequence[output.Document], by_reason: dict[str, int], not_kept: Sequence[dict[str, Any]]
) -> None:
    if total := sum(by_reason.values()):
        output.write_documents(("ref", "-reason", "-created", "detail"), rows)
        reasons = ", ".join(f"{name} {number:,}" for name, number in by_reason.items())
        click.echo(f"{len(rows):,} of {total:,} shown; by reason: {reasons}")
    else:
        click.echo("There are no dead rows.")
    for one in not_kept:
        rows_of = f" of {one['counter']}" if one["counter"] else ""
        were = "was" if one["rows"] == 1 else "were"
        click.echo(f"{one['rows']:,} more{rows_of} {were} not kept: {one['reason']}")


SPOOL_COLUMNS: Final = (
    "segment",
    "state",
    "-since",
    "->bytes",
    ">entries",
    "->increments",
    "detail",
)
DIRECTORY: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group("spool", cls=settings.CommandGroup)
def spool_group() -> None:
    """List and send the entries that dead producers left on disk.

    A producer with a spool writes entries to a directory while Redis does not answer, and sends
    them later. If the producer died, the next producer with this directory sends them, or this
    command. Each entry keeps its id and the time of its first sending, and is counted once, however
    often and by whatever process it is sent.
    """


@spool_group.command("list", cls=settings.Command)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@settings.output_format("table", "json")
def spool_list_command(directory: Path) -> int:
    """List the files of a spool directory.

    A file is held (a live process writes or replays it), waiting (its process has ended: replay
    it), damaged (replayed, and kept because some of its records were corrupt) or unreadable. The
    status is 3 if a file is damaged or unreadable.
    """
    segments = list_segments(directory)
    document = {"directory": str(directory), "segments": list(map(_document, segments))}
    output.write_result(document, partial(_show, segments))
    intact = all(one.state in ("held", "waiting") and not one.damaged_bytes for one in segments)
    return Exit.DONE if intact else Exit.DIFFERS


@spool_group.command("replay", cls=settings.Command)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@settings.redis_options("text", "json")
def spool_replay_command(directory: Path) -> int:
    """Send the files that dead processes left in a spool directory, then delete them.

    It is safe while producers and other replays use the directory: files that a live process holds
    are left alone. If it is interrupted, run it again. Files with corrupt records are kept as
    .damaged; the status is 3 if there are any, or if a file could not be read.
    """
    client = settings.open_queue("countersink-spool")
    with output.stopped_by_signals() as stop, output.progress_bar("replaying") as show, _warnings():
        done = replay(
            directory,
            client,
            on_progress=lambda so_far: show(None, plural(so_far.increments, "increment")),
            stop=stop,
        )
    document = {"directory": str(directory), **asdict(done), "kept": list(map(str, done.kept))}
    output.write_result(document, partial(_print_result, done))
    if done.stopped:
        return stop.status or Exit.DONE
    intact = not (done.damaged_bytes or done.kept or done.unreadable)
    return Exit.DONE if intact else Exit.DIFFERS


@contextmanager
def _warnings() -> Iterator[None]:
    """Print on stderr the warnings and errors that a replay logs inside the block. They are about
    records that are cut off or corrupt, and about files that cannot be read or written."""

    class Notices(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            output.say(record.getMessage())

    logger, handler = logging.getLogger("countersink.producers"), Notices(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


_MEMBERS: Final = (
    *("segment", "state", "since", "bytes", "entries", "increments", "damaged_bytes", "detail"),
)


def _document(one: SegmentInfo) -> dict[str, Any]:
    since = None if one.made_ms is None else iso_ms(one.made_ms)
    path = str(one.path)
    return output.document(one, _MEMBERS, segment=path, since=since, detail=one.unreadable)


def _show(segments: Sequence[SegmentInfo]) -> None:
    rows = []
    for one in segments:
        row = {**_document(one), "segment": one.path.name, "detail": _detail(one)}
        if one.state in ("damaged", "unreadable"):
            row |= {"entries": None, "increments": None}
        rows.append(row)
    output.write_documents(SPOOL_COLUMNS, rows, otherwise="This spool is empty.")
    if not segments:
        return
    waiting = [one for one in segments if one.state == "waiting"]
    increments = sum(one.increments for one in waiting)
    waits = plural(len(waiting), "file waits", "files wait")
    click.echo(f"{waits} for a replay, with {plural(increments, 'increment')}.")


def _detail(one: SegmentInfo) -> str:
    if one.unreadable is not None:
        return one.unreadable
    if one.damaged:
        return "replayed except for corrupt records: examine the file, then delete it"
    if one.damaged_bytes:
        return plural(one.damaged_bytes, "corrupt byte")
    return ""


def _print_result(done: Replayed) -> None:
    entries = plural(done.entries, "entry", "entries")
    files = plural(done.segments, "file")
    click.echo(f"replayed {plural(done.increments, 'increment')} in {entries}; {files} done")
    if done.held:
        click.echo(f"left alone: {plural(done.held, 'file')} that a live process holds")
    if done.unreadable:
        click.echo(f"left alone: {plural(done.unreadable, 'file')} that cannot be read or written")
    if done.damaged_bytes:
        click.echo(f"skipped: {plural(done.damaged_bytes, 'byte')} of corrupt records")
    for path in done.kept:
        click.echo(f"kept: {output.display(path)}: examine it, then delete it")
    if done.stopped:
        click.echo("stopped: run it again for the rest")
