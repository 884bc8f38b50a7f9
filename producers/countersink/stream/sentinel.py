"""Redis Sentinel: its URLs and their errors, the timeout of sentinels (``SENTINEL_TIMEOUT``),
connections to the master that the sentinels name, and the master's state (``watched``).

redis-py does most of the work: :class:`redis.sentinel.SentinelConnectionPool` asks the sentinels
for the master whenever it makes a connection, and leaves a master that answers READONLY.
:class:`Sentinels` and :class:`MasterConnection` correct faults of redis-py.
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
"""Seconds without an answer after which the next sentinel is asked."""
ASK_S: Final = 1.0
"""Seconds for which the master is silent before the sentinels are asked again who the master is."""
DEFAULT_PORT: Final = 26379

_PARTS: Final = re.compile(r"([^/?#]*)([^?#]*)\??([^#]*)(#?)")
_EXAMPLE: Final = "redis+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster/0"
_CREDENTIALS: Final = {"sentinel_username": "username", "sentinel_password": "password"}
"""Maps options of a URL that are meant for the sentinels to redis-py's names of them."""


class MasterConnection(SentinelManagedConnection):
    """redis-py's connection to the master, with two changes. If the master hangs, the connection
    stops waiting as soon as the sentinels name another server. And the connection closes if an
    exception interrupts the read of a reply.

    redis-py's own connection closes only after an exception that means that it is lost. After
    another exception, such as RQ's time limit, the next command would read the reply to the old
    command.
    """

    def read_response(
        self, *args: Any, disconnect_on_error: bool | None = True, **options: Any
    ) -> Any:
        """Return the next reply. The arguments are those of redis-py's method. While no reply
        comes, ask the sentinels every :data:`ASK_S` seconds whether this server is still the
        master. They are not asked if the connection has no timeout or one of at most
        :data:`ASK_S`, or if the caller passes a ``timeout`` for this reply.

        Raises:
            redis.TimeoutError: no reply came within the connection's timeout, or before the
                sentinels named another server as the master.
            redis.ConnectionError: the connection is lost; or a reply came after the sentinels were
                asked, and they name another master by now; or the server is a replica by now.
            redis.ResponseError: the reply is an error.
        """
        patience = self.socket_timeout
        if patience is None or patience <= ASK_S or "timeout" in options:
            return super().read_response(*args, disconnect_on_error=disconnect_on_error, **options)
        until = time.monotonic() + patience
        driver: Any = self
        asked = False
        try:
            while True:
                if driver._sock is None:  # another thread has closed it
                    raise redis.ConnectionError("the connection was closed")
                self._set_timeout(min(ASK_S, max(0.001, until - time.monotonic())))
                try:
                    # Keeps the beginning of a reply if the rest does not come in time.
                    reply = super().read_response(*args, disconnect_on_error=False, **options)
                except redis.TimeoutError:
                    asked = True
                    if time.monotonic() >= until or self._is_replaced():
                        raise
                    continue
                finally:
                    self._set_timeout(self.socket_timeout)
                if asked and self._is_replaced():
                    # The old master runs again after a freeze, but would lose new writes.
                    raise redis.ConnectionError("another server is the master by now")
                return reply
        except redis.ResponseError:
            raise  # an error reply, read to its end
        except BaseException:
            if disconnect_on_error:
                driver.disconnect()
            raise

    def _set_timeout(self, seconds: float | None) -> None:
        sock: Any = self._sock
        if sock is not None:
            with suppress(OSError):  # another thread has just closed it
                sock.settimeout(seconds)

    def _is_replaced(self) -> bool:
        """Return whether the sentinels name another master than the server of this connection.
        Return False if they name none, or do not answer.
        """
        pool: Any = self.connection_pool
        try:
            return bool(pool.get_master_address() != (self.host, self.port))
        except redis.RedisError:
            return False  # no sentinel knows the master at present, or none answers


class SecureMasterConnection(MasterConnection, SSLConnection):
    """A :class:`MasterConnection` that uses TLS."""


class Sentinels(Sentinel):
    """redis-py's list of sentinels, made safe for many threads and processes. If no sentinel names
    the master, the error quotes the answers of the sentinels.

    When a sentinel has answered, redis-py swaps two items of the list: if two threads do so at the
    same time, an item is lost. This class makes a new list instead. redis-py also keeps a
    connection to each sentinel open for good, and a sentinel accepts only 10,000. This class closes
    its connections after each question.
    """

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the master whose name is ``service_name``, from the first
        sentinel that knows the master and says that it is up.

        Raises:
            AuthenticationError, NoPermissionError: all sentinels refuse the login, or the command.
            MasterNotFoundError: no sentinel says so, for any other reason.
        """
        state = self.master_state(service_name)
        return state["ip"], state["port"]

    def master_state(self, service_name: str) -> Mapping[str, Any]:
        """Return the fields of SENTINEL MASTERS for the master whose name is ``service_name``, from
        the first sentinel that knows the master and says that it is up.

        Raises:
            AuthenticationError, NoPermissionError: all sentinels refuse the login, or the command.
            MasterNotFoundError: no sentinel says so, for any other reason; the message quotes the
                answers of all sentinels.
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
                answers[_where(sentinel)] = "says that the master is down"
            else:
                others = [each for each in self.sentinels if each is not sentinel]
                self.sentinels = [sentinel, *others]  # a new list: other threads may iterate it
                found: Mapping[str, Any] = state
                return found
        if len(refused) == len(answers):
            raise refused[-1]
        said = "; ".join(f"{where} {answer}" for where, answer in answers.items())
        raise MasterNotFoundError(
            f"no sentinel knows the address of the master {service_name!r} (the URL's path and the"
            f" sentinels' configuration must have the same name): {said}"
        )


