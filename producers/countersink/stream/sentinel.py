"""Redis Sentinel: its URLs and their errors, the timeout of sentinels (``SENTINEL_TIMEOUT``), how
the master is found, after how long they are asked about a silent one (``ASK_S``), and what they
know about it.

redis-py does the work: :class:`redis.sentinel.SentinelConnectionPool` asks the sentinels for the
master whenever it makes a connection, and leaves a master that answers READONLY. Two of its habits
are corrected here, see :class:`Sentinels` and :class:`MasterConnection`.
"""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import redis
from redis.connection import SSLConnection, parse_url
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
)

from countersink.stream.errors import StreamMisconfigured

SENTINEL_TIMEOUT: Final = 1.0
"""Seconds until a silent sentinel counts as gone, and the next one is asked."""
ASK_S: Final = 1.0
"""Whenever a master has been silent for so many seconds the sentinels are asked whether another one
is the master."""
DEFAULT_PORT: Final = 26379

_PARTS: Final = re.compile(r"([^/?#]*)([^?#]*)\??([^#]*)(#?)")
_EXAMPLE: Final = "redis+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster/0"
_CREDENTIALS: Final = {"sentinel_username": "username", "sentinel_password": "password"}
"""Options in a URL that are for the sentinels, with redis-py's names."""


class MasterConnection(SentinelManagedConnection):
    """redis-py's, which hangs up whenever a reply was not read to its end, and waits no longer for
    a master that hangs once the sentinels name another one.

    redis-py leaves such a connection open if something other than a lost connection broke the
    reading off, such as RQ's time limit: the next command would read that reply.
    """

    def read_response(
        self, *args: Any, disconnect_on_error: bool | None = True, **options: Any
    ) -> Any:
        """The next reply.

        Raises:
            redis.TimeoutError: it did not come within the connection's time-out.
            redis.ConnectionError: the connection is lost, or another server is the master.
        """
        patience = self.socket_timeout
        if patience is None or patience <= ASK_S or "timeout" in options:
            return super().read_response(*args, disconnect_on_error=disconnect_on_error, **options)
        until = time.monotonic() + patience
        driver: Any = self
        asked = False
        try:
            while True:
                if driver._sock is None:  # another thread has hung up meanwhile
                    raise redis.ConnectionError("the connection was closed")
                self._set_timeout(min(ASK_S, max(0.001, until - time.monotonic())))
                try:
                    # What came of a reply is kept if the rest does not come in time.
                    reply = super().read_response(*args, disconnect_on_error=False, **options)
                except redis.TimeoutError:
                    asked = True
                    if time.monotonic() >= until or self._is_replaced():
                        raise
                    continue
                finally:
                    self._set_timeout(self.socket_timeout)
                if asked and self._is_replaced():
                    # It goes on after it was frozen, and loses what it is told from now on.
                    raise redis.ConnectionError("another server is the master by now")
                return reply
        except redis.ResponseError:
            raise  # that was a reply
        except BaseException:
            if disconnect_on_error:
                driver.disconnect()
            raise

    def _set_timeout(self, seconds: float | None) -> None:
        sock: Any = self._sock
        if sock is not None:
            with suppress(OSError):  # another thread has just hung up
                sock.settimeout(seconds)

    def _is_replaced(self) -> bool:
        """Whether the sentinels name another master than this one."""
        pool: Any = self.connection_pool
        try:
            return bool(pool.get_master_address() != (self.host, self.port))
        except redis.RedisError:
            return False  # they know of none at present, or do not answer


class SecureMasterConnection(MasterConnection, SSLConnection):
    """The same with TLS."""


