"""Exceptions of a backfill.

These have a message for users, which says what to do:

::

    BackfillError             the backfill cannot continue
    ├── WrongOption           an option is not allowed for this counter or file
    ├── Unreadable            a source is missing, not a file, cut off or corrupt
    ├── RunEnded              another process has ended the run or deleted its counter
    └── TooManyRejects        the current chunk would exceed the run's limit of rejected lines

The package catches these itself:

::

    RolledUpMeanwhile         a day was rolled up before all its keys were set
    WrongCut                  a chunk that was cut by its size is not as expected
    Overtaken                 another process changed the source, or settings changed meanwhile
    SourceDiffers             the stored source changed, so the content may be another source
"""

from typing import TYPE_CHECKING

from countersink.runtime.errors import ExplainedError

if TYPE_CHECKING:
    from countersink.logs.formats.reader import Rejected


class BackfillError(ExplainedError):
    """The backfill cannot continue. The message says what to do."""


class WrongOption(BackfillError):
    """An option is not allowed for this counter or file. If this is found before a source is read,
    the command ends with a usage error.
    """


class Unreadable(BackfillError):
    """A source cannot be read: it is missing, not a file, cut off or corrupt."""


class RunEnded(BackfillError):
    """The run has ended meanwhile: another process has undone it, taken it for dead, or deleted its
    counter."""


class TooManyRejects(BackfillError):
    """The current chunk would make the run exceed its maximum of rejected lines. The chunk is not
    counted.

    Attributes:
        rejects: list of the rejected lines of that chunk.
    """

    def __init__(self, message: str, rejects: "list[Rejected]") -> None:
        super().__init__(message)
        self.rejects = rejects


class RolledUpMeanwhile(Exception):
    """A reconcile can no longer set a day: meanwhile it was rolled up to its month, or got a bucket
    that lies partly in another day. The transaction that found this has changed nothing. Keys of
    the day that were set by earlier transactions keep their new totals. The message is the reason
    for users."""


class WrongCut(Exception):
    """A chunk that was cut by its size has far more cells and rejected lines than expected, or
    cannot be read to its end. It must be cut again by counting its lines, and then ends earlier."""


class Overtaken(Exception):
    """A chunk must not be counted, because things have changed since it was read. Another process
    has counted it, or has undone a chunk before it, or has deleted its source or given the source
    another recipe; or the catalog or the salts (for hashes of visitors) have changed."""


class SourceDiffers(Exception):
    """The source's row has changed since the content was compared with it, so the content may be
    another source: another process has counted or undone a part of the source, deleted it, or begun
    to read it from its beginning again."""
