"""The names that an application imports to count: ``Producer``, ``Options``, ``Increment``,
``Stats``, ``InvalidBatch``."""

from countersink.producers.batch import Increment
from countersink.producers.engine import Stats
from countersink.producers.errors import InvalidBatch
from countersink.producers.options import Options
from countersink.producers.producer import Producer

__all__ = ["Increment", "InvalidBatch", "Options", "Producer", "Stats"]
