"""The real application on the real server, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from countersink.cli.commands.info import found
from countersink.producers import Producer
from countersink.store import Store
from countersink.stream.connection import connect
from countersink.web.app import DOORS, create_app
from countersink.web.application import Application
from countersink.web.door import Door
from countersink.web.options import WebOptions
from countersink.web.server import listen, make_server
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
    """

    url: str
    options: WebOptions
    application: Application

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
    doors: Sequence[Door] = DOORS,
    producer: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Web]:
    """Serve until the end of the block, on a free port of loopback.

    Args:
        redis_url, mysql_url: the servers behind it.
        doors: what there is; default: everything.
        producer: arguments of the Producer.
        options: fields of :class:`~countersink.web.options.WebOptions`.
    """
    chosen = WebOptions(redis_url=redis_url, mysql_url=mysql_url, **{"port": 0, **options})
    with connect(redis_url) as client:
        application = create_app(
            chosen,
            producer=partial(Producer, redis_url, handle_sigterm=False, **(producer or {})),
            system=partial(found, client, mysql_url),
            doors=doors,
        )
        with listen(chosen) as listener:
            port = listener.getsockname()[1]
            server = make_server(application, chosen)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                eventually(lambda: server.started or not thread.is_alive())
                assert thread.is_alive(), "the server did not start"
                host = f"[{chosen.host}]" if ":" in chosen.host else chosen.host
                yield Web(f"http://{host}:{port}", chosen, application)
            finally:
                server.should_exit = True
                thread.join(30)
                assert not thread.is_alive(), "the server did not end"
