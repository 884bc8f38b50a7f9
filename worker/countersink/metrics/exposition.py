"""Metrics as text in Prometheus' format or OpenMetrics, by the Accept header, and the values of
those about the whole installation and a producer (a process's own: in its command); names and helps
are in ``table.py``."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from countersink.metrics.table import METRICS, RUN_STATES, WORKER_STATES, Sample, Samples
from countersink.producers.errors import SpoolError
from countersink.producers.producer import Producer
from countersink.producers.spool.directory import used_bytes

_OF_THE_PROCESS: Final = (ProcessCollector(registry=None), PlatformCollector(registry=None))
"""``process_…`` (CPU, memory, descriptors, start) and ``python_info``."""


class _Given(Collector):
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        yield from families(self._samples)


def render(samples: Samples, accept: str) -> tuple[bytes, str]:
    """The samples, and those of the process itself.

    Args:
        samples: in any order; each named in the table.
        accept: the request's ``Accept`` header.

    Returns:
        The text, and its media type.

    Raises:
        KeyError: a sample's name is not in the table, or one of its labels is missing.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in (_Given(samples), *_OF_THE_PROCESS):
        registry.register(collector)
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


def families(samples: Samples) -> list[Metric]:
    """The samples grouped by metric, in the order of the table.

    Raises:
        KeyError: as :func:`render`.
    """
    found: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for sample in samples:
        found[sample.name].append(sample)
    return [_family(name, some) for name, some in found.items() if some]


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    metric = METRICS[name]
    if metric.kind == "summary":
        summary = SummaryMetricFamily(name, metric.help, labels=metric.labels)
        for one in samples:
            summary.add_metric(_values(metric.labels, one), one.observations, one.value)
        return summary
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, metric.help, labels=metric.labels)
    for one in samples:
        family.add_metric(_values(metric.labels, one), one.value)
    return family


def _values(labels: tuple[str, ...], sample: Sample) -> list[str]:
    return [sample.labels[label] for label in labels]


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
    yield Sample("countersink_queue_nodes_away", len(document["away"]))
    if document["workers"] or not document["away"]:
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