class Sentinels(Sentinel):
    """redis-py's, for many threads and many processes, with errors that say what was answered.

    redis-py exchanges two elements of its list of sentinels when one has answered: two threads that
    do so at once lose one of them. It also keeps a connection to each for good, of which a sentinel
    has 10,000.
    """

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the master, from the first sentinel that knows one.

        Raises:
            MasterNotFoundError: none does; the message says what each of them answered.
        """
        state = self.master_state(service_name)
        return state["ip"], state["port"]

    def master_state(self, service_name: str) -> Mapping[str, Any]:
        """What the first sentinel that knows the master says about it.

        Raises:
            MasterNotFoundError: as above.
            AuthenticationError, NoPermissionError: all of them refuse the login, or the command.
        """
        answers: dict[str, str] = {}
        refused: list[redis.RedisError] = []
        for sentinel in self.sentinels:
            try:
                masters: Any = sentinel.sentinel_masters()
                state = masters.get(service_name)
            except redis.RedisError as error:
                answers[_where(sentinel)] = str(error)
                if isinstance(error, (AuthenticationError, NoPermissionError)):
                    refused.append(error)
                continue
            finally:
                sentinel.connection_pool.disconnect(inuse_connections=False)
            if state is None:
                answers[_where(sentinel)] = "knows no master of this name"
            elif not self.check_master_state(state, service_name):  # type: ignore[no-untyped-call]
                answers[_where(sentinel)] = "says that it is down"
            else:
                others = [each for each in self.sentinels if each is not sentinel]
                self.sentinels = [sentinel, *others]  # a new list: other threads go through the old
                found: Mapping[str, Any] = state
                return found
        if len(refused) == len(answers):
            raise refused[-1]
        said = "; ".join(f"{where} {answer}" for where, answer in answers.items())
        raise MasterNotFoundError(
            f"no sentinel knows where the master {service_name!r} is (its name stands in the URL"
            f" behind the sentinels, and in their configuration): {said}"
        )


def _where(sentinel: redis.Redis) -> str:
    options = sentinel.connection_pool.connection_kwargs
    return f"{options['host']}:{options['port']}"


def sentinel_client(
    rest: str, options: Mapping[str, Any], *, tls: bool, socket_timeout: float
) -> redis.Redis:
    """A client of the master that the sentinels of a URL name. Nothing is sent.

    Args:
        rest: the URL behind ``://``: ``[user:password@]host:port,…/name/database?options``.
        options: of connections to the master, those of the URL go before them.
        tls: with TLS, to the sentinels as well.
        socket_timeout: of the master; sentinels have at most this.

    Raises:
        StreamMisconfigured: the URL cannot be used; the message does not repeat it.
        ValueError: nor can one of its options.
    """
    parts = split_hosts(rest, "redis+sentinel", "sentinels", DEFAULT_PORT, _EXAMPLE)
    name, _, database = parts.path[1:].partition("/")
    if not name or re.fullmatch(r"[0-9]*", database) is None:
        raise StreamMisconfigured(
            "behind the sentinels of a redis+sentinel:// URL stand the name of the master and the"
            f" number of a database, such as {_EXAMPLE}"
        )
    credentials, others = {}, []
    for pair in filter(None, parts.query.split("&")):
        option, _, value = pair.partition("=")
        if (known := _CREDENTIALS.get(unquote(option))) is not None:
            credentials[known] = unquote(value)  # as before the @: a + is a +
        else:
            others.append(pair)
    # redis-py reads the rest as it reads redis://, so that all means the same there and here.
    settings = {**options, **parts.options(database or "0", "&".join(others))}
    timeout = min(SENTINEL_TIMEOUT, socket_timeout)
    parser = settings.get("parser_class")
    shared = ("retry", "protocol", "driver_info", "lib_name", "lib_version")
    sentinels = Sentinels(
        list(parts.addresses),
        sentinel_kwargs={
            **{key: value for key, value in settings.items() if key in shared},
            **{key: value for key, value in settings.items() if key.startswith("ssl_")},
            **credentials,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "ssl": tls,
        },
    )  # type: ignore[no-untyped-call]
    for sentinel in sentinels.sentinels if parser is not None else ():
        sentinel.connection_pool.connection_kwargs["parser_class"] = parser
    pool = SentinelConnectionPool(
        unquote(name),
        sentinels,
        connection_class=SecureMasterConnection if tls else MasterConnection,
        **settings,
    )  # type: ignore[no-untyped-call]
    client = redis.Redis(connection_pool=pool)
    client.auto_close_connection_pool = True  # as from_url makes it
    return client


@dataclass(frozen=True, slots=True)
class HostsUrl:
    """The parts of a URL with several hosts, behind its ``://``.

    Attributes:
        credentials: ``user:password@`` as it stands there.
        addresses: hosts and ports.
        path: with its ``/``.
        query: without its ``?``.
    """

    credentials: str
    addresses: tuple[tuple[str, int], ...]
    path: str
    query: str

    def options(self, database: str, query: str) -> dict[str, Any]:
        """Options of a connection, which redis-py reads as it reads ``redis://``, so that all means
        the same there and here.

        Raises:
            ValueError: one of them cannot be used.
        """
        url = f"redis://{self.credentials}localhost/{database}?{query}"
        given: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
        del given["host"]
        return given


def split_hosts(rest: str, scheme: str, of: str, port: int, example: str) -> HostsUrl:
    """The parts of ``rest``, a URL behind ``://``.

    Args:
        rest: ``[user:password@]host:port,…/path?query``.
        scheme: in its spelling for people, such as ``redis+sentinel``.
        of: whose hosts they are.
        port: that a host without one has.
        example: of such a URL.

    Raises:
        StreamMisconfigured: it cannot be used; the message does not repeat it.
    """
    parts = _PARTS.match(rest)
    netloc, path, query, fragment = parts.groups() if parts is not None else ("", "", "", "")
    if fragment:
        raise StreamMisconfigured(f"a # in the URL of a {scheme}:// is to be written %23")
    userinfo, at, hosts = netloc.rpartition("@")
    addresses = [_address(host, port) for host in hosts.split(",")]
    if None in addresses:
        raise StreamMisconfigured(
            f"a {scheme}:// URL begins with hosts and ports of {of}, divided by commas"
            f" (ports are numbers from 1 to 65535, IPv6 addresses stand in []), such as {example}"
        )
    return HostsUrl(userinfo + at, tuple(filter(None, addresses)), path, query)


def _address(text: str, default: int) -> tuple[str, int] | None:
    """A host and its port; None if it is none."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
        unquote(host or "").encode("idna")  # empty parts, and those of more than 63 bytes
    except ValueError:
        return None
    # urlsplit takes an empty port for none.
    if not host or port == 0 or text.endswith(":") or "@" in text:
        return None
    return unquote(host), port or default


@dataclass(frozen=True, slots=True)
class Watched:
    """A master as a sentinel sees it.

    Attributes:
        name: by which the sentinels know it.
        address: its host and port.
        sentinels: how many watch it, those that are down included.
        replicas: how many of its replicas are up.
    """

    name: str
    address: str
    sentinels: int
    replicas: int


def watched(client: redis.Redis) -> Watched | None:
    """What the sentinels know about the client's master; None for a client without sentinels.

    Raises:
        redis.RedisError: they do not answer, or know no master.
    """
    pool = client.connection_pool
    if not isinstance(pool, SentinelConnectionPool):
        return None
    sentinels: Sentinels = pool.sentinel_manager
    state = sentinels.master_state(pool.service_name)
    replicas = sentinels.discover_slaves(pool.service_name)  # type: ignore[no-untyped-call]
    return Watched(
        name=pool.service_name,
        address=f"{state['ip']}:{state['port']}",
        sentinels=int(state["num-other-sentinels"]) + 1,
        replicas=len(replicas),
    )
