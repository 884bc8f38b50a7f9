"""The HTTP server: uvicorn with uvloop and httptools, as this program wants it."""

import socket
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from countersink.web.options import WebOptions

KEEP_ALIVE_S: Final = 65
"""Seconds that a connection may be idle: longer than the proxies in front of it wait."""
STOP_WITHIN_S: Final = 15
"""Seconds that requests may go on after SIGTERM."""
BACKLOG: Final = 1024
"""Connections that the kernel holds until they are accepted."""


def listen(options: WebOptions) -> socket.socket:
    """A socket at ``host`` and ``port``, listening.

    Raises:
        OSError: it cannot be had.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def make_server(app: ASGIApp, options: WebOptions) -> uvicorn.Server:
    """The server; its ``run(sockets=[…])`` serves until its ``should_exit`` is set."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
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
    )
