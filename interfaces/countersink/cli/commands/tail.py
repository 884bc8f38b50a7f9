"""``countersink tail``: its flags, output, exit status, readiness and metrics.

See ``logs/tail.py`` for the reading of logs.
"""

import os
import re
import stat
from contextlib import closing
from functools import partial
from typing import Final

import click

from countersink.cli import metrics, settings
from countersink.cli.commands import log_options
from countersink.cli.errors import Exit, Failure, Misuse
from countersink.cli.output import printable, stopped_by_signals, write_result
from countersink.cli.settings import values_checked
from countersink.cli.values import COUNTER, TEXT
from countersink.logs import Parser, Rejected
from countersink.logs.errors import LogError, PositionError, TailError, UnknownFormat
from countersink.logs.formats import LOG_FORMATS
from countersink.logs.formats.detection import AUTO
from countersink.logs.lines import Hits, Reporter, Summary
from countersink.logs.position import LogMark, PositionFile, default_path, file_name
from countersink.logs.sender import BEGINS, Begin, LogSender
from countersink.logs.tail import FileTail, tail_pipe
from countersink.logs.template import Condition, canonical
from countersink.metrics.health import Health, probes
from countersink.metrics.table import Sample, Samples
from countersink.stream.connection import mapped

DEFAULT_MAX_STREAM_LENGTH: Final = 10_000


class _Report(Reporter):
    """Prints notices and rejected lines on stderr as they occur, and keeps the rejected lines for
    the JSON that :meth:`result` prints.

    Args:
        shown: how many rejected lines are printed and kept, at most.
    """

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._kept: list[tuple[str, Rejected]] = []

    def notice(self, text: str) -> None:
        """Print a notice on stderr."""
        click.echo(f"countersink tail: {printable(text)}", err=True)

    def rejected(self, path: str, rejected: Rejected) -> None:
        """Print and keep a rejected line of the log ``path``, if fewer than ``shown`` rejected
        lines were kept before."""
        if len(self._kept) < self._shown:
            self._kept.append((path, rejected))
            click.echo(
                f"rejected: {printable(path)} line {rejected.line}: {printable(rejected.reason)}",
                err=True,
            )

    def result(self, summary: Summary, counter: str, entries: int) -> None:
        """Print the result on stdout, as ``--format`` says: text, or JSON with the kept lines.
        ``summary`` has the numbers of this run, such as that of counted lines. ``entries`` is the
        number of entries that were stored in Redis."""
        document = {
            "counter": counter,
            "counted": summary.counted,
            "rejected": summary.rejected,
            "left": summary.left,
            "lost": summary.lost,
            "entries": entries,
            "rejected_lines": [
                {"file": path, "line": each.line, "reason": each.reason}
                for path, each in self._kept
            ],
        }
        left = ", left 1 without a newline for the next run" if summary.left else ""
        text = f"{counter}: counted {summary.counted:,}, rejected {summary.rejected:,}{left}"
        write_result(document, text)


@click.command("tail", cls=settings.Command)
@click.argument("access_log", metavar="ACCESS_LOG|-")
@settings.setting("--counter", type=COUNTER, required=True, help="The counter to add to.")
@settings.setting(
    "--key",
    type=TEXT,
    metavar="TEMPLATE",
    default="path",
    help="The key of each line: a field, such as path (without its query string), target,"
    " host (the client), status, or several as in '{vhost}{path}'.",
)
@log_options.options(("auto", *LOG_FORMATS), settings.setting)
@settings.setting("--follow", is_flag=True, help="Go on as the log grows, also across rotations.")
@settings.one_off(
    "--begin",
    type=click.Choice(BEGINS),
    help="Ignore the position, and begin at the log's start, which counts all lines (again), or"
    " after its end.",
)
@settings.setting(
    "--position-file",
    type=click.Path(),
    metavar="FILE",
    help="File for the position; in a directory, each log, counter and kind of key has its own"
    " file. Put it on a disk that lasts as long as the log.  "
    "[default: in ~/.local/state/countersink/tail]",
)
@settings.setting(
    "--max-stream-length",
    type=click.IntRange(1),
    default=DEFAULT_MAX_STREAM_LENGTH,
    metavar="N",
    help="Entries in the queue at which tail waits for the workers.",
)
@settings.setting(
    "--rotate-wait",
    type=click.FloatRange(0),
    default=5.0,
    metavar="SECONDS",
    help="Seconds without growth after which tail closes a rotated log.",
)
@settings.setting(
    "--rotated-in",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="The directory of rotated files (olddir of logrotate), if it is neither the log's"
    " directory nor below it.",
)
@settings.setting(
    "--show-rejected",
    type=click.IntRange(0),
    default=20,
    metavar="N",
    help="Most rejected lines to print; the total includes the others.",
)
@log_options.allow_rejects
@metrics.options
@settings.redis_options("text", "json")
def command(
    access_log: str,
    counter: str,
    key: str,
    dimension: tuple[tuple[str, str], ...],
    where: tuple[Condition, ...],
    visitor: tuple[str, ...] | None,
    follow: bool,
    begin: Begin | None,
    position_file: str | None,
    max_stream_length: int,
    rotate_wait: float,
    rotated_in: str | None,
    show_rejected: int,
    allow_rejects: log_options.Allowance | None,
    **formats: str | None,
) -> int:
    """Count the lines of a web server's access log, plain or compressed.

    tail detects the format from the first lines if they are unambiguous; docs/backfill.md lists the
    formats.

    The position file has the position up to which the log was counted: a second run adds nothing,
    and a run that was killed goes on where it stopped. If the file is lost, or older than the
    position in Redis, tail refuses until --begin says where to begin. - reads standard input, which
    has no position.

    Lines that cannot be counted are printed on stderr with their numbers; the command then ends
    with 3, unless --allow-rejects covers them. In a variable or countersink.toml, spaces divide
    conditions of --where; quote conditions that contain spaces.
    """
    report = _Report(show_rejected)
    if dimension and not settings.is_given("key"):
        key = ""
    fields = visitor or ()
    given = {name: text or "" for name, text in formats.items()}
    if given["log_format"] and given["input_format"] != AUTO:
        raise Misuse("--log-format and --input-format exclude each other: give one of them")
    with values_checked():
        parser = Parser(key, where, dimensions=dimension, visitor=fields, **given)
    summary = Summary()
    with stopped_by_signals() as stop:
        client = settings.open_queue("countersink-tail")
        sender = LogSender(
            client, counter=counter, full=max_stream_length, notice=report.notice, stop=stop
        )
        hits = Hits(parser, report, summary)
        health = partial(_health, sender, summary)
        with metrics.served(health, lambda url: report.notice(f"metrics are served at {url}")):
            if not follow:  # --follow waits for Redis; without it, the command fails at once
                with mapped():
                    client.ping()
            try:
                pipe = _pipe(access_log, begin)
                if pipe is not None:
                    tail_pipe(sender, pipe, hits, name=access_log)
                else:
                    path = _absolute(access_log)
                    source = f"{counter} {_lines_wanted(key, dimension, where, fields)} {path}"
                    with closing(_position_file(position_file, source)) as file:
                        FileTail(
                            sender,
                            file,
                            sender.retried(lambda: LogMark(client, source)),
                            hits,
                            path=path,
                            follow=follow,
                            rotate_wait=rotate_wait,
                            rotated_in=os.path.abspath(rotated_in) if rotated_in else "",
                        ).run(begin=begin)
            except (LogError, PositionError, TailError, UnknownFormat) as error:
                log = f"{access_log}: " if isinstance(error, UnknownFormat) else ""
                raise Failure(f"{log}{error}") from error
    report.result(summary, counter, sender.entries)
    if stop.status is not None and (stop.status == Exit.INTERRUPTED or not follow):
        return stop.status
    allowance = allow_rejects or log_options.Allowance()
    allowed = allowance.covers(summary.rejected, summary.counted + summary.rejected)
    return Exit.DONE if allowed and not (summary.left or summary.lost) else Exit.DIFFERS


