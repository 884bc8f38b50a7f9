"""The example of docs/metrics.md: an application shows its producer's figures."""

import prometheus_client

from countersink.producers import Producer
from tests.docs.console import blocks


def test_an_applications_own_producer_is_shown(redis_url: str) -> None:
    example, *_ = blocks("docs/metrics.md", "python")
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
