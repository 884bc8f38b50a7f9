"""What an application imports to count: the producer, its buffer and its spool."""

from countersink.producers.increments import Increment, InvalidBatch
from countersink.producers.options import Options
from countersink.producers.producer import Producer
from countersink.producers.stats import Stats

__all__ = ["Increment", "InvalidBatch", "Options", "Producer", "Stats"]
