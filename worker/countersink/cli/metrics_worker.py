"""What ``countersink worker`` shows at ``--metrics-port``."""

from countersink.metrics.health import Health
from countersink.metrics.metric import WORKER_STATES, Sample, Samples, one_of
from countersink.metrics.servers import probes
from countersink.worker import Vitals, WorkerOptions


def health(options: WorkerOptions, vitals: Vitals) -> Health:
    """The health of a worker that runs with these."""
    return Health(
        process="worker",
        samples=lambda: samples(vitals),
        probes=probes(redis=options.redis_url, mysql=options.mysql_url),
        moved=lambda: vitals.moved,
        busy=lambda: _busy(vitals.figures.state),
    )


def samples(vitals: Vitals) -> Samples:
    """Its own figures."""
    figures = vitals.figures
    yield from one_of("countersink_worker_state", WORKER_STATES, figures.state)
    if figures.slot is not None:
        yield Sample("countersink_worker_slot", figures.slot)
    outcomes = {
        "applied": figures.entries,
        "duplicate": figures.duplicates,
        "too_old": figures.too_old,
        "lost": figures.lost,
    }
    for outcome, entries in outcomes.items():
        yield Sample("countersink_worker_entries_total", entries, {"outcome": outcome})
    yield Sample("countersink_worker_rows_total", figures.rows, {"outcome": "applied"})
    yield Sample("countersink_worker_rows_total", figures.dead, {"outcome": "dead"})
    yield Sample("countersink_worker_rows_overflown_total", figures.overflown)
    yield Sample("countersink_worker_cells_total", figures.cells)
    yield Sample(
        "countersink_worker_batch_duration_seconds",
        vitals.batch_seconds,
        observations=vitals.batches,
    )
    if figures.last_batch:
        yield Sample("countersink_worker_last_batch_timestamp_seconds", figures.last_batch / 1000)
    if figures.last_error_at:
        yield Sample(
            "countersink_worker_last_error_timestamp_seconds", figures.last_error_at / 1000
        )


def _busy(state: str) -> str:
    """Why it does not work although both servers answer; empty if it does."""
    return state if state in ("starting", "waiting", "stopping") else ""
