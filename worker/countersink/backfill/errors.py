"""Errors of a backfill.

::

    BackfillError             the backfill cannot continue; the message says what to do
    ├── WrongOption           an option is not allowed; nothing was read
    ├── Unreadable            a source is missing, not a file, cut off or corrupt
    ├── RunEnded              the run was undone, or its counter deleted, meanwhile
    └── TooManyRejects        with the current chunk, the run would exceed its rejected lines

Exceptions that the package handles itself:

::

    RolledUpMeanwhile         a day was rolled up to its month meanwhile
    Overtaken                 the chunk was counted by another process, or the settings changed
    SourceDiffers             another process read on, and its content may be another source
"""

from typing import TYPE_CHECKING

from countersink.runtime.errors import ExplainedError

if TYPE_CHECKING:
    from countersink.logs.formats.reader import Rejected


class BackfillError(ExplainedError):
    """The backfill cannot continue; the message says what to do."""


class WrongOption(BackfillError):
    """An option is not allowed; nothing was read."""


class Unreadable(BackfillError):
    """A source cannot be read: it is missing, not a file, cut off or corrupt."""


class RunEnded(BackfillError):
    """The run has ended meanwhile: it was undone, or its counter was deleted."""


class TooManyRejects(BackfillError):
    """The current chunk would make the run exceed its maximum of rejected lines; the chunk is not
    counted.

    Attributes:
        rejects: rejected lines of that chunk.
    """

    def __init__(self, message: str, rejects: "list[Rejected]") -> None:
        super().__init__(message)
        self.rejects = rejects


class RolledUpMeanwhile(Exception):
    """A chosen day was rolled up before it was set; nothing was done. The message has the reason
    for users."""


class Overtaken(Exception):
    """A chunk must not be counted as it was read: another process has counted it, or the catalog
    or the salts have changed since."""


class SourceDiffers(Exception):
    """The source is not as it was found: another process has read on in it, deleted it or begun it
    anew, so this content may be another source."""
