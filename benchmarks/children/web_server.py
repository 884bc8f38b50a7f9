"""A process of `benchmarks.http`: one server, which says where it listens and serves until told."""

from __future__ import annotations

import logging
import socket
import threading
from functools import partial

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.processes import answer, first_message, next_message
from countersink.producers import Producer
from countersink.web.app import Application
from countersink.web.options import WebOptions
from countersink.web.server import listen, make_server

NO_LIMIT = 1e9
"""Requests per second: one client of the benchmark sends more than any should."""


async def bare(request: Request) -> Response:
    """What there is to beat: the body is read, and nothing is done."""
    await request.body()
    return Response(b'{"accepted":1}', 202, media_type="application/json")


def bare_server() -> uvicorn.Server:
    """Starlette on uvicorn with uvloop and httptools, as ours is."""
    config = uvicorn.Config(
        Starlette(routes=[Route("/v1/increments", bare, methods=["POST"])]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level=logging.WARNING,
    )
    return uvicorn.Server(config)


def no_jobs(what: str, job: str) -> dict[str, str]:
    """There are none."""
    raise LookupError(job)


def main() -> None:
    arguments = first_message()
    server: uvicorn.Server
    if arguments["bare"]:
        server = bare_server()
        listener = socket.create_server(("127.0.0.1", 0))
    else:
        options = WebOptions(
            redis_url=arguments["redis_url"],
            mysql_url=arguments["mysql_url"],
            port=0,
            rate_per_key=NO_LIMIT,
            rate_per_address=NO_LIMIT,
        )
        producer = partial(Producer, options.redis_url, handle_sigterm=False)
        server = make_server(
            Application(options, producer=producer, system=dict, schedule=no_jobs), options
        )
        listener = listen(options)
    answer({"port": listener.getsockname()[1]})

    def end() -> None:
        next_message()
        server.should_exit = True

    threading.Thread(target=end, daemon=True).start()
    with listener:
        server.run(sockets=[listener])
    answer({"ended": True})


if __name__ == "__main__":
    main()
