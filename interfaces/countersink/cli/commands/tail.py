"""``countersink tail``: flags with help and errors, what it prints of rejected lines and its
result, exit status, when it is ready; the work is in ``logs/tail.py``."""

import os
import re
import stat
from contextlib import closing
from functools import partial
from typing import Final

import click

from countersink.cli import metrics, settings
from countersink.cli.commands import log_options
from countersink.cli.errors import Exit, Failure, Misuse, values_checked
from countersink.cli.output import printable, stopped_by_signals, write_result
from countersink.cli.settings import COUNTER, TEXT
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
    """Says things as they happen, and keeps the first rejected lines for the result.

    Args:
        shown: how many rejected lines to show.
    """

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._kept: list[tuple[str, Rejected]] = []

    def notice(self, text: str) -> None:
        """A sentence on stderr."""
        click.echo(f"countersink tail: {printable(text)}", err=True)

    def rejected(self, path: str, rejected: Rejected) -> None:
        """A line on stderr for each of the first rejected lines."""
        if len(self._kept) < self._shown:
            self._kept.append((path, rejected))
            click.echo(
                f"rejected: {printable(path)} line {rejected.line}: {printable(rejected.reason)}",
                err=True,
            )

    def result(self, summary: Summary, counter: str, entries: int) -> None:
        """The result on stdout."""
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
        said = f"{counter}: counted {summary.counted:,}, rejected {summary.rejected:,}{left}"
        write_result(document, said)


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
@settings.setting(
    "--follow", is_flag=True, help="Go on counting as the log grows, also across rotations."
)
@settings.one_off(
    "--begin",
    type=click.Choice(BEGINS),
    help="Where to go on, whatever position is known: at the log's start, which counts it all"
    " (again), or after its end.",
)
@settings.setting(
    "--position-file",
    type=click.Path(),
    metavar="FILE",
    help="File for the position; if it is a directory, each log, counter and kind of key has its"
    " own file in it. Put it on a disk that lasts as long as the log.  "
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
    help="Seconds without growth after which tail leaves a rotated log.",
)
@settings.setting(
    "--rotated-in",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="The directory that rotated files are moved to (olddir of logrotate), if it is neither "
    "the log's own nor one below it.",
)
@settings.setting(
    "--show-rejected",
    type=click.IntRange(0),
    default=20,
    metavar="N",
    help="How many rejected lines to show; the total includes the others.",
)
@log_options.allow_rejects
@metrics.options
@settings.of_redis("text", "json")
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

    The position file says how far the log was counted: a second run adds nothing, and a run that
    was killed goes on where it stopped. If the file is lost or older than what Redis remembers,
    tail refuses until --begin says where to go on. - reads standard input, which has no position.

    Lines that cannot be counted are shown on stderr with their numbers, and the command then ends
    with 3, unless --allow-rejects covers them. In a variable or the file, spaces divide conditions
    of --where; quote those that contain spaces.
    """
    report = _Report(show_rejected)
    if dimension and not settings.given("key"):
        key = ""
    fields = visitor or ()
    given = {name: text or "" for name, text in formats.items()}
    if given["log_format"] and given["input_format"] != AUTO:
        raise Misuse("--log-format and --input-format both say what a line is: give one")
    with values_checked():
        parser = Parser(key, where, dimensions=dimension, visitor=fields, **given)
    summary = Summary()
    with stopped_by_signals() as asked:
        client = settings.open_queue("countersink-tail")
        sender = LogSender(
            client, counter=counter, full=max_stream_length, notice=report.notice, stop=asked
        )
        hits = Hits(parser, report, summary)
        told = partial(_health, sender, summary)
        with metrics.served(told, lambda url: report.notice(f"metrics are served at {url}")):
            if not follow:  # who follows waits for Redis; who runs once wants to know
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
    if asked.status is not None and (asked.status == Exit.INTERRUPTED or not follow):
        return asked.status
    allowed = allow_rejects or log_options.Allowance()
    well = allowed.covers(summary.rejected, summary.counted + summary.rejected)
    return Exit.DONE if well and not (summary.left or summary.lost) else Exit.DIFFERS


def _lines_wanted(
    key: str,
    dimensions: tuple[tuple[str, str], ...],
    where: tuple[Condition, ...],
    visitor: tuple[str, ...],
) -> str:
    """What is counted of a log, for the name of its position: other lines have another one."""
    key = canonical(key)
    field = re.fullmatch(r"\{ *([^{} ]+) *\}", key)
    words = [f"{name}:{field}" for name, field in sorted(dimensions)]
    words = words or [key if field is None else field[1]]
    words += sorted(map(str, where))
    if visitor:
        words.append(f"visitor {','.join(visitor)}")
    return " ".join(words)


def _pipe(name: str, begin: Begin | None) -> int | None:
    """The descriptor to read when ``name`` is no file with a place to go back to."""
    try:
        mode = None if name == "-" else os.stat(name).st_mode
    except OSError:
        return None  # --follow waits for it, and otherwise opening it says why not
    if mode is not None and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return None
    if begin:
        raise Misuse(f"{name} is a pipe, which is always read from where it is: leave out --begin")
    return 0 if mode is None else os.open(name, os.O_RDONLY | os.O_CLOEXEC)


def _position_file(asked: str | None, source: str) -> PositionFile:
    """The position file.

    Raises:
        PositionError: it cannot be used.
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
    """The name that the position belongs to: of the log itself, links in it not followed, since
    a link to the current log is moved at its rotation."""
    directory, file = os.path.split(os.path.abspath(name))
    return os.path.join(os.path.realpath(directory), file)


def _health(sender: LogSender, summary: Summary) -> Health:
    """The health of a reader that follows its log."""
    return Health(
        process="tail",
        samples=lambda: _samples(sender, summary),
        probes=probes(redis=settings.redis_url()),
    )


def _samples(sender: LogSender, summary: Summary) -> Samples:
    """Its own figures."""
    yield Sample("countersink_tail_lines_total", summary.counted, {"outcome": "counted"})
    yield Sample("countersink_tail_lines_total", summary.rejected, {"outcome": "rejected"})
    yield Sample("countersink_tail_entries_total", sender.entries)
