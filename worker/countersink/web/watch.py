"""What the web process tells its operators: of itself, and of the installation as a whole."""

from collections.abc import Mapping
from typing import Any, Final

import anyio

from countersink.metrics import installation, producer
from countersink.metrics.asking import Asking
from countersink.metrics.exposition import render
from countersink.metrics.health import Health
from countersink.metrics.metric import Sample, Samples
from countersink.metrics.servers import probes
from countersink.web.services import Services

SYSTEM_KEPT_S: Final = 5.0
"""Seconds that the state of the installation is shown without looking again, however many ask."""
SYSTEM_WITHIN_S: Final = 3.0
"""Seconds after which a scrape does without it: well below Prometheus' own patience of 10 s."""
THREADS: Final = 4


class Watch:
    """Looks at one process. None of it waits for long, and none of it shares the handlers' threads:
    they are all in use when somebody wants to know why.

    Args:
        services: of the process.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        options = services.options
        self._threads = anyio.CapacityLimiter(THREADS)
        self._system: Asking[Mapping[str, Any]] = Asking(
            services.system, kept_s=SYSTEM_KEPT_S, within_s=SYSTEM_WITHIN_S
        )
        # Increments are its first duty: it is ready if it can take them, also where MySQL is away.
        # With a spool it can without Redis.
        spooled = services.producer.spool is not None
        self._health = Health(
            process="web",
            samples=self._samples,
            probes=probes(redis=options.redis_url, mysql=options.mysql_url),
            needs=frozenset() if spooled else frozenset({"redis"}),
        )

    async def is_ready(self) -> bool:
        """Whether it can take increments."""
        return not await anyio.to_thread.run_sync(self._health.unready, limiter=self._threads)

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text, and its media type; ``accept`` is the request's header."""
        return await anyio.to_thread.run_sync(self._render, accept, limiter=self._threads)

    def _render(self, accept: str) -> tuple[bytes, str]:
        return render(self._health.everything(), accept)

    def _samples(self) -> Samples:
        yield from producer.samples(self._services.producer)
        for status, number in sorted(self._services.answers.items()):
            yield Sample("countersink_web_requests_total", number, {"status": str(status)})
        system = self._system.get()
        if system is not None:
            yield from installation.samples(system)