def _lines_wanted(
    key: str,
    dimensions: tuple[tuple[str, str], ...],
    where: tuple[Condition, ...],
    visitor: tuple[str, ...],
) -> str:
    """Return a text that says which lines are counted, and under which keys or dimensions. The
    arguments are the values of ``--key``, ``--dimension``, ``--where`` and ``--visitor`` (the
    fields that identify a visitor; empty if visitors are not counted). The text is a part of the
    name under which the position in the log is stored. So two calls of ``tail`` for which the text
    differs have different positions in a log."""
    key = canonical(key)
    field = re.fullmatch(r"\{ *([^{} ]+) *\}", key)
    words = [f"{name}:{field}" for name, field in sorted(dimensions)]
    words = words or [key if field is None else field[1]]
    words += sorted(map(str, where))
    if visitor:
        words.append(f"visitor {','.join(visitor)}")
    return " ".join(words)


def _pipe(name: str, begin: Begin | None) -> int | None:
    """Open the pipe ``name``, or standard input for ``-``, and return the file descriptor. Return
    None if ``name`` is a regular file or a directory, or does not exist.

    Raises:
        Misuse: ``name`` is a pipe or standard input, and ``--begin`` is given.
        OSError: the pipe cannot be opened.
    """
    try:
        mode = None if name == "-" else os.stat(name).st_mode
    except OSError:
        return None  # --follow waits for the file; without it, opening the file fails
    if mode is not None and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return None
    if begin:
        raise Misuse(f"{name} is a pipe, which has no position: leave out --begin")
    return 0 if mode is None else os.open(name, os.O_RDONLY | os.O_CLOEXEC)


def _position_file(asked: str | None, source: str) -> PositionFile:
    """Open the position file of ``source``, which is a text with the counter, the lines that are
    counted and the path of the log. ``asked`` is the value of ``--position-file``: a file, a
    directory with a file for each source, or None for the default directory.

    Raises:
        PositionError: the file cannot be used.
    """
    path = asked or ""
    try:
        if path and os.path.isdir(path):
            path = os.path.join(path, file_name(source))
        return PositionFile(path or default_path(source), source)
    except OSError as error:
        raise PositionError(
            f"cannot use the position file {path or error.filename}: {error.strerror};"
            " --position-file names another"
        ) from error


def _absolute(name: str) -> str:
    """Return the absolute path of a log. Directories that are symbolic links are resolved. A log
    that is itself a symbolic link is not resolved: after a rotation, the link leads to the next
    log, and the path must still be the same."""
    directory, file = os.path.split(os.path.abspath(name))
    return os.path.join(os.path.realpath(directory), file)


def _health(sender: LogSender, summary: Summary) -> Health:
    """Return the health and metrics of ``tail``, for the endpoint of ``--metrics-port``.
    ``tail`` is ready if Redis answers and is not full."""
    return Health(
        process="tail",
        samples=lambda: _samples(sender, summary),
        probes=probes(redis=settings.redis_url(), stores=True),
    )


def _samples(sender: LogSender, summary: Summary) -> Samples:
    """Yield the metrics of ``tail``."""
    yield Sample("countersink_tail_lines_total", summary.counted, {"outcome": "counted"})
    yield Sample("countersink_tail_lines_total", summary.rejected, {"outcome": "rejected"})
    yield Sample("countersink_tail_entries_total", sender.entries)
