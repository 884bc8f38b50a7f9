"""What ``countersink statsd`` shows at ``--metrics-port``."""

from countersink.metrics import producer as producer_metrics
from countersink.metrics.health import Health
from countersink.metrics.metric import Sample, Samples
from countersink.metrics.servers import probes
from countersink.producers import Producer
from countersink.producers.statsd import Server


def health(redis_url: str, server: Server, producer: Producer) -> Health:
    """The health of a listener. With a spool it can do its part without Redis."""
    return Health(
        process="statsd",
        samples=lambda: samples(server, producer),
        probes=probes(redis=redis_url),
        needs=frozenset() if producer.spool is not None else None,
    )


def samples(server: Server, producer: Producer) -> Samples:
    """Its own figures, and its producer's."""
    figures = server.figures
    yield Sample("countersink_statsd_packets_total", figures.packets)
    yield Sample("countersink_statsd_packets_lost_total", figures.lost)
    for outcome in ("counted", "ignored", "discarded", "malformed"):
        lines = getattr(figures, outcome)
        yield Sample("countersink_statsd_lines_total", lines, {"outcome": outcome})
    yield Sample("countersink_statsd_lines_overflown_total", figures.overflown)
    yield Sample("countersink_statsd_connections", figures.connections)
    yield Sample("countersink_statsd_connections_refused_total", figures.refused)
    yield from producer_metrics.samples(producer)
