"""The disk spool: files (segments) in which a producer stores entries while Redis is away.

Several processes may share a directory. Each segment is written by one process, which holds a
``flock`` on the file as long as it lives. If nobody holds this lock, the process has ended, and any
other process may replay the segment: send its entries to Redis.
"""

from countersink.producers.errors import SpoolError
from countersink.producers.spool.replay import Replayed, SegmentInfo, list_segments, replay

__all__ = ["Replayed", "SegmentInfo", "SpoolError", "list_segments", "replay"]
