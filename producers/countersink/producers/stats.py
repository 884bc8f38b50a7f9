"""What a producer has done so far."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """Figures of one producer in one process, since it was created there (a forked child starts at
    0).

    The unit is the *increment*, one call of ``increment()`` or one item of ``increment_many()`` and
    ``increment_batch()`` whatever its amount, except where another is named. ``accepted + dropped``
    is what was asked for, but for batches of which ``increment_batch()`` said that there was no
    room, and ``accepted - stored - spooled`` is what only this process's memory holds.

    Attributes:
        accepted: increments taken and not dropped.
        stored: increments that Redis has acknowledged, straight from memory.
        resent: increments sent again because the first answer was lost (not counted twice: same
            entry id).
        spooled: increments written and fsynced to the disk spool.
        replayed: increments sent to Redis from spool segments, also from those that dead processes
            left.
        dropped: increments that fitted neither into memory nor into the spool, or were left over at
            close.
        pending_rows: distinct rows, in *rows*, held in memory and not stored yet.
        last_error: the last failure to reach Redis or to write the spool, without passwords;
            ``None``: none so far.
        connected: Redis answered the last time it was asked, and takes entries.
    """

    accepted: int
    stored: int
    resent: int
    spooled: int
    replayed: int
    dropped: int
    pending_rows: int
    last_error: str | None
    connected: bool
