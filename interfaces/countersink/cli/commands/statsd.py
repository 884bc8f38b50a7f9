"""``countersink statsd``: its flags, readiness, metrics, check for dropped datagrams, and exit
status.

See ``statsd/`` for the listener.
"""

import logging
import signal
import sys
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from countersink.cli import metrics, settings
from countersink.cli.errors import Exit, Misuse
from countersink.cli.settings import values_checked
from countersink.cli.values import Checked
from countersink.metrics import producer_samples
from countersink.metrics.health import Health, probes
from countersink.metrics.table import Sample, Samples
from countersink.producers import Producer
from countersink.runtime.log import logged
from countersink.runtime.process import SignalQueue, signal_queue
from countersink.statsd import MapError, NotLoopback, Server, StatsdOptions
from countersink.statsd.tally import StatsdAction
from countersink.stream.connection import connect

_DEFAULTS: Final = StatsdOptions()
LOSS_CHECK_SECONDS: Final = 5.0
"""Seconds between two checks for datagrams that the kernel has dropped."""
SWITCH_SECONDS: Final = 0.0005
"""Seconds that another thread may run while the thread that receives packets waits for the
interpreter. Python's default is ten times as long; thousands of packets arrive in that time."""


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise ValueError(f"{text!r} is not an octal number such as 660") from None


@click.command("statsd", cls=settings.Command)
@settings.setting("--host", default=_DEFAULTS.host, help="Address to listen at, for UDP and TCP.")
@settings.setting(
    "--port",
    type=click.IntRange(0, 65_535),
    default=_DEFAULTS.port,
    metavar="N",
    help="Port for UDP and TCP; 0 for any free port.",
)
@settings.setting("--udp/--no-udp", default=_DEFAULTS.udp, help="Listen for packets by UDP.")
@settings.setting("--tcp/--no-tcp", default=_DEFAULTS.tcp, help="Listen for lines of text by TCP.")
@settings.setting(
    "--socket", metavar="PATH", help="Path of a unix datagram socket, as in DogStatsD."
)
@settings.setting(
    "--stream-socket", metavar="PATH", help="Path of a unix stream socket, for lines of text."
)
@settings.setting(
    "--socket-mode",
    type=Checked("octal", _mode),
    default=f"{_DEFAULTS.socket_mode:o}",
    metavar="OCTAL",
    help="Permissions of the unix sockets.",
)
@settings.setting(
    "--anyone",
    is_flag=True,
    help="Allow addresses beyond loopback: anyone who reaches the port may count anything.",
)
@settings.setting(
    "--map",
    metavar="FILE",
    help="File that maps StatsD names to counters and keys; SIGHUP reads it again.",
)
@settings.numbers(
    StatsdOptions,
    receive_buffer="Bytes of kernel memory per socket for waiting packets.",
    max_amount="Largest amount that one line may add or subtract.",
    max_counters="Most counters that names may make; lines of further ones go to __overflow__.",
    max_ahead_s="Seconds that a line's own time may be ahead of this machine's clock.",
    max_age_days="Days that a line's own time may be in the past; 0 for no limit.",
    max_connections="Most stream connections at once.",
    line_timeout_s="Seconds after which a connection with an unfinished line gives way to others.",
)
@metrics.options
@settings.log_format
@settings.urls("redis_url")
def command(log_format: str, **given: Any) -> int:
    """Count the metrics that StatsD clients send, until stopped.

    Counters (|c) with sample rates and tags go through a producer, like the increments of an app;
    other types are ignored. On SIGTERM and Ctrl-C it counts and stores all lines that have arrived.

    StatsD has no passwords, so the command listens at loopback only, unless --anyone is given.
    """
    url = settings.redis_url()
    with logged(log_format):
        with values_checked():
            options = StatsdOptions(**given)
            connect(url).close()  # refuses memory://, which a producer takes for tests
            producer = Producer(url, **asdict(settings.producer_options(url)))
        switch_before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            with signal_queue((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals:
                with Server(options, producer) as server:
                    health = partial(_health, url, server, producer)
                    with metrics.served(health):
                        _until_stopped(server, signals)
                return _stop(server, producer)
        except (MapError, NotLoopback) as error:
            raise Misuse(str(error)) from error
        finally:
            sys.setswitchinterval(switch_before)
            producer.close(0)  # no effect, unless an error came before


def _stop(server: Server, producer: Producer) -> int:
    """Store the increments that still wait, within about the producer's ``exit_timeout``. Log the
    end, and return the exit status: 0 if every increment since the start was stored in Redis or the
    spool; else 1, and the others are lost."""
    complete = producer.close(producer.exit_timeout)
    stats = producer.stats()
    server.log(
        StatsdAction.STOPPED,
        "stopped" if complete else "stopped: some increments are lost",
        level=logging.INFO if complete else logging.ERROR,
        lines=server.figures.lines,
        **asdict(server.figures),
        dropped=stats.dropped,
        spooled=stats.spooled,
    )
    return Exit.DONE if complete else Exit.FAILED


def _until_stopped(server: Server, signals: SignalQueue) -> None:
    lost = 0
    while True:
        number = signals.next(LOSS_CHECK_SECONDS)
        if number == signal.SIGHUP:
            server.reload()
        elif number is not None:
            server.log(StatsdAction.STOPPING, f"{number.name}: counting lines that have arrived")
            return
        figures = server.figures
        if figures.lost > lost:
            lost = figures.lost
            server.log.seldom(
                StatsdAction.LOST,
                "the kernel has dropped packets: its receive buffer was full",
                lost=lost,
                receive_buffer=figures.receive_buffer,
            )


def _health(redis_url: str, server: Server, producer: Producer) -> Health:
    """Return the health and metrics of a listener, for the endpoint of ``--metrics-port``. The
    listener is ready if Redis answers and is not full, or if the producer has a spool that
    works."""
    return Health(
        process="statsd",
        samples=lambda: _samples(server, producer),
        probes=probes(redis=redis_url, stores=True),
        needs=lambda redis: not producer.spools,
    )


def _samples(server: Server, producer: Producer) -> Samples:
    """Yield the metrics of a listener and of its producer."""
    figures = server.figures
    yield Sample("countersink_statsd_packets_total", figures.packets)
    yield Sample("countersink_statsd_packets_lost_total", figures.lost)
    for outcome in ("counted", "ignored", "discarded", "malformed"):
        lines = getattr(figures, outcome)
        yield Sample("countersink_statsd_lines_total", lines, {"outcome": outcome})
    yield Sample("countersink_statsd_lines_overflown_total", figures.overflown)
    yield Sample("countersink_statsd_connections", figures.connections)
    yield Sample("countersink_statsd_connections_refused_total", figures.refused)
    yield from producer_samples(producer)
