"""Access logs for ``countersink tail`` and backfill: names of lines, keys and counts that both use;
the formats are in ``formats/``, keys and conditions in ``template.py``."""

from countersink.producers.access_log.formats.reader import Rejected
from countersink.producers.access_log.parser import Cell, Counts, Parser
from countersink.producers.errors import Malformed

__all__ = ["Cell", "Counts", "Malformed", "Parser", "Rejected"]
