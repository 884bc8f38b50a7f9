"""Access logs for ``countersink tail`` and backfill: names of lines, keys and counts that both use;
the formats are in ``formats/``, keys and conditions in ``template.py``."""

from countersink.logs.errors import Malformed
from countersink.logs.formats.reader import Rejected
from countersink.logs.lines import Counts, Parser

__all__ = ["Counts", "Malformed", "Parser", "Rejected"]
