"""The disk spool: files (segments) in which a producer stores entries while Redis is away.

Several processes may share a directory. Each segment has one writer, which holds a ``flock`` on it
as long as it lives. A segment without this lock has lost its writer: any process may replay it.
"""

from countersink.producers.errors import SpoolError
from countersink.producers.spool.replay import Replayed, SegmentInfo, list_segments, replay

__all__ = ["Replayed", "SegmentInfo", "SpoolError", "list_segments", "replay"]
