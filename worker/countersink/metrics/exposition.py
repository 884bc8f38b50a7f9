"""Metrics as text in Prometheus' format or OpenMetrics, by the Accept header; names and helps are
in ``table.py``."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from countersink.metrics.table import METRICS, Sample, Samples

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
