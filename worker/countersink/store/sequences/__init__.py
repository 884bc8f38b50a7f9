"""Sequences: numbers handed out once, in one statement.

Tables: ``sequence`` has a row per sequence and period, ``sequence_option`` one per sequence, which
is made when it is first used. Whoever hands out a value holds a share lock on the latter.
"""

from countersink.store.sequences.allocator import HANDING_IDLE_SECONDS
from countersink.store.sequences.options import SequenceOptions
from countersink.store.sequences.records import CHANGE_LOCK_WAIT, Period, Sequence
from countersink.store.sequences.sequences import UNCHANGED, Sequences, Unchanged

Options = SequenceOptions
"""Its name in earlier versions."""

__all__ = [
    "CHANGE_LOCK_WAIT",
    "HANDING_IDLE_SECONDS",
    "UNCHANGED",
    "Options",
    "Period",
    "Sequence",
    "SequenceOptions",
    "Sequences",
    "Unchanged",
]
