"""Salts as a worker publishes them, and what the stream holds of members, told by an oracle that
hashes by itself."""

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

import redis

from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import Salt, encode_salts
from countersink.stream.decode import decode_rows
from countersink.stream.names import salts_key
from tests.producers.helpers import STREAM, Entry, distinct, entries

FIRST = -(2**31)
SALT = bytes(range(16))
ENDLESS = [Salt(7, FIRST, None, SALT)]
Found = tuple[Counter[tuple[str, RowKey, int]], dict[tuple[str, RowKey, int, int], set[bytes]]]


def publish(
    client: redis.Redis, salts: Iterable[Salt] = ENDLESS, counter: str = "visitors"
) -> None:
    """What a worker does."""
    client.hset(salts_key(STREAM), counter, encode_salts(salts).decode())


def hashed(member: str | bytes, salt: bytes = SALT) -> bytes:
    data = member.encode() if isinstance(member, str) else member
    return blake2b(data, digest_size=8, key=salt).digest()


def found_in(stored: Iterable[Entry]) -> Found:
    """What a worker would count, and the hashes by (counter, key, minute, number of the salt)."""
    counts: Counter[tuple[str, RowKey, int]] = Counter()
    hashes: dict[tuple[str, RowKey, int, int], set[bytes]] = {}
    for entry in distinct(list(stored)):
        rows, seen, bad = decode_rows(entry["rows"].encode())
        assert bad == []
        assert entry["v"] == "1"
        for position, counter, key, minute, amount in rows:
            counts[counter, key, minute] += amount
            if position in seen:
                raw = seen[position].hashes
                parts = {raw[at : at + 8] for at in range(0, len(raw), 8)}
                hashes.setdefault((counter, key, minute, seen[position].number), set()).update(
                    parts
                )
    return counts, hashes


def found(client: redis.Redis) -> Found:
    return found_in(entries(client))
