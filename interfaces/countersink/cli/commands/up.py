"""``countersink up``: the private servers and processes that it starts, their order and ports,
their restarts, and the file ``environment.sh``. Also ``countersink migrate``, which brings the
tables up to date; ``up`` does that, too, before it starts processes."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from countersink.cli import settings
from countersink.cli.errors import Failure, ServerError, scrub
from countersink.cli.output import write_result
from countersink.cli.private_server import (
    LOOPBACK,
    ChildProcess,
    PrivateServer,
    Restartable,
    free_port,
    is_free,
    write_private,
)
from countersink.cli.servers import MariaDBServer, RedisServer
from countersink.database.migrate import migrate
from countersink.database.sessions import open_tables
from countersink.runtime.log import LineHandler
from countersink.runtime.process import SignalQueue, signal_queue
from countersink.statsd.options import PORT as STATSD_PORT
from countersink.store import api_keys
from countersink.stream.connection import connect
from countersink.web.options import PORT as WEB_PORT

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DATABASE: Final = "countersink"
CHECK_EVERY_S: Final = 0.5
"""Seconds between two checks whether the servers and processes are alive."""
STOP_SECONDS: Final = 15.0
"""Seconds after SIGTERM at which a process is killed. Processes end within 10 s, even if their
servers do not answer."""
FIRST_PAUSE: Final = 1.0
"""Seconds from a death to the restart. Each further death doubles the pause, up to
``LONGEST_PAUSE``."""
LONGEST_PAUSE: Final = 30.0
STEADY_AFTER: Final = 60.0
"""Seconds without a death after which earlier deaths are forgotten."""
COMMANDS: Final = ("worker", "jobs", "jobs", "scheduler", "web", "statsd")
"""The processes, in the order of their start; they stop in the opposite order. A job process
executes one run at a time. There are two of them, so that the job ``alarms`` also runs during a run
of hours."""
COLOURS: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_red")
"""The colours of their names on a terminal."""
LAST_LINES_S: Final = 1.0
"""Longest wait for the last lines of a process that has ended: its children may go on writing."""
WEB_MODULE: Final = "uvicorn"
"""A module that only the extra ``web`` installs."""
KEY_FILE: Final = "web.key"
"""Name of the file that has the dashboard's API key. The key allows everything, so only its owner
may read the file."""

REDIS_URL, MYSQL_URL = "COUNTERSINK_REDIS_URL", "COUNTERSINK_MYSQL_URL"
JOBS_REDIS_URL = "COUNTERSINK_JOBS_REDIS_URL"
LINK_URL = "COUNTERSINK_LINK_CREATE_URL"


def _port(name: str, usual: int) -> Callable[[settings.Decorated], settings.Decorated]:
    """Decorator that adds the option ``--NAME-port`` for the port of the listener ``countersink
    NAME``. Without the option, `up` takes the port ``usual`` if it is free, else any free port."""
    return settings.setting(
        f"--{name}-port",
        type=click.IntRange(0, 65_535),
        metavar="N",
        help=f"Port of countersink {name}; 0 for any free port.  [default: {usual}, if free]",
    )


@click.command("up", cls=settings.Command)
@settings.urls("redis_url", "mysql_url", "jobs_redis_url")
@settings.setting(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=settings.DATA,
    metavar="DIR",
    help="Directory for the private servers' data and the dashboard's key, kept between runs.",
)
@_port("web", WEB_PORT)
@_port("statsd", STATSD_PORT)
def command(data: Path, web_port: int | None, statsd_port: int | None) -> None:
    """Run all processes on this machine, and private servers where no URL is configured.

    The private Redis and MariaDB listen on this machine only, on free ports, with their own
    passwords. First, the tables are brought up to date; in new tables, counters count hours unless
    `counter set` or `counter defaults` says otherwise. Then a worker, a scheduler, two job
    processes, the HTTP interface with its dashboard and the StatsD listener start, for this machine
    only. Each line of their output begins with the name of the process, unless it is JSON. A
    process or private server that dies is started again. HTTP needs a key, which is created and
    kept in DIR/web.key; the printed address logs in with it. Ctrl-C or SIGTERM stops the processes
    and servers that the command has started.
    """
    given = {
        REDIS_URL: settings.option_value("redis_url"),
        MYSQL_URL: settings.option_value("mysql_url"),
        JOBS_REDIS_URL: settings.option_value("jobs_redis_url"),
    }
    if given[REDIS_URL] is not None:
        # Refused before anything starts, memory:// too, which a producer takes.
        settings.jobs_redis_url()
        connect(settings.redis_url()).close()
    ports = {"web": None, "statsd": _chosen_port(statsd_port, STATSD_PORT)}
    if find_spec(WEB_MODULE) is not None:
        ports["web"] = _chosen_port(web_port, WEB_PORT)
    data = data.resolve()
    with (
        signal_queue(STOP_SIGNALS) as stop,
        _locked(data),
        ExitStack() as stack,  # stops servers and processes in the opposite order
    ):
        _run(data, {name: url for name, url in given.items() if url}, ports, stop, stack)


def _run(
    data: Path,
    given: Mapping[str, str],
    ports: Mapping[str, int | None],
    stop: SignalQueue,
    stack: ExitStack,
) -> None:
    """Start the private servers, bring the tables up to date, start the processes, and print the
    addresses. Until a signal comes, restart each server or process that dies. The caller stops all
    of them: it closes ``stack``.

    Args:
        data: the directory of the private servers.
        given: the URLs that the user has configured, by the name of their environment variable. A
            server whose URL is among them is never started or stopped, unless it is a private
            server of ``data``.
        ports: the port of each listener, by its command; None if the listener is not to be started.
        stop: the queue of signals that ask this command to stop.
        stack: gets the functions that stop what was started.
    """
    servers: list[PrivateServer] = []
    private: dict[str, str] = {}
    for variable, name, server, database in (
        (REDIS_URL, "Redis", RedisServer(data / "redis"), ""),
        (MYSQL_URL, "MariaDB", MariaDBServer(data / "mysql"), DATABASE),
    ):
        url = given.get(variable)
        # A shell that has read environment.sh gives the URL of the private server itself.
        own = server.directory.exists() and f":{server.password}@{LOOPBACK}:" in (url or "")
        if url and not own:
            _say(f"{variable} is set: using {url}, not a server in {data}")
        else:
            _say(f"starting {name} in {server.directory}")
            # before the start: a server whose start fails has to be stopped, too
            stack.callback(_stop, name, server)
            server.start()
            servers.append(server)
            private[variable] = server.url + database
            settings.known_urls().add(private[variable])
        if stop.next(0):
            return
    urls = {**given, **private}
    # Hours, because `totals --last 24h` is to answer for the first counter.
    for migration in migrate(urls[MYSQL_URL], resolution="hour"):
        _say(f"applied {migration}")
    key = _page_key(urls[MYSQL_URL], data / KEY_FILE)
    processes: list[Restartable] = []
    for name in COMMANDS:
        port = ports.get(name)
        if name in ports and port is None:
            continue
        child = CommandProcess(name, urls, () if port is None else ["--port", str(port)])
        child.start()
        stack.callback(_stop, f"the {name}", child)
        processes.append(child)
    click.echo(_instructions(urls, ports, private, data, key))
    sys.stdout.flush()
    restarters = [Restarter(part) for part in (*servers, *processes)]
    while not stop.next(CHECK_EVERY_S):
        for restarter in restarters:
            restarter.check()
    _say("stopping: first the listeners, last the servers")


def _stop(name: str, part: Restartable) -> None:
    try:
        part.stop()
    except ServerError as failure:
        _say(f"{name}: {failure}")  # and stop the others


def _say(text: str) -> None:
    """Print a notice on stderr, without passwords."""
    click.echo(scrub(f"countersink up: {text}", settings.known_urls()), err=True)


def _instructions(
    urls: Mapping[str, str],
    ports: Mapping[str, int | None],
    private: Mapping[str, str],
    data: Path,
    key: str,
) -> str:
    page, variables = "not installed: pip install 'countersink[web]'", dict(urls)
    if ports["web"] is not None:
        variables[LINK_URL] = f"http://127.0.0.1:{ports['web']}"
        page = f"{variables[LINK_URL]}/login#key={key}"
    lines = [
        "countersink is up.",
        f"  web     {page}",
        f"  statsd  udp://127.0.0.1:{ports['statsd']}",
        f"  queue   {scrub(urls[REDIS_URL], ())}",
        f"  tables  {scrub(urls[MYSQL_URL], ())}",
    ]
    if private:
        lines.append(f"  data    {data} (kept when this stops)")
    lines.append("In another shell:")
    if private:
        file = _write_environment(data, variables)
        lines.append(f"  . {file}      # sets {' and '.join(urls)}, with passwords")
    lines += [
        "  countersink increment page_views /home",
        "  countersink totals page_views --last 24h",
        "  countersink info",
        "Ctrl-C stops it.",
    ]
    return "\n".join(lines)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Make the directory, and hold its lock inside the block. The kernel frees the lock if this
    process dies.

    Raises:
        Failure: another `up` holds the lock, or another user owns the directory.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        raise Failure(
            f"{directory} belongs to another user (uid {owner}), who could read and change the"
            " counts: name another directory with --data"
        )
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(
                f"another countersink up is using {directory}: stop it, or name another directory"
                " with --data"
            ) from None
        yield


def _page_key(mysql_url: str, file: Path) -> str:
    """Return the API key for the dashboard: the one in ``file`` if it is valid in the database,
    else a new key with the scope ``admin``, which is written to ``file``."""
    kept = file.read_text().strip() if file.exists() else ""
    with open_tables(mysql_url) as session:
        if api_keys.is_valid(session, kept):
            return kept
        _, made = api_keys.create(session, "countersink up", ["admin"])
    write_private(file, f"{made}\n")
    return made


def _write_environment(directory: Path, urls: Mapping[str, str]) -> Path:
    """Write the shell file ``environment.sh``, and return its path. It exports ``urls``, by the
    name of their environment variable. They contain passwords, so only its owner may read the
    file."""
    lines = ["# Written by `countersink up`; holds passwords."]
    lines += [f"export {variable}={shlex.quote(url)}" for variable, url in urls.items()]
    file = directory / settings.ENVIRONMENT_FILE
    write_private(file, "\n".join(lines) + "\n")
    return file


class CommandProcess(Restartable):
    """A process that runs `countersink NAME ARGUMENTS`. It gets ``urls`` (by the name of their
    variable) as environment variables, because every user of the machine can read a command line,
    and URLs contain passwords."""

    def __init__(self, name: str, urls: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        self.name = name
        self._arguments = arguments
        self._environment = {**os.environ, **urls}
        for variable in urls:
            self._environment.pop(f"{variable}_FILE", None)  # the command refuses both

    def start(self) -> object:
        """Start the process, and return this object at once. The process itself waits until its
        servers answer."""
        reader, writer = os.pipe()
        self._relay = threading.Thread(target=relay, args=(self.name, reader), daemon=True)
        self._relay.start()
        with os.fdopen(writer, "wb"):  # the process has a copy
            self._process = ChildProcess(
                [sys.executable, "-m", "countersink.cli.entry", self.name, *self._arguments],
                output=writer,
                death_signal=signal.SIGTERM,
                environment=self._environment,
            )
        return self

    def stop(self) -> None:
        """Send SIGTERM, and wait until the process has ended; ServerFailed if it had to be killed
        after ``STOP_SECONDS``. Does nothing if the process does not run."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM, STOP_SECONDS)
            self._process = None
            self._relay.join(LAST_LINES_S)


