"""The HTTP server: uvicorn with uvloop and httptools, as this program wants it."""

import asyncio
import ctypes
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import uvicorn

from countersink.web.application import Application
from countersink.web.options import WebOptions
from countersink.web.protocol import BoundedProtocol, Limits

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
_UVICORN: Final = logging.getLogger("uvicorn.error")
_OURS: Final = logging.getLogger("countersink.web")


class Server(uvicorn.Server):
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


def listen(options: WebOptions) -> socket.socket:
    """A socket at ``host`` and ``port``, listening.

    Raises:
        OSError: it cannot be had.
    """
    found = socket.getaddrinfo(
        options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


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


def make_server(application: Application, options: WebOptions) -> Server:
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
    config.http_protocol_class = partial(BoundedProtocol, Limits(options))  # type: ignore[assignment]
    return Server(config, application)


class _Forwarded(logging.Handler):
    """What uvicorn warns of, as a record of ours: without its traceback, which can quote data."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().partition("\n")[0][:300]
        _OURS.log(record.levelno, line, extra={"action": "uvicorn"})
