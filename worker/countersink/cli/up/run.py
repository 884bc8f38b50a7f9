"""Everything in one command: start, migrate, work, look after it, stop in order."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import click

from countersink.cli import secrets
from countersink.cli.failures import Failure
from countersink.cli.servers import MySQLServer, RedisServer, ServerError
from countersink.cli.servers.base import PrivateServer
from countersink.cli.up.children import Ports, children
from countersink.cli.up.directory import locked, write_environment
from countersink.cli.up.keeper import Keeper, Part
from countersink.cli.up.stopping import Stopping, stop_signals
from countersink.store.migrate import migrate

DATABASE = "countersink"
OPEN_WITHIN, OPEN_EVERY = 20.0, 0.1
"""Seconds that the page gets to open before it is told of all the same, and between two looks."""
LOOK_EVERY = 0.5
"""Seconds between two looks at the children."""

REDIS_URL, MYSQL_URL = "COUNTERSINK_REDIS_URL", "COUNTERSINK_MYSQL_URL"


@dataclass(frozen=True, slots=True)
class Urls:
    """Where the queue and the tables are, configured or of private servers."""

    redis: str
    mysql: str

    def environment(self) -> dict[str, str]:
        return {REDIS_URL: self.redis, MYSQL_URL: self.mysql}


def run(data: Path, redis_url: str | None, mysql_url: str | None, ports: Ports) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP; then stop everything in the opposite order of starting.

    A server that is configured by its URL is used as it is, and never started or stopped.
    Raises Failure, and the errors of `countersink.store`.
    """
    data = data.resolve()
    private = redis_url is None or mysql_url is None
    with (
        stop_signals() as stopping,
        locked(data) if private else nullcontext(),
        ExitStack() as stack,
    ):
        try:
            _run(data, redis_url, mysql_url, ports, stopping, stack)
        except ServerError as failure:
            raise Failure(str(failure)) from failure


def _run(
    data: Path,
    redis_url: str | None,
    mysql_url: str | None,
    ports: Ports,
    stopping: Stopping,
    stack: ExitStack,
) -> None:
    servers: list[PrivateServer] = []
    ours: dict[str, str] = {}
    # orphans of a killed `up` shut down cleanly by themselves
    death_signal = signal.SIGTERM
    if redis_url is None:
        redis = RedisServer(data / "redis", death_signal=death_signal)
        _start(redis, "Redis", stack)
        servers.append(redis)
        redis_url = ours[REDIS_URL] = redis.url
    if stopping.asked():
        return
    if mysql_url is None:
        mysql = MySQLServer(data / "mysql", death_signal=death_signal)
        _start(mysql, "MariaDB", stack)
        servers.append(mysql)
        mysql_url = ours[MYSQL_URL] = mysql.url_for(DATABASE)
    if stopping.asked():
        return
    urls = Urls(redis_url, mysql_url)
    for url in ours.values():
        secrets.remember(url)
    for applied in migrate(urls.mysql):
        say(f"applied {applied}")
    if stopping.asked():
        return
    processes = children(urls.environment(), ports)
    for child in processes:
        child.start()
        stack.callback(_stopper(f"the {child.name}", child.stop))
    deadline = time.monotonic() + OPEN_WITHIN
    while not ports.open() and time.monotonic() < deadline:
        if stopping.wait(OPEN_EVERY):
            return
    click.echo(_instructions(urls, ports, ours, data))
    sys.stdout.flush()
    parts: list[Part] = [*servers, *processes]
    keeper = Keeper(parts, say)
    while not stopping.wait(LOOK_EVERY):
        keeper.look()
    say("stopping: what takes increments first, the servers last")


def _start(server: PrivateServer, name: str, stack: ExitStack) -> None:
    say(f"starting {name} in {server.directory}")
    # before the start: a server that is half started has to be stopped, too
    stack.callback(_stopper(name, server.stop))
    server.start()


def _stopper(name: str, stop: Callable[[], None]) -> Callable[[], None]:
    def stop_and_say() -> None:
        try:
            stop()
        except ServerError as failure:
            say(f"{name}: {failure}")  # go on with the next: nothing may stay behind

    return stop_and_say


def say(text: str) -> None:
    """One line of progress, on stderr, without any password."""
    click.echo(secrets.scrub(f"countersink up: {text}"), err=True)


def _instructions(urls: Urls, ports: Ports, ours: Mapping[str, str], data: Path) -> str:
    page = (
        "not installed: pip install 'countersink[web]'"
        if ports.web is None
        else f"http://127.0.0.1:{ports.web}/"
    )
    lines = [
        "countersink is up.",
        f"  web     {page}",
        f"  statsd  udp://127.0.0.1:{ports.statsd}",
        f"  queue   {secrets.scrub(urls.redis)}",
        f"  tables  {secrets.scrub(urls.mysql)}",
    ]
    if ours:
        lines.append(f"  data    {data} (kept when this stops)")
    lines.append("In another shell:")
    if ours:
        file = write_environment(data, ours)
        near = os.path.relpath(file)
        shown = str(file) if near.startswith("..") else f"./{near}"
        lines.append(f"  . {shown}      # sets {' and '.join(ours)}, passwords included")
    lines += [
        "  countersink increment page_views /home",
        "  countersink totals page_views",
        "  countersink info",
        "Ctrl-C stops it.",
    ]
    return "\n".join(lines)
