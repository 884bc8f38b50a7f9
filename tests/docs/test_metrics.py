"""The example of docs/metrics.md: an application shows its producer's figures."""

import re

import prometheus_client

from countersink.producers import Producer
from tests.support.processes import PROJECT


def test_an_applications_own_producer_is_shown(redis_url: str) -> None:
    text = (PROJECT / "docs" / "metrics.md").read_text("utf-8")
    example = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    before = set(prometheus_client.REGISTRY._collector_to_names)
    with Producer(redis_url, handle_sigterm=False) as producer:
        for _ in range(3):
            producer.increment("c")
        assert producer.flush(20)
        exec(compile(example, "docs/metrics.md", "exec"), {"producer": producer})
        try:
            for name, value in {"accepted": 3, "stored": 3, "spooled": 0, "dropped": 0}.items():
                full = f"countersink_producer_increments_{name}_total"
                assert prometheus_client.REGISTRY.get_sample_value(full) == value
        finally:
            for added in set(prometheus_client.REGISTRY._collector_to_names) - before:
                prometheus_client.REGISTRY.unregister(added)
