"""Lines of access logs: their formats, what their fields say, and what they are counted under."""

from countersink.producers.access_log.parser import Cell, Counts, Parser, Rejected
from countersink.producers.errors import Malformed

__all__ = ["Cell", "Counts", "Malformed", "Parser", "Rejected"]
