"""Access logs: the parser of their lines for ``countersink tail``.

Backfill uses the formats, ``template.py`` (keys, conditions), ``times.py``, ``file.py``,
``line.py`` and the errors, too.
"""

from countersink.logs.errors import Malformed
from countersink.logs.formats.reader import Rejected
from countersink.logs.lines import Counts, Parser

__all__ = ["Counts", "Malformed", "Parser", "Rejected"]
