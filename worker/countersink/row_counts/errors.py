"""Errors of row counts.

::

    Conflict
    └── TableChanged     a tracked table was truncated or altered: count its rows again
    Refused
    └── HiddenTriggers   this user may not see the triggers of a tracked table
"""

from countersink.database.errors import Conflict, Refused


class TableChanged(Conflict):
    """A tracked table was truncated or altered while its rows were counted."""


class HiddenTriggers(Refused):
    """A tracked table has countersink's triggers, but this user may not see them."""
