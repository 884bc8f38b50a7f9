"""``countersink spool list`` and ``replay``: their flags, columns and texts.

See ``producers/spool/`` for the files and the replay.
"""

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
from countersink.runtime.texts import iso_ms, plural

COLUMNS: Final = ("segment", "state", "since", ">bytes", ">entries", ">increments", "detail")
DIRECTORY: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group("spool", cls=settings.CommandGroup)
def command() -> None:
    """List and send the entries that dead producers left on disk.

    A producer with a spool writes entries to a directory while Redis does not answer, and sends
    them later. If the producer died, the next producer with this directory sends them, or this
    command. Each entry keeps its id and the time of its first sending, and is counted once, however
    often and by whatever process it is sent.
    """


@command.command("list", cls=settings.Command)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@settings.output_format("table", "json")
def list_command(directory: Path) -> int:
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


@command.command("replay", cls=settings.Command)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@settings.redis_options("text", "json")
def replay_command(directory: Path) -> int:
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
    """Print the warnings of the replay's log on stderr: bytes cut off or skipped, unreadable
    files."""

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
    output.write_documents(COLUMNS, rows, otherwise="This spool is empty.")
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
