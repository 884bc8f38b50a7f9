"""Access logs for ``countersink tail`` and backfill: the parser of their lines, its counts and its
errors. See ``formats/`` for the formats, ``template.py`` for keys and conditions.
"""

from countersink.logs.errors import Malformed
from countersink.logs.formats.reader import Rejected
from countersink.logs.lines import Counts, Parser

__all__ = ["Counts", "Malformed", "Parser", "Rejected"]
