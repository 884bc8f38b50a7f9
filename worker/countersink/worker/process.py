"""One worker process: start, stop by signals or when drained (``worker/intake.py`` tells when),
what it logs of that, and its exit status."""

from collections.abc import Callable
from functools import partial

import redis

from countersink.runtime.log import Log, logged
from countersink.runtime.process import Stop, process_name, stop_by_signals
from countersink.store.settings import Settings
from countersink.stream.connection import connect, is_cluster
from countersink.stream.group import Group
from countersink.stream.heartbeat import TIMEOUT_S
from countersink.worker.intake import BatchSource, Intake
from countersink.worker.loop import Loop
from countersink.worker.options import WorkerOptions
from countersink.worker.report import LOGGER, Vitals


def run(
    options: WorkerOptions,
    *,
    stop: Stop | None = None,
    reached: Callable[[str], object] = lambda point: None,
    vitals: Vitals | None = None,
) -> int:
    """Run a worker until it is told to stop (SIGTERM, SIGINT or ``stop``) or, when draining, until
    nothing is left.

    Servers that are away, now or later, are waited for. In the main thread the signals' handlers
    are set and put back.

    Args:
        options: the settings.
        stop: to stop it from another thread.
        reached: called at each named point of a batch: ``read``, those of
            :data:`countersink.store.apply.apply.POINTS`, ``acknowledged``. For tests that kill the
            process there.
        vitals: written while it runs, for whoever watches it.

    Returns:
        0 when all that was read was applied and acknowledged; 1 when entries stay pending (they are
        redelivered to other workers), or the tables are too new for this program.

    Raises:
        StreamMisconfigured, Misconfigured: one of the URLs cannot be used.
    """
    settings = Settings.parse(options.mysql_url)
    consumer = process_name()
    log, stop = Log(LOGGER, consumer=consumer), stop or Stop()
    with (
        connect(options.redis_url, client_name="countersink-worker") as client,
        # For what must not hold anything up when Redis is frozen: figures and farewells.
        connect(options.redis_url, socket_timeout=TIMEOUT_S) as hasty,
        logged(options.log_format),
        stop_by_signals(
            stop,
            log,
            options.stop_within_s,
            doing="finishing what was read",
            left=": the batch stays pending and will be redelivered",
        ),
    ):
        source = _source(options, client, consumer, stop, log)
        loop = Loop(
            options, settings, source, hasty, consumer, stop, log, reached, vitals or Vitals()
        )
        return loop.run()


def _source(
    options: WorkerOptions, client: redis.Redis, consumer: str, stop: Stop, log: Log
) -> BatchSource:
    if is_cluster(options.redis_url):
        from countersink.worker.readers import Readers  # noqa: PLC0415 (few have a cluster)

        connected = partial(connect, options.redis_url, client_name="countersink-worker")
        return Readers(connected, client, consumer, options, stop, log)
    return Intake(Group(client, [], consumer), options, log)
