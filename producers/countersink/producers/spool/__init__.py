"""The disk spool: files (segments) in which a producer stores entries while Redis is away.

Several processes may share a directory. Each segment is written by one process, which holds a
``flock`` on the file until it has replayed it (sent its entries to Redis), has closed its producer
or has ended. If nobody holds this lock, any process may replay the segment.
"""

from countersink.producers.errors import SpoolError
from countersink.producers.spool.replay import Replayed, SegmentInfo, list_segments, replay

__all__ = ["Replayed", "SegmentInfo", "SpoolError", "list_segments", "replay"]
