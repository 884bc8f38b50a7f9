"""Public names of the producer package: ``Producer``, ``Options``, ``Increment``, ``Stats``,
``InvalidBatch``.

Each log record of the logger ``countersink.producers`` has one of these actions (see
``runtime/log.py``)::

    connected       Redis accepts entries again
    unavailable     Redis does not answer, or returns an error
    held_back       nothing is sent, because the stream is longer than max_stream_length
    dropped         increments were lost, because memory had no room for them
    no_salt         sightings wait in memory, because their counter has no salt yet for hashing
    no_members      sightings were counted without their members, because no salt came in time
    spool_failed    the spool could not be written or read
    spool_damaged   a segment's last record is incomplete, or a record is corrupt
    replayed        all entries of a segment were sent to Redis, and the segment was deleted
    not_known       something other than a worker removed entries: they may not be in MySQL
    sigterm         producers were flushed because of SIGTERM or another signal
    left_over       increments are lost, because they were not stored before the end
    memory          the producer's URL is memory://, so its increments stay in the process
    off             increments are discarded: COUNTERSINK_REDIS_URL is missing, or off://
    internal_error  a bug: a background thread caught an exception and continues
"""

from countersink.producers.batch import Increment
from countersink.producers.errors import InvalidBatch
from countersink.producers.options import Options
from countersink.producers.outbox import Stats
from countersink.producers.producer import Producer

__all__ = ["Increment", "InvalidBatch", "Options", "Producer", "Stats"]
