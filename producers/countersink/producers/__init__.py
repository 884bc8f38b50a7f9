"""What an application imports to count: the producer, its buffer and its spool."""

from countersink.producers.options import Options
from countersink.producers.producer import Producer
from countersink.producers.stats import Stats

__all__ = ["Options", "Producer", "Stats"]
