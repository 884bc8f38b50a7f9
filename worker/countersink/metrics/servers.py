"""Whether the servers answer, asked now."""

import threading
from collections.abc import Mapping
from typing import Final

from countersink.metrics.asking import Asking
from countersink.store.connection import connect as connect_mysql
from countersink.stream.connection import connect as connect_redis
from countersink.stream.connection import mapped

ANSWER_S: Final = 1.0
"""Seconds that a server has to answer."""
WITHIN_S: Final = 1.5
"""Seconds that whoever asks waits at most, whatever hangs."""
KEPT_S: Final = 1.0
"""Seconds that an answer is good for."""

Probe = Asking[bool]
Probes = Mapping[str, Probe]
"""By server: ``redis``, ``mysql``."""


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


def answering(probes: Probes) -> dict[str, bool]:
    """Which of them answer; all are asked at the same time."""
    found: dict[str, bool] = {}

    def look(name: str, probe: Probe) -> None:
        found[name] = probe.get() is not None

    threads = [
        threading.Thread(target=look, args=each, name="probes", daemon=True)
        for each in probes.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: found.get(name, False) for name in probes}


def _redis(url: str) -> Probe:
    client = connect_redis(url, socket_timeout=ANSWER_S, client_name="countersink-probe")

    def ask() -> bool:
        with mapped():
            return bool(client.ping())

    return Asking(ask, kept_s=KEPT_S, within_s=WITHIN_S)


def _mysql(url: str) -> Probe:
    """It answers, and the database is there."""

    def ask() -> bool:
        with connect_mysql(url, read_timeout=ANSWER_S) as session:
            return bool(session.query("SELECT 1"))

    return Asking(ask, kept_s=KEPT_S, within_s=WITHIN_S)
