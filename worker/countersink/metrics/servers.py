"""Probes of the two servers."""

from typing import Final

from countersink.metrics.probes import Probe, Probes
from countersink.store.connection import connect as connect_mysql
from countersink.stream.connection import connect as connect_redis
from countersink.stream.connection import mapped

ANSWER_S: Final = 1.0
"""Seconds that a server has to answer."""


def probes(*, redis: str | None = None, mysql: str | None = None) -> Probes:
    """Probes of the servers at these URLs.

    Raises:
        StreamMisconfigured: the URL cannot be used.
    """
    found: dict[str, Probe] = {}
    if redis is not None:
        found["redis"] = _redis(redis)
    if mysql is not None:
        found["mysql"] = _mysql(mysql)
    return found


def _redis(url: str) -> Probe:
    client = connect_redis(url, socket_timeout=ANSWER_S, client_name="countersink-probe")

    def ask() -> None:
        with mapped():
            client.ping()

    return Probe(ask)


def _mysql(url: str) -> Probe:
    """It answers, and the database is there."""

    def ask() -> None:
        with connect_mysql(url, read_timeout=ANSWER_S) as session:
            session.query("SELECT 1")

    return Probe(ask)
