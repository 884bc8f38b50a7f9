"""Whether entries have left a stream by acknowledgement alone.

That an entry is no longer in its stream does not say that a worker has applied it: Redis may have
come back empty, or somebody trimmed the stream. So the acknowledging script counts, in a hash
beside the stream, and Redis counts what was ever added. As long as the same server holds the same
group on the stream, and what was added is what is there and what was acknowledged, nothing got
lost: that is one epoch, and two of them are equal or something happened in between. A server that
is older than an entry says nothing of it: see :meth:`Look.reaches`.

Redis before 7.0 does not count what was added: there a trimmed stream goes unnoticed.
"""

import os
from dataclasses import dataclass

import redis

from countersink.stream.connection import mapped
from countersink.stream.delivery import script
from countersink.stream.names import GROUP, applied_key


@dataclass(frozen=True, slots=True)
class Epoch:
    """What stays the same for as long as entries leave a stream by acknowledgement alone.

    Attributes:
        server: the replication id of the Redis server: another one after each restart and failover.
        group: random, given to the consumer group when it was made; empty if there is none.
        unaccounted: entries that were added, and are neither there nor acknowledged; less than 0
            where the stream was deleted.
    """

    server: str
    group: str
    unaccounted: int

    def end(self, now: "Epoch") -> str:
        """What ended this epoch, the one at the moment being ``now``: a clause for people."""
        if now.server != self.server:
            return "Redis was started anew, or another server took over"
        if now.group != self.group:
            return "the stream or its consumer group was deleted"
        return (
            f"{abs(now.unaccounted - self.unaccounted)} entries left the stream without the mark of"
            " having been applied: by XTRIM or XDEL, or by a worker of an older version"
        )


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a stream.

    Attributes:
        epoch: at that moment.
        first: the stream id of the first entry; None if it is empty.
        last: the last stream id that was given there.
    """

    epoch: Epoch
    first: str | None
    last: str

    def reaches(self, stream_id: str | None) -> bool:
        """Whether the stream has ever got as far as ``stream_id``. A replica that lags behind, of
        the same replication id as its primary, has not, nor has an older stream put back.
        """
        return stream_id is None or order(stream_id) <= order(self.last)


def look(client: redis.Redis, stream: str, *, make: bool = False) -> Look:
    """Look at ``stream``.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        stream: its key.
        make: make the stream and its consumer group, at 0, where they are missing: an epoch begins
            with them.

    Raises:
        StreamError: Redis did not do its part.
    """
    look_there = client.register_script(script("epoch"))
    arguments = [GROUP, os.urandom(8).hex() if make else ""]
    with mapped():
        reply = look_there(keys=[stream, applied_key(stream)], args=arguments)
    server, group, unaccounted, first, last = reply
    epoch = Epoch(server.decode(), group.decode(), int(unaccounted))
    return Look(epoch, None if first is None else first.decode(), last.decode())


def order(stream_id: str) -> tuple[int, int]:
    """A key by which stream ids sort as Redis sorts them."""
    ms, _, sequence = stream_id.partition("-")
    return int(ms), int(sequence or 0)
