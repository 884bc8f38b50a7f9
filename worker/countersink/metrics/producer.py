"""A producer's figures as samples."""

from pathlib import Path

from countersink.metrics.metric import Sample, Samples
from countersink.producers.producer import Producer
from countersink.producers.spool.directory import used_bytes
from countersink.producers.spool.errors import SpoolError


def samples(producer: Producer) -> Samples:
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
