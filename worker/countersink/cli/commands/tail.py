"""``countersink tail``."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Final, cast

import click

from countersink.cli import exits, metrics, settings
from countersink.cli.failures import Failure, Misuse
from countersink.cli.metrics_tail import health
from countersink.cli.tail_report import Report
from countersink.cli.types import COUNTER
from countersink.producers.access_log import KEY_KINDS, KeyKind, Parser
from countersink.producers.log_files import LogError
from countersink.producers.log_position import Ledger, PositionError
from countersink.producers.stop import Stop
from countersink.producers.tail import FileTail
from countersink.producers.tail_batch import Summary
from countersink.producers.tail_pipe import tail_pipe
from countersink.producers.tail_sender import Sender, TailError
from countersink.stream.connection import connect, mapped

DEFAULT_MAX_STREAM_LENGTH: Final = 10_000


@click.command("tail", cls=settings.Command)
@click.argument("access_log", metavar="ACCESS_LOG|-")
@settings.setting("--counter", type=COUNTER, required=True, help="The counter to add to.")
@settings.setting(
    "--key",
    type=click.Choice(KEY_KINDS),
    default=KEY_KINDS[0],
    show_default=True,
    help="What each line is counted under: the path without its query string, the whole "
    "target, the client, or the response's status.",
)
@settings.setting(
    "--follow", is_flag=True, help="Go on as the log grows, also across its rotation."
)
@settings.one_off(
    "--from-start", is_flag=True, help="Forget how far the log was counted: count it all again."
)
@settings.setting(
    "--max-stream-length",
    type=click.IntRange(1),
    default=DEFAULT_MAX_STREAM_LENGTH,
    show_default=True,
    metavar="N",
    help="Entries in the queue from which on to wait for the workers.",
)
@settings.setting(
    "--rotate-wait",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a rotated log must not have grown before it is left.",
)
@settings.setting(
    "--show-rejected",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    metavar="N",
    help="Rejected lines to show; all are counted.",
)
@metrics.options
@settings.output_format("text", "json")
@settings.redis_url
def command(
    access_log: str,
    counter: str,
    key: str,
    follow: bool,
    from_start: bool,
    max_stream_length: int,
    rotate_wait: float,
    show_rejected: int,
    format: str,
    metrics_host: str,
    metrics_port: int | None,
    redis_url: str | None,
) -> int:
    """Count the lines of a web server's access log (common or combined format, plain or .gz).

    How far it was counted is kept in Redis with the counts: a second run adds nothing, and a run
    that was killed goes on where it stopped. - reads standard input, which has no such place.

    Lines that cannot be counted are shown on stderr with their numbers, and the command then
    ends with 3.
    """
    report = Report(show_rejected)
    parser = Parser(cast(KeyKind, key))
    summary = Summary()
    with ExitStack() as closing:
        stop, stopped_by = closing.enter_context(_stopped_by_signals())
        url = settings.needed(redis_url, "redis")
        client = connect(url, client_name="countersink-tail")
        sender = Sender(
            client, counter=counter, full=max_stream_length, notice=report.notice, stop=stop
        )
        told = partial(health, url, sender, summary)

        def said(where: str) -> None:
            report.notice(f"metrics and health are served at {where}")

        closing.enter_context(metrics.served(metrics_host, metrics_port, told, said))
        if not follow:  # who follows waits for Redis; who runs once wants to know
            with mapped():
                client.ping()
        try:
            pipe = _pipe(access_log)
            if pipe is not None:
                if from_start:
                    raise Misuse(
                        f"{access_log} is a pipe, which is always read from where it is: "
                        "leave out --from-start",
                        click.get_current_context(),
                    )
                summary = tail_pipe(
                    sender,
                    pipe,
                    name=access_log,
                    parser=parser,
                    reporter=report,
                    stop=stop,
                    summary=summary,
                )
            else:
                path = _absolute(access_log)
                source = f"{counter} {key} {path}"
                run = FileTail(
                    sender,
                    sender.patiently(lambda: Ledger(client, source)),
                    path=path,
                    source=source,
                    parser=parser,
                    reporter=report,
                    follow=follow,
                    rotate_wait=rotate_wait,
                    stop=stop,
                    summary=summary,
                )
                summary = run.run(from_start=from_start)
        except (LogError, PositionError, TailError) as error:
            report.close()
            raise Failure(str(error)) from error
    report.result(summary, counter, sender.entries, format)
    return _status(summary, follow, stopped_by)


def _status(summary: Summary, follow: bool, stopped_by: list[int]) -> int:
    if signal.SIGINT in stopped_by:
        return exits.INTERRUPTED
    if stopped_by and not follow:
        return exits.TERMINATED
    return exits.DIFFERS if summary.rejected or summary.left else exits.DONE


def _pipe(name: str) -> int | None:
    """The descriptor to read when ``name`` is no file with a place to go back to."""
    if name == "-":
        return 0
    try:
        mode = os.stat(name).st_mode
    except OSError:
        return None  # --follow waits for it, and otherwise opening it says why not
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC)


def _absolute(name: str) -> str:
    """The name that the position belongs to: of the log itself, links in it not followed, since
    a link to the current log is moved at its rotation."""
    directory, file = os.path.split(os.path.abspath(name))
    return os.path.join(os.path.realpath(directory), file)


@contextmanager
def _stopped_by_signals() -> Iterator[tuple[Stop, list[int]]]:
    """What SIGINT and SIGTERM set, and which of them came; a second one ends at once."""
    stop = Stop()
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if stop.is_set():
            sys.exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop, came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()
