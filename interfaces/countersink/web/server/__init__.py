"""The server process: uvicorn, with bounds on each connection. The web process: starts and stops
uvicorn, keep-alive, backlog, time for the stop, exit status; refuses to start without a key, or
makes one on a terminal; its log lines."""

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

from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.runtime.log import Log
from countersink.runtime.process import SIGNALS
from countersink.store import api_keys
from countersink.web.app import Application
from countersink.web.errors import CannotServe
from countersink.web.options import WebOptions
from countersink.web.server.protocol import BoundedProtocol, ConnectionLimits

LOG: Final = Log(logging.getLogger("countersink.web"))
DONE: Final = 0
FAILED: Final = 1
KEEP_ALIVE_S: Final = 65
"""Seconds that a connection may be idle: longer than the proxies in front of it wait."""
STOP_WITHIN_S: Final = 15
"""Seconds that requests may go on after SIGTERM."""
BACKLOG: Final = 1024
"""Connections that the kernel holds until they are accepted."""
OTHER_FILES: Final = 256
"""Descriptors besides those of clients: servers behind, logs, the spool."""
_TICKS: Final = 10
"""Ticks of uvicorn's clock, of 0.1 s, between two looks for connections that are too slow."""
_TRIM_TICKS: Final = 100
"""The same, between two times that memory is given back."""
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's (malloc_trim(3)): it keeps the memory of what was freed between what was not."""
_FIRST_KEY: Final = "first key"
"""Name of the key that is made on a terminal."""
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
    """Serve until SIGTERM or SIGINT: then requests are answered, what was accepted is stored.

    Args:
        options: the settings.
        producer, system: see :class:`countersink.web.app.Application`.
        announce: called with a key that was made, and with the URL once connections are accepted.
        terminal: a person reads that: where no key is valid, one is made.

    Returns:
        0; 1 where something that was accepted could not be stored, which is in the log.

    Raises:
        CannotServe: no key is valid; or the address is taken, or none of this machine's.
        StoreError: MySQL is away, or its tables are not ours.
    """
    with open_tables(options.mysql_url) as session:
        key = None if options.without_keys else first_key(session, terminal=terminal)
    application = Application(options, producer=producer, system=system, schedule=schedule)
    server = make_server(application, options)
    room = allow_files(options.max_connections)
    if room < options.max_connections:
        LOG(
            "few_files",
            f"this process may open files for {room} connections only: raise its limit (ulimit -n,"
            " LimitNOFILE=), or lower --max-connections",
            level=logging.WARNING,
        )
    try:
        listener = listen(options)
    except OSError as error:
        raise CannotServe(
            f"cannot listen at {options.host} port {options.port}: {error.strerror or error};"
            " choose others with --host and --port"
        ) from error
    with listener, _signals(server):
        url = url_of(listener)
        server.on_started = lambda: announce(f"listening at {url}")
        LOG("started", "a web process starts", url=url)
        if options.without_keys:
            LOG("no_key", "--without-keys: whoever reaches this server may do everything")
        if key is not None:
            announce(f"no key was valid; this one may do everything, and is shown once: {key}")
        server.run(sockets=[listener])
    if application.complete:
        LOG("stopped", "a web process ends; all that it accepted is stored")
        return DONE
    LOG("lost", "not all that was accepted could be stored", level=logging.ERROR)
    return FAILED


def first_key(session: Session, *, terminal: bool) -> str | None:
    """A key that was made because none was valid; None where one is.

    Raises:
        CannotServe: none is valid, and there is no terminal to show one at.
    """
    if api_keys.any_valid(session):
        return None
    if not terminal:
        raise CannotServe(
            "no key is valid: make one with countersink key create NAME --scope admin, or let"
            " everybody in with --without-keys"
        )
    return api_keys.create_first(session, _FIRST_KEY)


def listen(options: WebOptions) -> socket.socket:
    """A socket at ``host`` and ``port``, listening.

    Raises:
        OSError: it cannot be had.
    """
    found = socket.getaddrinfo(
        options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = found[0]
    both = family == socket.AF_INET6  # of "::" IPv4, too
    return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)


def allow_files(connections: int) -> int:
    """See to it that the process may have so many connections, as far as its hard limit goes.

    Many systems begin with 1,024 descriptors: with all of them in use by clients, none would be
    left for Redis.

    Returns:
        For how many connections there is room.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if resource.RLIM_INFINITY != soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else min(connections, soft - OTHER_FILES)


def url_of(listener: socket.socket) -> str:
    """Where it listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class WebServer(uvicorn.Server):
    """Serves until ``should_exit`` is set; whoever runs it minds the signals.

    Args:
        config: uvicorn's.
        application: what it serves.

    Attributes:
        on_started: called once connections are accepted.
    """

    on_started: Callable[[], object]

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self.on_started = lambda: None
        self._application = application

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, and say so."""
        await super().startup(sockets)
        if self.started:
            self.on_started()

    async def on_tick(self, counter: int) -> bool:
        """Look for connections that are too slow, and give memory back, less often than uvicorn's
        clock ticks."""
        if counter % _TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.end_if_late(now)
        if counter % _TRIM_TICKS == 0 and _trim is not None:
            _trim(0)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what would go on without end, then wait for what will not."""
        self._application.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: uvicorn's way raises them again at the end."""
        yield


def make_server(application: Application, options: WebOptions) -> WebServer:
    """The server; its ``run(sockets=[…])`` serves until its ``should_exit`` is set."""
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
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_WITHIN_S,
        backlog=BACKLOG,
    )
    config.load()
    config.http_protocol_class = partial(BoundedProtocol, ConnectionLimits(options))  # type: ignore[assignment]
    return WebServer(config, application)


class _Forwarded(logging.Handler):
    """What uvicorn warns of, as a record of ours: without its traceback, which can quote data."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().partition("\n")[0][:300]
        LOG("uvicorn", line, level=record.levelno)


@contextmanager
def _signals(server: WebServer) -> Iterator[None]:
    """Let the signals end ``server``; puts back at the end what was there."""

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
