"""Public names of the producer package: ``Producer``, ``Options``, ``Increment``, ``Stats``,
``InvalidBatch``.

Each log record of the logger ``countersink.producers`` has one of these actions (see
``runtime/log.py``)::

    connected         Redis accepts entries again
    unavailable       Redis does not answer, or returns an error
    held_back         nothing is sent, because the stream is longer than max_stream_length
    dropped           increments were lost: memory had no room, or the last flush was over
    no_salt           sightings wait in memory, because their counter has no salt yet for hashing
    no_members        sightings were counted without their members, for lack of a salt
    spool_failed      the spool could not be written or read, or is full
    spool_damaged     a segment's last record is incomplete, or a record is corrupt
    replayed          a segment was sent to Redis, and then deleted (renamed if it is damaged)
    not_known         others than workers may have deleted entries, so some may not be in MySQL
    sigterm           producers were flushed because of SIGTERM or another signal
    left_over         increments are lost, because they were not stored before the end
    memory            the producer's URL is memory://, so its increments stay in the process
    off               increments are discarded: COUNTERSINK_REDIS_URL is missing, or off://
    unknown_variable  an environment variable COUNTERSINK_PRODUCER_... is not a setting
    internal_error    an unexpected exception (the process continues), or threads cannot be started
"""

from countersink.producers.batch import Increment
from countersink.producers.errors import InvalidBatch
from countersink.producers.options import Options
from countersink.producers.outbox import Stats
from countersink.producers.producer import Producer

__all__ = ["Increment", "InvalidBatch", "Options", "Producer", "Stats"]
