"""``countersink statsd``."""

import logging
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from functools import partial
from typing import Any, Final

import click

from countersink.cli import exits, metrics, settings
from countersink.cli.failures import Failure, Misuse
from countersink.cli.metrics_statsd import health
from countersink.cli.producer_settings import options_for, producer_for
from countersink.cli.signal_queue import SignalQueue, queued
from countersink.cli.types import ParamType
from countersink.producers import Producer
from countersink.producers.statsd import (
    CannotListen,
    MapError,
    NotLoopback,
    Server,
    StatsdOptions,
)
from countersink.producers.statsd.journal import Action, Journal
from countersink.worker import logs

DEFAULTS: Final[dict[str, Any]] = {field.name: field.default for field in fields(StatsdOptions)}
PROGRESS_SECONDS: Final = 60.0
LOSS_SECONDS: Final = 5.0
"""Between two looks whether the kernel has dropped datagrams."""
SWITCH_SECONDS: Final = 0.0005
"""How long another thread may go on while the receiving one waits for the interpreter: a tenth of
Python's default, in which thousands of packets arrive."""


class _Mode(ParamType):
    """Permissions as an octal number."""

    name = "octal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        if isinstance(value, int):
            return value
        try:
            return int(str(value), 8)
        except ValueError:
            self.fail(f"{value!r} is not an octal number such as 660", param, ctx)


@click.command("statsd", cls=settings.Command)
@settings.setting(
    "--host", default=DEFAULTS["host"], show_default=True, help="Address to listen at: UDP and TCP."
)
@settings.setting(
    "--port",
    type=click.IntRange(0, 65_535),
    default=DEFAULTS["port"],
    show_default=True,
    metavar="N",
    help="Port of both; 0 for any free one.",
)
@settings.setting("--udp/--no-udp", default=DEFAULTS["udp"], show_default=True, help="UDP.")
@settings.setting(
    "--tcp/--no-tcp", default=DEFAULTS["tcp"], show_default=True, help="TCP, lines of text."
)
@settings.setting("--socket", metavar="PATH", help="A unix datagram socket, as DogStatsD has it.")
@settings.setting("--stream-socket", metavar="PATH", help="A unix stream socket, lines of text.")
@settings.setting(
    "--socket-mode",
    type=_Mode(),
    default=f"{DEFAULTS['socket_mode']:o}",
    show_default=True,
    metavar="OCTAL",
    help="Permissions of the unix sockets.",
)
@settings.setting(
    "--anyone",
    is_flag=True,
    help="Listen beyond loopback, although whoever reaches the port may count anything.",
)
@settings.setting(
    "--map",
    metavar="FILE",
    help="Which names become which counters and keys; read again on SIGHUP.",
)
@settings.number(
    DEFAULTS, "receive_buffer", int, "Bytes of kernel memory for packets that wait, each socket."
)
@settings.number(DEFAULTS, "max_amount", int, "The most that one line may add or take away.")
@settings.number(
    DEFAULTS,
    "max_counters",
    int,
    "Counters that names may become; what comes by more of them goes to __overflow__.",
)
@settings.number(
    DEFAULTS,
    "max_ahead_s",
    float,
    "Seconds that a line's own time may lie ahead of the clock here.",
)
@settings.number(DEFAULTS, "max_age_days", int, "Days that it may lie in the past; 0 for no limit.")
@settings.number(DEFAULTS, "max_connections", int, "Stream connections at once.")
@settings.number(
    DEFAULTS,
    "line_timeout_s",
    float,
    "Seconds in which a line must end where others need its connection's place.",
)
@metrics.options
@settings.log_format
@settings.redis_url
def command(
    redis_url: str | None,
    log_format: str,
    metrics_host: str,
    metrics_port: int | None,
    **given: Any,
) -> int:
    """Count what StatsD clients send, until stopped.

    Counters (|c) with sample rates and tags go through a producer, as an app's own increments do;
    other types are ignored. SIGTERM and Ctrl-C count what has arrived, and store it.

    StatsD knows no passwords, so this listens at loopback unless --anyone says otherwise.
    """
    url = settings.needed(redis_url, "redis")
    try:
        options = StatsdOptions(**given)
        producer = producer_for(url, options_for(url))
    except ValueError as error:
        raise Misuse(str(error), click.get_current_context()) from error

    def watched(server: Server) -> AbstractContextManager[None]:
        return metrics.served(metrics_host, metrics_port, partial(health, url, server, producer))

    handler = logs.set_up(log_format)
    switch_before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with queued((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as came:
            return _run(options, producer, came, watched)
    except (MapError, NotLoopback) as error:
        raise Misuse(str(error), click.get_current_context()) from error
    except CannotListen as error:
        raise Failure(str(error)) from error
    finally:
        sys.setswitchinterval(switch_before)
        producer.close(0)  # closed already, unless something failed
        logs.take_down(handler)


def _run(
    options: StatsdOptions,
    producer: Producer,
    came: SignalQueue,
    watched: Callable[[Server], AbstractContextManager[None]],
) -> int:
    journal = Journal()
    with Server(options, producer) as server, watched(server):
        _until_stopped(server, producer, journal, came)
    complete = producer.close(producer.exit_timeout)
    stats = producer.stats()
    journal.say(
        Action.STOPPED,
        "stopped" if complete else "stopped: some increments are lost",
        level=logging.INFO if complete else logging.ERROR,
        lines=server.figures.lines,
        counted=server.figures.counted,
        dropped=stats.dropped,
        spooled=stats.spooled,
    )
    return exits.DONE if complete else exits.FAILED


def _until_stopped(server: Server, producer: Producer, journal: Journal, came: SignalQueue) -> None:
    lines = lost = 0
    waited = 0.0
    while True:
        number = came.next(LOSS_SECONDS)
        if number == signal.SIGHUP:
            server.reload()
            continue
        figures = server.figures
        if figures.lost > lost:
            lost = figures.lost
            journal.seldom(
                Action.LOST,
                "the kernel has dropped packets: its receive buffer was full",
                lost=lost,
                receive_buffer=figures.receive_buffer,
            )
        if number is not None:
            journal.say(Action.STOPPING, f"{number.name}: counting what has arrived")
            return
        waited += LOSS_SECONDS
        if waited >= PROGRESS_SECONDS:
            waited = 0.0
            if figures.lines > lines:
                lines = figures.lines
                journal.say(
                    Action.PROGRESS, "counted", **asdict(figures), dropped=producer.stats().dropped
                )
