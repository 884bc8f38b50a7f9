"""One web process, from its options to its exit status."""

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from countersink.producers import Producer
from countersink.store import api_keys
from countersink.store.connection import Session
from countersink.store.tables import open_tables
from countersink.web.app import create_app
from countersink.web.options import WebOptions
from countersink.web.server import Server, allow_files, listen, make_server, url_of

LOGGER: Final = logging.getLogger("countersink.web")
DONE: Final = 0
FAILED: Final = 1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Unguarded(Exception):
    """The server would be open to everybody who can reach this machine."""


class CannotListen(Exception):
    """The address cannot be had."""


def run(
    options: WebOptions,
    *,
    producer: Callable[[], Producer],
    system: Callable[[], Mapping[str, Any]],
    announce: Callable[[str], object] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT: then requests are answered, what was accepted is stored.

    Args:
        options: the settings.
        producer, system: see :class:`countersink.web.application.Application`.
        announce: called with the URL once connections are accepted; default: a line on stderr.

    Returns:
        0; 1 where something that was accepted could not be stored, which is in the log.

    Raises:
        Unguarded: it would listen beyond loopback, and no key is valid.
        StoreError: MySQL is away, or its tables are not ours.
        CannotListen: the address is taken, or none of this machine's.
    """
    with open_tables(options.mysql_url) as session:
        check_keys(session, options)
        is_open = options.may_be_open and not api_keys.any_made(session)
    application = create_app(options, producer=producer, system=system)
    server = make_server(application, options)
    room = allow_files(options.max_connections)
    if room < options.max_connections:
        LOGGER.warning(
            "this process may open files for %d connections only: raise its limit (ulimit -n,"
            " LimitNOFILE=), or lower --max-connections",
            room,
            extra={"action": "few_files"},
        )
    try:
        listener = listen(options)
    except OSError as error:
        raise CannotListen(
            f"cannot listen at {options.host} port {options.port}: {error.strerror or error};"
            " choose others with --host and --port"
        ) from error
    with listener, _signals(server):
        url = url_of(listener)
        server.on_started = lambda: (announce or _announce)(url)
        _log("started", "a web process starts", url=url)
        if is_open:
            LOGGER.warning(_open_to(options), extra={"action": "no_key"})
        server.run(sockets=[listener])
    if application.complete:
        _log("stopped", "a web process ends; all that it accepted is stored")
        return DONE
    LOGGER.error("not all that was accepted could be stored", extra={"action": "lost"})
    return FAILED


def check_keys(session: Session, options: WebOptions) -> None:
    """Whether it is safe to listen.

    Raises:
        Unguarded: as :func:`run`.
    """
    if options.may_be_open or api_keys.live(session):
        return
    raise Unguarded(
        f"{options.host} can be reached from other machines, and no key is valid: make one with"
        " countersink key create NAME --scope admin, or let everybody in with --without-keys"
    )


def _open_to(options: WebOptions) -> str:
    """Who may do everything, where there is no key."""
    if options.without_keys:
        return (
            "there is no key, and --without-keys was said: whoever reaches this server, also"
            " through a proxy, may do everything"
        )
    return (
        "there is no key: every program of this machine may do everything. Before a proxy or a"
        " tunnel leads here, make one with countersink key create: a proxy that speaks HTTP/1.1,"
        " adds no header such as X-Forwarded-For and puts 127.0.0.1 or localhost into Host cannot"
        " be told from a program of this machine, and lets everybody in. Requests that show a"
        " proxy are refused until then"
    )


def _log(action: str, message: str, **fields: object) -> None:
    LOGGER.info(message, extra={"action": action, "fields": fields})


def _announce(url: str) -> None:
    print(f"countersink web: listening at {url}", file=sys.stderr, flush=True)


@contextmanager
def _signals(server: Server) -> Iterator[None]:
    """Let the signals end ``server``; puts back at the end what was there."""

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
