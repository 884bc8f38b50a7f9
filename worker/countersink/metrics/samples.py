"""Values of the metrics about the whole installation (as
``cli/commands/maintain/info.py`` asks for them) and about a producer; those of a process are in its
command."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from countersink.metrics.table import RUN_STATES, WORKER_STATES, Sample, Samples
from countersink.producers.errors import SpoolError
from countersink.producers.producer import Producer
from countersink.producers.spool.directory import used_bytes


def installation_samples(document: Mapping[str, Any]) -> Samples:
    """The samples of the document of ``countersink info``.

    What it says is not known has none, instead of a wrong 0.
    """
    yield Sample("countersink_looked_timestamp_seconds", _seconds(document["at"]))
    yield Sample("countersink_queue_entries", document["backlog"])
    yield Sample("countersink_queue_pending_entries", document["pending"])
    yield Sample("countersink_queue_oldest_age_seconds", document["lag_ms"] / 1000)
    sizes = [stream["bytes"] for stream in document["streams"] if stream["bytes"] is not None]
    yield Sample("countersink_queue_bytes", sum(sizes))
    states = Counter(str(worker.get("state")) for worker in document["workers"])
    for state in WORKER_STATES:
        yield Sample("countersink_workers", states[state], {"state": state})
    for reason, rows in (document["dead_by_reason"] or {}).items():
        yield Sample("countersink_dead_rows", rows, {"reason": reason})
    if document["overflown"] is not None:
        yield Sample("countersink_overflown_rows", document["overflown"]["rows"])
        yield Sample("countersink_overflown_counters", document["overflown"]["counters"])
    if document["schedules"]["unknown"] is None:
        yield from _schedules(document["schedules"])


def _schedules(found: Mapping[str, Any]) -> Samples:
    yield Sample("countersink_schedulers_in_charge", float(found["scheduler"] is not None))
    yield Sample("countersink_job_overdue_runs", len(found["overdue"]))
    for one in found["failing"]:
        yield Sample("countersink_job_failures_in_a_row", one["times"], {"job_name": one["job"]})
    for job, tally in found["jobs"].items():
        if tally["last_success"] is not None:
            yield Sample(
                "countersink_job_last_success_timestamp_seconds",
                _seconds(tally["last_success"]),
                {"job_name": job},
            )
        for state in RUN_STATES:
            runs = tally["runs"].get(state, 0)
            yield Sample("countersink_job_runs", runs, {"job_name": job, "state": state})


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def producer_samples(producer: Producer) -> Samples:
    """The samples of its stats, and of the directory of its spool if it has one."""
    stats = producer.stats()
    for name in ("accepted", "stored", "resent", "spooled", "replayed", "dropped"):
        yield Sample(f"countersink_producer_increments_{name}_total", getattr(stats, name))
    yield Sample("countersink_producer_pending_rows", stats.pending_rows)
    yield Sample("countersink_producer_connected", float(stats.connected))
    if producer.spool is not None:
        try:
            size = used_bytes(Path(producer.spool))
        except SpoolError:
            return  # not known: the producer itself says what ails the directory
        yield Sample("countersink_producer_spool_bytes", size)
