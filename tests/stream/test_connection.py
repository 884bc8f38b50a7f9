"""Connections to Redis: nothing is sent twice, nothing secret is shown."""

import socket
import threading

import pytest
import redis

from countersink.stream.clock import offset_ms
from countersink.stream.connection import command, connect, mapped, redact
from countersink.stream.errors import StreamMisconfigured, StreamUnavailable
from countersink.stream.names import PARTITIONS_KEY, note_use, partitions, stream_key, stream_keys


def test_a_command_whose_reply_is_lost_is_sent_once() -> None:
    received: list[bytes] = []

    def swallow(listener: socket.socket) -> None:
        listener.settimeout(5)
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                data = peer.recv(65536)
                while data and b"XADD" not in data:
                    peer.sendall(b"+OK\r\n" * data.count(b"*"))
                    data = peer.recv(65536)
                received.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=swallow, args=(listener,))
        thread.start()
        client = connect(f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        with pytest.raises(StreamUnavailable), mapped():
            client.xadd("s", {"a": 1})
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert sum(data.count(b"XADD") for data in received) == 1


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "http://x", "redis+cluster://x/1", "redis://h:notaport/0", "redis://h/db"],
)
def test_a_wrong_url_is_refused_with_a_reason(url: str) -> None:
    with pytest.raises(StreamMisconfigured, match="redis"):
        connect(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@h:1/0",
        "redis://u:s3cret@h/0",
        "unix:///run/r.sock?password=s3cret",
        "rediss://u:s3cret@[::1]:1/0",
        "redis://u:s3cret@[bad",
        "redis://:s3cret/et@localhost:6379/0",
        "redis://u:a#s3cret@localhost:6379/0",
        "redis://u:a?s3cret@localhost:6379/0",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    assert "s3cret" not in redact(url)
    with pytest.raises(StreamMisconfigured) as caught:
        connect("x" + url)
    assert "s3cret" not in str(caught.value)


def test_nobody_listening_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(StreamUnavailable):
        offset_ms(connect(f"redis://127.0.0.1:{port}/0"))


def test_a_wrong_password_is_a_misconfiguration(redis_url: str) -> None:
    with pytest.raises(StreamMisconfigured, match="refuses"):
        command(connect(redis_url.replace("://", "://nobody:wrong@")), "PING")


def test_the_clock_difference_is_small_on_one_machine(redis_url: str) -> None:
    assert abs(offset_ms(connect(redis_url))) < 1000


def test_every_partition_ever_used_is_read(redis_url: str) -> None:
    client = connect(redis_url)
    assert stream_keys(client) == [stream_key(0)]
    client.set(PARTITIONS_KEY, 12)
    note_use(client, 11)
    client.set(PARTITIONS_KEY, 2)
    assert partitions(client) == 2
    assert stream_keys(client) == [stream_key(p) for p in (0, 1, 11)]


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "99999", "²", "9" * 5000])
def test_a_wrong_partition_count_is_refused(redis_url: str, value: str) -> None:
    client: redis.Redis = connect(redis_url)
    client.set(PARTITIONS_KEY, value)
    with pytest.raises(StreamMisconfigured, match=PARTITIONS_KEY):
        partitions(client)


def test_nothing_is_sent_that_takes_a_right_which_older_servers_do_not_know(redis_url: str) -> None:
    """CLIENT SETINFO: a Redis before 7.2 answers it with an error, and refuses lists of it."""
    with connect(redis_url) as client, redis.Redis.from_url(redis_url, protocol=2) as plain:
        plain.config_resetstat()
        assert client.ping()
        assert plain.info("stats")["total_error_replies"] == 0
        assert "cmdstat_client|setinfo" not in plain.info("commandstats")
