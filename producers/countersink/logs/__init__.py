"""Access logs: the parser of their lines for ``countersink tail``.

``formats/`` (readers of formats), ``template.py`` (keys, conditions), ``times.py`` and the errors
serve backfill, too.
"""

from countersink.logs.errors import Malformed
from countersink.logs.formats.reader import Rejected
from countersink.logs.lines import Counts, Parser

__all__ = ["Counts", "Malformed", "Parser", "Rejected"]
