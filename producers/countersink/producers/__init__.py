"""Public names of the producer package: ``Producer``, ``Options``, ``Increment``, ``Stats``,
``InvalidBatch``.

Actions of the logger ``countersink.producers``::

    connected       Redis answers again
    unavailable     Redis does not answer, or returns an error
    held_back       the stream is longer than max_stream_length
    dropped         increments were lost for lack of memory
    no_salt         members wait in memory: their counter has no salt to hash them with so far
    no_members      sightings were counted without their members: no salt came in time
    spool_failed    the spool could not be written or read
    spool_damaged   a segment's last record is incomplete, or a record is corrupt
    replayed        the entries of a segment were sent to Redis, and the segment was deleted
    not_known       entries left the stream without a worker: they may not be in MySQL
    sigterm         flushed because of SIGTERM or another signal
    left_over       increments could not be stored before the producer was closed, and are lost
    memory          increments stay in the process: the URL of a producer is memory://
    off             increments are discarded: COUNTERSINK_REDIS_URL is missing, or off://
    internal_error  a bug: a background thread caught an exception and continues
"""

from countersink.producers.batch import Increment
from countersink.producers.errors import InvalidBatch
from countersink.producers.options import Options
from countersink.producers.outbox import Stats
from countersink.producers.producer import Producer

__all__ = ["Increment", "InvalidBatch", "Options", "Producer", "Stats"]