def relay(name: str, reader: int) -> None:
    """Copy the output of the process ``name`` from the pipe ``reader`` to stderr until the output
    ends, then close ``reader``. Put the name before each line, in colour on a terminal; copy lines
    of JSON unchanged. While the pipe is open, never wait for stderr, so that the process can always
    write. Lines that stderr does not take are kept and, beyond a limit, dropped (see
    :class:`LineHandler`)."""
    prefix = f"{name:<{max(map(len, COMMANDS))}} | "
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        prefix = click.style(prefix, fg=COLOURS[COMMANDS.index(name) % len(COLOURS)])
    stderr = LineHandler(sys.stderr)
    with os.fdopen(reader, encoding="utf-8", errors="replace", newline="\n") as lines:
        for line in lines:
            stderr.write(("" if line.startswith("{") else prefix) + line.rstrip("\n") + "\n")
    stderr.close()


def _chosen_port(asked: int | None, usual: int) -> int:
    if asked is None and is_free(usual):
        return usual
    return asked or free_port()


class Restarter:
    """Restarts the server or process ``part`` after it has died. The pause before the restart is
    ``FIRST_PAUSE`` seconds, and each further death doubles it, up to ``LONGEST_PAUSE``. Deaths
    before a run of ``STEADY_AFTER`` seconds are forgotten. `up` calls `check`, which does the work,
    every ``CHECK_EVERY_S`` seconds."""

    def __init__(self, part: Restartable) -> None:
        self._part = part
        self._started = time.monotonic()
        self._deaths = 0
        self._due: float | None = None  # monotonic time of the next start; None while it runs

    def check(self) -> None:
        """Plan a restart if the server or process has died; start it again if the planned time has
        come. A start that fails (ServerError, OSError) counts as a death; the error is not raised.
        """
        if self._due is None:
            if not self._part.running:
                self._note_death(self._part.how_it_ended())
        elif time.monotonic() >= self._due:
            self._start()

    def _note_death(self, how: str) -> None:
        # A start that fails was no run, however long it took.
        if self._due is None and time.monotonic() - self._started >= STEADY_AFTER:
            self._deaths = 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._deaths)
        self._deaths += 1
        self._due = time.monotonic() + pause
        _say(f"the {self._part.name} {how}; starting it again in {pause:g} s")

    def _start(self) -> None:
        try:
            self._part.start()
        except (ServerError, OSError) as failure:
            self._note_death(f"did not start ({failure})")
        else:
            self._started, self._due = time.monotonic(), None
            _say(f"the {self._part.name} runs again")


@click.command("migrate", cls=settings.Command)
@settings.mysql_options("text", "json")
def migrate_command() -> None:
    """Create the database and its tables, or bring them up to date.

    The command is safe at any time, also several times at once. It refuses a schema that is newer
    than this program.
    """
    applied = migrate(settings.mysql_url())
    lines = [*(f"applied {name}" for name in applied), "The schema is up to date."]
    write_result({"applied": applied}, "\n".join(lines))
