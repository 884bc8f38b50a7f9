"""What an application imports to count: the producer, its buffer and its spool."""

from countersink.producers.batch import Increment
from countersink.producers.engine import Stats
from countersink.producers.errors import InvalidBatch
from countersink.producers.options import Options
from countersink.producers.producer import Producer

__all__ = ["Increment", "InvalidBatch", "Options", "Producer", "Stats"]
