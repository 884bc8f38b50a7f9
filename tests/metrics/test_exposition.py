"""What a scrape gets: both formats, read by Prometheus' own parsers."""

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from countersink.metrics import render
from countersink.metrics.table import METRICS, Sample

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


Values = dict[str, dict[tuple[str, ...], float]]


def values(body: bytes, *, openmetrics: bool = False) -> Values:
    """Values by the names of samples and by their labels."""
    parse = parse_openmetrics if openmetrics else parse_text
    found: Values = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def one_of_each() -> list[Sample]:
    return [
        Sample(name, 2.5, dict.fromkeys(metric.labels, 'a"b\\c\nd'), 3)
        for name, metric in METRICS.items()
    ]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_metric_can_be_read_back(accept: str) -> None:
    body, media_type = render(one_of_each(), accept)
    openmetrics = bool(accept)
    assert media_type.startswith("application/openmetrics-text" if accept else "text/plain")
    assert body.endswith(b"# EOF\n") == openmetrics
    found = values(body, openmetrics=openmetrics)
    for name, metric in METRICS.items():
        shown = f"{name}_sum" if metric.kind == "summary" else name
        labels = tuple('a"b\\c\nd' for _ in metric.labels)
        assert found[shown] == {labels: 2.5}
        assert f"# TYPE {name.removesuffix('_total') if accept else name} {metric.kind}" in (
            body.decode()
        )


def test_samples_in_any_order_become_one_family_each() -> None:
    states = [Sample("countersink_workers", n, {"state": s}) for n, s in enumerate("abc")]
    between = Sample("countersink_queue_entries", 7)
    body, _ = render([states[2], between, states[0], states[1]], OPENMETRICS)
    # OpenMetrics forbids a family in two pieces: its parser would refuse it.
    found = values(body, openmetrics=True)["countersink_workers"]
    assert found == {("a",): 0, ("b",): 1, ("c",): 2}
