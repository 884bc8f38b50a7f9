"""A Redis whose clock was set back: what dead workers left is taken over all the same.

libfaketime and Redis's allocator do not get along, so it is done the other way round: with DUMP and
RESTORE the entries were delivered an hour from now, which is what a clock that is set back by an
hour leaves.
"""

import struct

import redis

from countersink.stream.connection import command
from countersink.stream.group import Group
from countersink.stream.names import GROUP, stream_key
from tests.support.traffic import Traffic, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import Running

STREAM = stream_key(0)
ENTRIES = 120
HOUR_MS = 3_600_000


def crc64(payload: bytes) -> int:
    """The checksum of DUMP: CRC-64 as Redis has it (Jones's polynomial, reflected)."""
    crc = 0
    for byte in payload:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


def deliver_later(client: redis.Redis, delivered: range, by_ms: int) -> None:
    """As if what was delivered at a ms of the range had been ``by_ms`` later."""
    payload = command(client, "DUMP", STREAM)
    body = payload[:-8]
    for ms in delivered:
        body = body.replace(struct.pack("<q", ms), struct.pack("<q", ms + by_ms))
    command(client, "RESTORE", STREAM, 0, body + struct.pack("<Q", crc64(body)), "REPLACE")


def test_entries_of_a_dead_worker_are_claimed_after_the_clock_was_set_back(
    redis_url: str, redis_client: redis.Redis, mysql_url: str
) -> None:
    traffic = Traffic(5)
    send(redis_client, *(traffic.entry(now_ms(redis_client), rows=1) for _ in range(ENTRIES)))
    dead = Group(redis_client, [STREAM], "dead")
    dead.ensure()
    before = now_ms(redis_client)
    assert len(dead.read(ENTRIES, 0)) == ENTRIES
    deliver_later(redis_client, range(before, now_ms(redis_client) + 1), HOUR_MS)
    rows = command(redis_client, "XPENDING", STREAM, GROUP, "-", "+", 200)
    assert (len(rows), {row[2] for row in rows}) == (ENTRIES, {0}), "idle for no time at all"
    with Running(redis_url, mysql_url, claim_idle_ms=300, claim_every_s=0.1):
        eventually(lambda: not redis_client.xlen(STREAM))
