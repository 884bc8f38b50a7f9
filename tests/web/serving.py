"""The real application on the real server, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import requests
import uvloop

from countersink.cli.commands.operate.info import system_state
from countersink.cli.commands.operate.job_runs import control_job
from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.store import Store, api_keys
from countersink.store.api_keys import SCOPES
from countersink.stream.connection import connect
from countersink.web.app import ROUTES, Application
from countersink.web.http import Route
from countersink.web.options import WebOptions
from countersink.web.server import WebServer, listen, make_server, url_of
from countersink.web.services import Services
from countersink.worker import WorkerOptions, run
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Web:
    """A running server.

    Attributes:
        url: of its root, without a slash at the end.
        options: its settings.
        application: what it serves.
        loop: where it runs.
    """

    url: str
    options: WebOptions
    application: Application
    loop: asyncio.AbstractEventLoop

    @property
    def services(self) -> Services:
        """What its handlers work with."""
        return self.application.services

    @property
    def producer(self) -> Producer:
        """Its producer."""
        return self.services.producer

    @property
    def store(self) -> Store:
        """Its store."""
        return self.services.store

    def key(
        self,
        *scopes: str,
        name: str = "test",
        counters: Sequence[str] = (),
        expires: datetime | None = None,
    ) -> str:
        """A new key with these scopes (default: all); which the server knows at once."""
        with open_tables(self.options.mysql_url) as session:
            _, text = api_keys.create(
                session, name, scopes or SCOPES, counters=counters, expires=expires
            )
        self.look_again()
        return text

    def ask(self, method: str, path: str, key: str = "", **more: Any) -> requests.Response:
        """The answer to a request with this key; ``more`` is for :func:`requests.request`."""
        headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **more.pop("headers", {})}
        return requests.request(method, f"{self.url}{path}", headers=headers, timeout=20, **more)

    def beside(self, **options: Any) -> AbstractContextManager[Web]:
        """Another server, as of :func:`serving`, with the same servers behind it."""
        options = {"without_keys": self.options.without_keys, **options}
        return serving(self.options.redis_url, self.options.mysql_url, **options)

    def look_again(self) -> None:
        """Let the server read the keys and logins now."""
        reading = self.services.register.refresh()
        asyncio.run_coroutine_threadsafe(reading, self.loop).result(20)

    def count(
        self, counter: str, key: str = "", amount: int = 1, at: datetime | None = None
    ) -> None:
        """Count this, and let a worker apply it."""
        self.producer.increment(counter, key, amount, at=at)
        self.apply()

    def apply(self) -> None:
        """Let a worker apply everything that the server has accepted."""
        assert self.producer.flush(timeout=20)
        options = WorkerOptions(
            redis_url=self.options.redis_url, mysql_url=self.options.mysql_url, drain=True
        )
        assert run(options) == 0


@contextmanager
def serving(
    redis_url: str,
    mysql_url: str,
    *,
    routes: Sequence[Route] = ROUTES,
    producer: dict[str, Any] | None = None,
    without_keys: bool = True,
    **options: Any,
) -> Iterator[Web]:
    """Serve until the end of the block, on a free port of loopback.

    Args:
        redis_url, mysql_url: the servers behind it.
        routes: what there is; default: everything.
        producer: arguments of the Producer.
        without_keys: whoever shows no key may do everything.
        options: fields of :class:`~countersink.web.options.WebOptions`.
    """
    chosen = WebOptions(
        redis_url=redis_url,
        mysql_url=mysql_url,
        without_keys=without_keys,
        **{"port": 0, **options},
    )
    with connect(redis_url) as client:
        application = Application(
            chosen,
            producer=partial(Producer, redis_url, handle_sigterm=False, **(producer or {})),
            system=partial(system_state, client, mysql_url),
            schedule=partial(control_job, mysql_url),
            routes=routes,
        )
        with listen(chosen) as listener:
            server = make_server(application, chosen)
            loop = uvloop.new_event_loop()
            thread = threading.Thread(target=_serve, args=(loop, server, listener))
            thread.start()
            try:
                eventually(lambda: server.started or not thread.is_alive())
                assert thread.is_alive(), "the server did not start"
                yield Web(url_of(listener), chosen, application, loop)
            finally:
                server.should_exit = True
                thread.join(30)
                assert not thread.is_alive(), "the server did not end"


def _serve(loop: asyncio.AbstractEventLoop, server: WebServer, listener: socket.socket) -> None:
    try:
        loop.run_until_complete(server.serve(sockets=[listener]))
    finally:
        loop.close()
