"""What ``countersink tail --follow`` shows at ``--metrics-port``."""

from countersink.metrics.health import Health
from countersink.metrics.metric import Sample, Samples
from countersink.metrics.servers import probes
from countersink.producers.tail_batch import Summary
from countersink.producers.tail_sender import Sender


def health(redis_url: str, sender: Sender, summary: Summary) -> Health:
    """The health of a reader that follows its log."""
    return Health(
        process="tail",
        samples=lambda: samples(sender, summary),
        probes=probes(redis=redis_url),
    )


def samples(sender: Sender, summary: Summary) -> Samples:
    """Its own figures."""
    yield Sample("countersink_tail_lines_total", summary.counted, {"outcome": "counted"})
    yield Sample("countersink_tail_lines_total", summary.rejected, {"outcome": "rejected"})
    yield Sample("countersink_tail_entries_total", sender.entries)
