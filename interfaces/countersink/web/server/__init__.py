"""The web process: starts and stops uvicorn, writes the log, and returns the exit status. If
requests need a key and no valid key exists, it creates the first key and shows it on the terminal.
Without a terminal, it refuses to start."""

import asyncio
import ctypes
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn

from countersink.database.errors import Unavailable
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.runtime.log import Log
from countersink.runtime.process import SIGNALS
from countersink.runtime.texts import plural
from countersink.store import api_keys
from countersink.web.app import Application
from countersink.web.errors import CannotServe
from countersink.web.options import WebOptions
from countersink.web.server.protocol import BoundedProtocol, ConnectionLimits

LOG: Final = Log(logging.getLogger("countersink.web"))
DONE: Final = 0
FAILED: Final = 1
STOP_WITHIN_S: Final = 15
"""Seconds after SIGTERM within which running requests must end."""
BACKLOG: Final = 1024
"""Maximum number of connections that the kernel queues until the server accepts them."""
OTHER_FILES: Final = 256
"""File descriptors that are reserved for Redis, MySQL, logs and the spool."""
_TICKS: Final = 10
"""Ticks of uvicorn's clock between two checks for slow and idle connections. A tick is 0.1 s."""
_TRIM_TICKS: Final = 100
"""Ticks between two calls of :data:`_trim`."""
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""malloc_trim(3) of glibc, which returns freed memory to the kernel; None with other C
libraries."""
_FIRST_KEY: Final = "first key"
"""Name of the key that this process creates on a terminal."""
_UVICORN: Final = logging.getLogger("uvicorn.error")


def run(
    options: WebOptions,
    *,
    producer: Callable[[], Producer],
    system: Callable[[], Mapping[str, Any]],
    schedule: Callable[[str, str], Mapping[str, Any]],
    announce: Callable[[str], object],
    terminal: bool = False,
) -> int:
    """Run the web server until SIGTERM or SIGINT. Then answer the running requests, for at most
    :data:`STOP_WITHIN_S` seconds, and store accepted increments. If MySQL is away at the start,
    serve nevertheless, without the check of tables and keys.

    Args:
        options: the settings.
        producer, system, schedule: see :class:`countersink.web.app.Application`.
        announce: is called with each text to show: a new key, and the URL once connections are
            accepted.
        terminal: whether a person reads the announced texts; only then a first key may be created.

    Returns:
        The exit status: 0, or 1 if some accepted increments could not be stored, which is logged.

    Raises:
        CannotServe: requests need a key, none is valid, and ``terminal`` is False; or the server
            cannot listen at its address.
        StoreError: MySQL lacks the tables of this version or refuses the login, or its URL cannot
            be used.
        SystemExit: the application could not start, which uvicorn logs; uvicorn raises it.
    """
    key = None
    try:
        with open_tables(options.mysql_url) as session:
            key = None if options.without_keys else first_key(session, terminal=terminal)
    except Unavailable as error:
        text = f"MySQL is away: {error}; what needs it is answered with 503 until it is back"
        LOG("waiting", text, level=logging.WARNING)
    application = Application(options, producer=producer, system=system, schedule=schedule)
    server = make_server(application, options)
    room = allow_files(options.max_connections)
    if room < options.max_connections:
        LOG(
            "few_files",
            f"the limit of open files allows {plural(room, 'connection')}: raise it (ulimit -n,"
            " LimitNOFILE=), or lower --max-connections",
            level=logging.WARNING,
        )
    try:
        listener = listen(options)
    except OSError as error:
        raise CannotServe(
            f"cannot listen at {options.host} port {options.port}: {error.strerror or error};"
            " choose another address with --host and --port"
        ) from error
    with listener, _signals(server):
        url = url_of(listener)
        server.on_started = lambda: announce(f"listening at {url}")
        LOG("started", "web process started", url=url)
        if options.without_keys:
            LOG("no_key", "--without-keys: anybody who reaches this server may do everything")
        if key is not None:
            announce(f"no key was valid: this new key may do everything, and is shown once: {key}")
        server.run(sockets=[listener])
    if application.complete:
        LOG("stopped", "web process stopped; all accepted increments are stored")
        return DONE
    LOG("lost", "some accepted increments could not be stored", level=logging.ERROR)
    return FAILED


def first_key(session: Session, *, terminal: bool) -> str | None:
    """Create an API key with all rights if there is no valid key, and return its text. Return None
    if there is a valid key. ``terminal`` is as for :func:`run`.

    Raises:
        CannotServe: no key is valid, and there is no terminal on which a new key could be shown.
    """
    if api_keys.any_valid(session):
        return None
    if not terminal:
        raise CannotServe(
            "no key is valid: create one with countersink key create NAME --scope admin, or"
            " allow requests without keys with --without-keys"
        )
    return api_keys.create_first(session, _FIRST_KEY)


def listen(options: WebOptions) -> socket.socket:
    """Return a listening socket at the options' ``host`` and ``port``.

    Raises:
        OSError: the name of the host is unknown, or the address is not available.
    """
    found = socket.getaddrinfo(
        options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = found[0]
    both = family == socket.AF_INET6  # "::" listens at IPv4 as well
    return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)


def allow_files(connections: int) -> int:
    """Raise this process's soft limit of open files so that it can have ``connections``
    connections and :data:`OTHER_FILES` other files. The new limit is not above the hard limit.

    Many systems set the soft limit to 1,024. Clients could then use all descriptors, and none would
    be left for Redis.

    Returns:
        The number of connections that the new limit allows, ``connections`` at most.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if resource.RLIM_INFINITY != soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else min(connections, soft - OTHER_FILES)


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket, without a path."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class WebServer(uvicorn.Server):
    """uvicorn's server; it serves until ``should_exit`` is set, and installs no signal handlers.

    Args:
        config: the configuration of uvicorn, with the application to serve.
        application: the same application, to be told that the server stops.

    Attributes:
        on_started: is called once connections are accepted; does nothing by default.
    """

    on_started: Callable[[], object]

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self.on_started = lambda: None
        self._application = application

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, then call ``on_started``, unless the start failed."""
        await super().startup(sockets)
        if self.started:
            self.on_started()

    async def on_tick(self, counter: int) -> bool:
        """Close slow and idle connections every :data:`_TICKS` ticks. Return freed memory to the
        kernel every :data:`_TRIM_TICKS` ticks, if the C library is glibc. uvicorn calls this method
        at each tick with the number of the tick. The result is uvicorn's own: whether the server
        has to stop."""
        if counter % _TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.end_if_late(now)
        if counter % _TRIM_TICKS == 0 and _trim is not None:
            _trim(0)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the endless answers (``/v1/live``) and the reads of the queue, wait for the other
        answers for at most :data:`STOP_WITHIN_S` seconds, then end the application, which stores
        accepted increments. uvicorn calls this method when ``should_exit`` is set."""
        self._application.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers. uvicorn's own handlers would raise the signals again when the
        server has stopped."""
        yield


def make_server(application: Application, options: WebOptions) -> WebServer:
    """Return uvicorn's server for an application. To serve, call its ``run(sockets=[…])``. From now
    on, uvicorn's warnings and errors go to our log only."""
    _UVICORN.handlers = [_Forwarded()]
    _UVICORN.propagate = False
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_WITHIN_S,
        backlog=BACKLOG,
    )
    config.load()
    config.http_protocol_class = partial(BoundedProtocol, ConnectionLimits(options))  # type: ignore[assignment]
    return WebServer(config, application)


class _Forwarded(logging.Handler):
    """A log handler that writes the first line of uvicorn's warnings and errors, up to 300
    characters, to our log. Their tracebacks are left out, because these can quote data."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().partition("\n")[0][:300]
        LOG("uvicorn", line, level=record.levelno)


@contextmanager
def _signals(server: WebServer) -> Iterator[None]:
    """Make SIGTERM and SIGINT end ``server`` within the block, and restore the signal handlers
    after it."""

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
