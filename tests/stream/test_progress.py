"""What was sent first of all that waits, wherever in the streams it lies."""

import pytest
import redis

from countersink.stream.connection import command, connect
from countersink.stream.errors import Interrupted, StreamMisconfigured, StreamUnavailable
from countersink.stream.group import Group
from countersink.stream.names import stream_key
from countersink.stream.progress import first_arrived, first_sent

STREAM, OTHER = stream_key(0), stream_key(1)
NOW = 1_795_000_000_000


def add(
    client: redis.Redis, *fields: str | int | bytes, stream_id: str = "*", stream: str = STREAM
) -> None:
    command(client, "XADD", stream, stream_id, *fields)


@pytest.mark.parametrize("page", [1, 3, 9, 10, 11, 100])
def test_it_is_found_wherever_it_lies(redis_client: redis.Redis, page: int) -> None:
    for number in range(10):
        at = NOW - 10_000 if number == 6 else NOW + number
        fields = ("v", 1, "id", "x", "at", at, "rows", "[]")
        add(redis_client, *fields, stream_id=f"{NOW + 99}-{number}")
    assert first_sent(redis_client, [STREAM], page=page) == NOW - 10_000
    assert first_arrived(redis_client, [STREAM]) == NOW + 99


def test_it_is_found_in_any_of_the_streams(redis_client: redis.Redis) -> None:
    add(redis_client, "at", 500, stream_id="900-0")
    add(redis_client, "at", 400, stream_id="950-0", stream=OTHER)
    assert first_sent(redis_client, [STREAM, OTHER, stream_key(2)]) == 400
    assert first_arrived(redis_client, [STREAM, OTHER, stream_key(2)]) == 900


def test_nothing_waits_in_empty_streams(redis_client: redis.Redis) -> None:
    Group(redis_client, [STREAM], "w").ensure()
    for streams in ([], [STREAM], [OTHER]):
        assert first_sent(redis_client, streams) is None
        assert first_arrived(redis_client, streams) is None


def test_what_is_pending_waits_until_it_is_acknowledged(redis_client: redis.Redis) -> None:
    group = Group(redis_client, [STREAM], "died")
    group.ensure()
    add(redis_client, "id", "ab" * 16, "at", 400, "rows", "[]", stream_id="900-0")
    add(redis_client, "at", 500, stream_id="901-0")
    assert len(group.read(10, 0)) == 2
    assert first_sent(redis_client, [STREAM]) == 400
    group.acknowledge([(STREAM, "900-0", "ab" * 16)])
    assert first_sent(redis_client, [STREAM]) == 500


@pytest.mark.parametrize(
    "fields",
    [
        ("rows", "[]"),
        ("at", "", "rows", "[]"),
        ("at", "-5"),
        ("at", "5x"),
        ("at", "1e2"),
        ("at", "0000000000000005"),  # longer than a reader takes
        ("at", "9" * 15),
        ("at", "1000", "at", "5"),  # the first one counts
        ("at ", "5"),
        ("AT", "5"),
        ("v", "99", "at", "950"),  # a reader goes by the stream id there: the earlier of the two
    ],
)
def test_without_a_time_of_its_own_it_is_the_stream_ids(
    redis_client: redis.Redis, fields: tuple[str, ...]
) -> None:
    add(redis_client, *fields, stream_id="900-7")
    assert first_sent(redis_client, [STREAM]) == 900


def test_it_can_be_stopped_between_two_pages(redis_client: redis.Redis) -> None:
    for number in range(5):
        add(redis_client, "at", 5, stream_id=f"900-{number + 1}")
    answers = iter([False, False, True])
    with pytest.raises(Interrupted):
        first_sent(redis_client, [STREAM], page=1, stop=lambda: next(answers))


def test_a_redis_that_cannot_answer_is_an_error_of_ours(redis_client: redis.Redis) -> None:
    redis_client.set(STREAM, "no stream")
    for ask in (first_sent, first_arrived):
        with pytest.raises(StreamMisconfigured, match="WRONGTYPE"):
            ask(redis_client, [STREAM])
        with connect("redis://127.0.0.1:1/0") as nobody, pytest.raises(StreamUnavailable):
            ask(nobody, [STREAM])
