"""Access logs: the parser of their lines, which ``countersink tail`` and backfill share.

``formats/`` has the formats, ``template.py`` the keys and conditions, ``errors.py`` the errors.
"""

from countersink.logs.errors import Malformed
from countersink.logs.formats.reader import Rejected
from countersink.logs.lines import Counts, Parser

__all__ = ["Counts", "Malformed", "Parser", "Rejected"]
