"""The disk spool: files in which a producer stores entries while Redis is away.

A directory holds segments, which several processes share: a segment has one writer, who holds a
``flock`` on it for the segment's life. Whoever finds a segment without that lock may replay it: its
writer is dead.
"""

from countersink.producers.errors import SpoolError
from countersink.producers.spool.replay import Replayed, SegmentInfo, list_segments, replay

__all__ = ["Replayed", "SegmentInfo", "SpoolError", "list_segments", "replay"]
