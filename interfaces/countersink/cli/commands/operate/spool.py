"""``countersink spool list, replay``: flags, columns and texts; the work is in
``producers/spool/``."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Exit
from countersink.producers.spool import Replayed, SegmentInfo, list_segments, replay
from countersink.runtime.texts import iso_ms

COLUMNS: Final = ("segment", "state", "since", ">bytes", ">entries", ">increments", "what")
DIRECTORY: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group("spool", cls=settings.CommandGroup)
def command() -> None:
    """List and send what dead producers left on disk.

    A producer with a spool writes entries to a directory while Redis is away, and sends them when
    Redis is back. If the producer died, a later producer of the same directory sends them, or this
    command. Each entry always keeps its id and the time of its first sending, and is counted once,
    however often and by whichever process it is sent.
    """


@command.command("list", cls=settings.Command)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@settings.output_format("table", "json")
def list_command(directory: Path) -> int:
    """List the files of a spool directory.

    A file is held (a live process writes or replays it), waiting (its process is gone: replay it),
    damaged (replayed, and kept because some of its records were corrupt) or unreadable. The status
    is 3 if a file is damaged or unreadable.
    """
    segments = list_segments(directory)
    found = {"directory": str(directory), "segments": list(map(_document, segments))}
    output.write_result(found, partial(_show, segments))
    well = all(one.state in ("held", "waiting") and not one.damaged_bytes for one in segments)
    return Exit.DONE if well else Exit.DIFFERS


@command.command("replay", cls=settings.Command)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@settings.of_redis("text", "json")
def replay_command(directory: Path) -> int:
    """Send the files that dead processes left in a spool directory, then delete them.

    It is safe beside live producers, which keep what they hold, and beside another replay. If it is
    interrupted, run it again. Files with corrupt records are kept as .damaged; the status is 3 if
    there were any, or if a file could not be read.
    """
    client = settings.open_queue("countersink-spool")
    with output.stopped_by_signals() as asked, output.progress_bar("replaying") as show, _said():
        done = replay(
            directory,
            client,
            on_progress=lambda so_far: show(None, f"{so_far.increments:,} increments"),
            stop=asked,
        )
    document = {"directory": str(directory), **asdict(done), "kept": list(map(str, done.kept))}
    output.write_result(document, partial(_tell, done))
    if done.stopped:
        return asked.status or Exit.DONE
    well = not (done.damaged_bytes or done.kept or done.unreadable)
    return Exit.DONE if well else Exit.DIFFERS


@contextmanager
def _said() -> Iterator[None]:
    """The producers' log, on stderr: what was cut off or passed over, and what cannot be read."""

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            output.say(record.getMessage())

    logger, handler = logging.getLogger("countersink.producers"), Said(logging.WARNING)
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
        row = {**_document(one), "segment": one.path.name, "what": _what(one)}
        if one.state in ("damaged", "unreadable"):
            row |= {"entries": None, "increments": None}
        rows.append(row)
    output.write_documents(COLUMNS, rows, otherwise="There is nothing in this spool.")
    if not segments:
        return
    waiting = [one for one in segments if one.state == "waiting"]
    increments = sum(one.increments for one in waiting)
    click.echo(f"{len(waiting):,} to be replayed, with {increments:,} increments.")


def _what(one: SegmentInfo) -> str:
    if one.unreadable is not None:
        return one.unreadable
    if one.damaged:
        return "replayed, but for corrupt records: look at it, then delete it"
    if one.damaged_bytes:
        return f"{one.damaged_bytes:,} bytes are corrupt"
    return ""


def _tell(done: Replayed) -> None:
    click.echo(
        f"replayed {done.increments:,} increments in {done.entries:,} entries;"
        f" {done.segments:,} files done"
    )
    if done.held:
        click.echo(f"left alone: {done.held:,} files that a live process holds")
    if done.unreadable:
        click.echo(f"left alone: {done.unreadable:,} files that could not be read or written")
    if done.damaged_bytes:
        click.echo(f"passed over: {done.damaged_bytes:,} bytes of corrupt records")
    for path in done.kept:
        click.echo(f"kept: {output.cell(path)}: look at it, then delete it")
    if done.stopped:
        click.echo("stopped: run it again for the rest")
