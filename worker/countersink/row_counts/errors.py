"""Errors of row counts.

::

    Conflict
    └── TableChanged     a tracked table was truncated or altered: count its rows again
    Refused
    └── HiddenTriggers   triggers of a tracked table that this user may not see
"""

from countersink.database.errors import Conflict, Refused


class TableChanged(Conflict):
    """A tracked table was truncated or altered while its rows were counted."""


class HiddenTriggers(Refused):
    """Triggers of a tracked table exist that this user may not see."""
