"""Makers of servers for tests that stop, kill, freeze or configure them."""

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, Self, TypeVar

from tests.support.servers import FAST, AppendFsync, Kind, MySQLServer, RedisServer
from tests.support.templates import SMALL, template

S = TypeVar("S", RedisServer, MySQLServer)


class ServerFactory(Generic[S]):
    """Kills what it made when the test is over: nothing in there is wanted any more."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._made: list[S] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._made:
            with contextlib.suppress(ProcessLookupError):
                server.kill()
            shutil.rmtree(server.directory, ignore_errors=True)

    def _started(self, server: S) -> S:
        self._made.append(server)
        return server.start()

    def _directory(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="own-", dir=self._parent))


class RedisFactory(ServerFactory[RedisServer]):
    """``own_redis_server(appendfsync="always")`` is a started server with an append-only file."""

    def __call__(
        self, *, appendfsync: AppendFsync = "everysec", extra: Sequence[str] = ()
    ) -> RedisServer:
        return self._started(RedisServer(self._directory(), appendfsync=appendfsync, extra=extra))


class MySQLFactory(ServerFactory[MySQLServer]):
    """``own_mysql_server()`` is a started server which loses no commit when killed.

    With ``fast=True`` it may lose the last ones, and is faster. MariaDB has no TLS unless ``extra``
    names its certificates.
    """

    def __init__(self, parent: Path, kind: Kind) -> None:
        super().__init__(parent)
        self._kind: Kind = kind

    def __call__(
        self, *, kind: Kind | None = None, fast: bool = False, extra: Sequence[str] = ()
    ) -> MySQLServer:
        chosen: Kind = kind or self._kind
        options = (*SMALL[chosen], *(FAST if fast else ()), *extra)
        return self._started(
            MySQLServer(self._directory(), kind=chosen, template=template(chosen), extra=options)
        )