def _where(sentinel: redis.Redis) -> str:
    options = sentinel.connection_pool.connection_kwargs
    return f"{options['host']}:{options['port']}"


def sentinel_client(
    rest: str, options: Mapping[str, Any], *, tls: bool, socket_timeout: float
) -> redis.Redis:
    """Return a client of the master that the sentinels in a URL name; send nothing yet.

    Args:
        rest: the URL behind ``://``: ``[user:password@]host:port,…/name/database?options``. The
            hosts are the sentinels; ``name`` is the name of the master; user and password are for
            the master, the options ``sentinel_username`` and ``sentinel_password`` for the
            sentinels.
        options: redis-py's options of connections to the master, its timeouts included; options in
            the URL override them.
        tls: whether all connections use TLS, those to the sentinels too.
        socket_timeout: seconds without a reply after which a sentinel counts as away. A value
            above :data:`SENTINEL_TIMEOUT` is lowered to that.

    Raises:
        StreamMisconfigured: the URL cannot be used; the message does not repeat it.
        ValueError: an option in the URL cannot be used.
    """
    parts = split_hosts(rest, "redis+sentinel", "sentinels", DEFAULT_PORT, _EXAMPLE)
    name, _, database = parts.path[1:].partition("/")
    if not name or re.fullmatch(r"[0-9]*", database) is None:
        raise StreamMisconfigured(
            "a redis+sentinel:// URL has the name of the master behind the sentinels, and may have"
            f" the number of a database behind the name, as in {_EXAMPLE}"
        )
    credentials, others = {}, []
    for pair in filter(None, parts.query.split("&")):
        option, _, value = pair.partition("=")
        if (known := _CREDENTIALS.get(unquote(option))) is not None:
            credentials[known] = unquote(value)  # as in front of the @: + is no space
        else:
            others.append(pair)
    # redis-py parses the other options, so that they mean the same as in a redis:// URL.
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
    """The parts of a URL with several hosts, without the scheme.

    Attributes:
        credentials: the part ``user:password@`` of the URL, unchanged, or ``''``.
        addresses: a (host, port) pair for each host.
        path: the path, with its ``/``, or ``''``.
        query: the query, without its ``?``, or ``''``.
    """

    credentials: str
    addresses: tuple[tuple[str, int], ...]
    path: str
    query: str

    def options(self, database: str, query: str) -> dict[str, Any]:
        """Return the options of a connection (user, password, database and those of ``query``), as
        redis-py reads them in a ``redis://`` URL; no host.

        Args:
            database: the number of the database; ``''`` to leave it out.
            query: :attr:`query`, or the part of it that is meant for this connection.

        Raises:
            ValueError: an option cannot be used.
        """
        url = f"redis://{self.credentials}localhost/{database}?{query}"
        given: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
        del given["host"]
        return given


def split_hosts(rest: str, scheme: str, servers: str, port: int, example: str) -> HostsUrl:
    """Return the parts of a URL with several hosts.

    Args:
        rest: the URL behind ``://``: ``[user:password@]host:port,…/path?query``.
        scheme: the scheme in the error messages, such as ``redis+sentinel``.
        servers: the noun for the hosts in the error messages: ``sentinels`` or ``nodes``.
        port: the port of a host that has none in the URL.
        example: an example of a URL for the error messages.

    Raises:
        StreamMisconfigured: the URL cannot be used; the message does not repeat it.
    """
    parts = _PARTS.match(rest)
    netloc, path, query, fragment = parts.groups() if parts is not None else ("", "", "", "")
    if fragment:
        raise StreamMisconfigured(f"a # in a {scheme}:// URL must be written as %23")
    userinfo, at, hosts = netloc.rpartition("@")
    addresses = [_address(host, port) for host in hosts.split(",")]
    if None in addresses:
        raise StreamMisconfigured(
            f"a {scheme}:// URL begins with the hosts and ports of {servers}, separated by commas"
            f" (ports from 1 to 65535, IPv6 addresses in []), as in {example}"
        )
    return HostsUrl(userinfo + at, tuple(filter(None, addresses)), path, query)


def _address(text: str, default: int) -> tuple[str, int] | None:
    """Return the host and port in ``text``, or None if ``text`` is malformed. Without a port,
    ``default`` is returned as the port.
    """
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
        unquote(host or "").encode("idna")  # raises for empty labels, and more than 63 bytes
    except ValueError:
        return None
    # urlsplit ignores an empty port.
    if not host or port == 0 or text.endswith(":") or "@" in text:
        return None
    return unquote(host), port or default


@dataclass(frozen=True, slots=True)
class Watched:
    """The state of a master as a sentinel sees it.

    Attributes:
        name: the master's name in the configuration of the sentinels.
        address: the master's host and port, as the text ``host:port``.
        sentinels: number of sentinels that watch the master, including those that are down.
        replicas: number of the master's replicas that are up, according to the first sentinel that
            knows such replicas; 0 if none does.
    """

    name: str
    address: str
    sentinels: int
    replicas: int


def watched(client: redis.Redis) -> Watched | None:
    """Return the state of the client's master as the sentinels see it; return None for a client
    without sentinels.

    Raises:
        redis.RedisError: no sentinel answers that it knows the master and that the master is up.
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
