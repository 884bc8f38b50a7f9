"""Errors of a backfill: wrong option, unreadable source, too many rejected lines, ended run; the
messages are worded where they are raised.

::

    BackfillError             it cannot go on; the message says what to do
    ├── WrongOption           an option cannot be as it is; nothing was read
    ├── Unreadable            a source is gone, no file, cut off or corrupt
    ├── RunEnded              the run was undone, or its counter deleted, meanwhile
    └── TooManyRejects        one chunk more, and more lines would be rejected than may be

What only one part raises and another handles, and nobody is told:

::

    RolledUpMeanwhile         a day is in a month by now
    Overtaken                 another process has counted what was read
    SourceDiffers             another process has read on, maybe in another source
"""

from typing import TYPE_CHECKING

from countersink.runtime.errors import ExplainedError

if TYPE_CHECKING:
    from countersink.logs.formats.reader import Rejected


class BackfillError(ExplainedError):
    """A backfill cannot go on; the message says what to do."""


class WrongOption(BackfillError):
    """An option cannot be as it is; nothing was read."""


class Unreadable(BackfillError):
    """A source cannot be read: it is gone, no file, cut off or corrupt."""


class RunEnded(BackfillError):
    """The run is not running any more: it was undone, or its counter deleted, meanwhile."""


class TooManyRejects(BackfillError):
    """One chunk more, and more lines would have been rejected than may be; with that chunk's
    rejected lines.

    Attributes:
        rejects: they.
    """

    def __init__(self, message: str, rejects: "list[Rejected]") -> None:
        super().__init__(message)
        self.rejects = rejects


class RolledUpMeanwhile(Exception):
    """A day cannot be set any more, since it was chosen; nothing was done. Says why."""


class Overtaken(Exception):
    """What was read is not to be counted: another process has counted it, or the catalog by which
    it was read is not in force any more."""


class SourceDiffers(Exception):
    """Another process has read on in the source, and this content may not be that source."""
