"""Whatever lies in a stream, no reader gets more of it at once than fits."""

import os
from collections.abc import Callable, Mapping

import pytest
import redis

from countersink.stream.connection import command, connect, ends
from countersink.stream.decode import decode, entry_id_of
from countersink.stream.entry import (
    MAX_ROWS_BYTES,
    PAGE_BYTES,
    Delivery,
    derived_id,
    pages,
    size_of,
)
from countersink.stream.group import READ_BYTES, Group
from countersink.stream.names import stream_key

STREAM = stream_key(0)
MIB = 1024 * 1024
ROW = b'[["c","k",1,1]]'
Fields = Mapping[bytes, bytes]


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return connect(redis_url)


@pytest.fixture
def group(client: redis.Redis) -> Group:
    made = Group(client, [STREAM, stream_key(1)], "w")
    made.ensure()
    return made


def add(client: redis.Redis, fields: Fields, stream: str = STREAM) -> None:
    flat = [part for pair in fields.items() for part in pair]
    command(client, "XADD", stream, "*", *flat)


def acknowledge(group: Group, found: list[Delivery]) -> int:
    return group.acknowledge((d.stream, d.stream_id, entry_id_of(d)) for d in found)


def all_of(take: Callable[[], list[Delivery]], most: int) -> list[Delivery]:
    """Everything, by calls none of which brings more than ``most`` bytes."""
    found: list[Delivery] = []
    while got := take():
        assert size_of(got) <= most
        found += got
    return found


def test_entries_of_legal_size_are_read_and_claimed_a_few_at_a_time(
    client: redis.Redis, group: Group
) -> None:
    assert READ_BYTES < 12 * MIB
    for number in range(12):
        add(client, {b"rows": b" " * (MIB + 1)}, stream_key(number % 2))
    found = all_of(lambda: group.read(200, 0), READ_BYTES + MIB + 1)
    assert len(found) == 12
    heir = Group(client, group.streams, "heir")
    claimed: list[Delivery] = []
    while len(claimed) < 12:
        page = heir.claim(0, 50).deliveries
        assert 0 < size_of(page) <= READ_BYTES + MIB + 1
        claimed += page
        assert acknowledge(heir, page) == len(page)
    assert ends(client, STREAM) is None


def test_entries_that_nobody_has_are_swept_up_a_few_at_a_time(
    client: redis.Redis, group: Group
) -> None:
    for _ in range(12):
        add(client, {b"rows": b" " * MIB})
    while group.read(200, 0):
        pass
    client.xgroup_delconsumer(STREAM, "countersink", "w")
    swept = 0
    while page := group.orphans(0, 50):
        assert size_of(page) <= READ_BYTES + MIB
        swept += acknowledge(group, page)
    assert swept == 12


def test_a_page_ends_when_it_is_full(client: redis.Redis) -> None:
    for size in (10, 3 * MIB, 10, 10, 700_000, 700_000, 10):
        add(client, {b"rows": b" " * size})
    sizes = [[size_of([d]) for d in page] for page in pages(client, STREAM)]
    assert sizes == [[10, 3 * MIB], [10, 10, 700_000, 700_000], [10]]
    assert PAGE_BYTES == MIB
    assert [len(page) for page in pages(client, STREAM, size=3)] == [2, 3, 2]


ID = b"019386f2a4b81c6e0d5f7a3b9c2e4d60"
OVERSIZED: dict[str, tuple[Fields, str | None]] = {
    "rows": ({b"id": ID, b"rows": b" " * (9 * MIB)}, "too_large"),
    "rows, without an id": ({b"rows": b" " * (5 * MIB)}, "too_large"),
    "another field": ({b"junk": b"x" * (5 * MIB), b"id": ID, b"rows": ROW}, None),
    "another field, without an id": ({b"rows": ROW, b"junk": b"x" * (5 * MIB)}, None),
    "id": ({b"id": b"0" * (5 * MIB), b"rows": ROW}, "bad_entry"),
    "version": ({b"v": b"1" * (5 * MIB), b"id": ID, b"rows": ROW}, "bad_entry"),
    "time": ({b"at": b"1" * (5 * MIB), b"rows": ROW}, "bad_entry"),
    "a name": ({b"x" * (5 * MIB): b"", b"rows": ROW}, None),
    "many fields": ({b"%d" % n: b"" for n in range(5_000)} | {b"rows": ROW}, None),
    "nothing that is read": ({b"junk": b"x" * (5 * MIB)}, "bad_entry"),
}


@pytest.mark.parametrize("case", OVERSIZED)
def test_an_oversized_entry_comes_cut_with_its_own_id_and_fate(
    client: redis.Redis, group: Group, case: str
) -> None:
    fields, reason = OVERSIZED[case]
    add(client, fields)
    (found,) = group.read(10, 0)
    assert size_of([found]) <= MAX_ROWS_BYTES + 200
    whole = derived_id(STREAM, found.stream_id, tuple(fields.items()))
    assert entry_id_of(found) == (ID.decode() if fields.get(b"id") == ID else whole)
    read = decode(found)
    if reason is None:
        assert [row[1:] for row in read.rows] == [("c", "k", 1, 1)]
    else:
        assert [bad.reason for bad in read.bad] == [reason]
    assert list(pages(client, STREAM)) == [[found]]
    assert acknowledge(group, [found]) == 1
    assert ends(client, STREAM) is None


def test_one_that_a_reader_waits_for_is_cut_too(
    client: redis.Redis, redis_url: str, group: Group
) -> None:
    add(client, {b"rows": b" " * (6 * MIB)})
    found = group._wait(1_000)
    assert [len(d.fields[0][1]) for d in found] == [MAX_ROWS_BYTES + 1]
    assert acknowledge(group, found) == 1


def test_what_would_fill_the_memory_when_it_is_parsed_is_not() -> None:
    for rows in (b"[" + b"[]," * 700_000 + b"[]]", b"[[" + b'"",' * 900_000 + b'""]]'):
        read = decode(Delivery(STREAM, "1-1", ((b"rows", rows),)))
        assert [bad.reason for bad in read.bad] == ["too_many_rows"]


def test_a_text_without_an_end_is_refused_in_no_time() -> None:
    rows = b'[["' + b'\\"' * 1_500_000
    read = decode(Delivery(STREAM, "1-1", ((b"rows", rows),)))
    assert [bad.reason for bad in read.bad] == ["bad_entry"]


def test_many_streams_are_read_within_one_bound_and_all_in_turn(
    client: redis.Redis, redis_url: str
) -> None:
    streams = [stream_key(number) for number in range(6)]
    group = Group(client, streams, "w")
    group.ensure()
    for stream in streams:
        for _ in range(4):
            add(client, {b"rows": os.urandom(MIB)}, stream)
    found = all_of(lambda: group.read(100, 0), READ_BYTES + MIB)
    assert len(found) == 24
    assert {d.stream for d in found[:12]} != {streams[0]}
