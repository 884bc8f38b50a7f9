"""A listener with real sockets."""

import os
import socket
import stat
import struct
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from countersink.statsd import (
    CannotListen,
    MapError,
    NotLoopback,
    StatsdOptions,
    dropped_datagrams,
    set_receive_buffer,
)
from countersink.statsd.sockets import BATCH, LARGEST, LONGEST, Receiver
from tests.statsd.listening import listening
from tests.support.waiting import eventually


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: paths of unix sockets are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def unix(kind: socket.SocketKind, path: str) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, kind)
    opened.settimeout(20)
    opened.connect(path)
    return opened


# --- UDP ---------------------------------------------------------------------------------------


def test_every_datagram_is_counted_however_many_come() -> None:
    sent = 0
    with listening() as listener, listener.sender() as sender:
        for number in (1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH):
            for _ in range(number):
                sender.send(b"a:1|c")
            sent += number
            listener.has_lines(sent)
            assert listener.figures.packets == sent
            assert listener.producer.count("a") == sent


def test_each_datagram_is_received_whole_and_in_order() -> None:
    sent = [b"%d" % number * (number % 7) for number in range(BATCH + 3)]
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there,
    ):
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        here.bind(("127.0.0.1", 0))
        there.connect(here.getsockname())
        for each in sent:
            there.send(each)
        found = Receiver(here).receive
        first, again = found(), found()  # what was received stays as it was
        assert [bytes(each) for each in (*first, *again)] == sent
        assert len(first) == BATCH
        assert list(found()) == []


def test_datagrams_of_every_size() -> None:
    with listening() as listener, listener.sender() as sender:
        sender.send(b"")
        sender.send(b"a:1|c\n" * 10_000)
        sender.send(b"x" * 65_507)
        listener.takes(sender, b"a:1|c", 10_002)
        assert (listener.producer.count("a"), listener.figures.malformed) == (10_001, 1)


def test_the_end_counts_what_has_arrived() -> None:
    for number in (1, 500):
        with listening() as listener, listener.sender() as sender:
            for _ in range(number):
                sender.send(b"a:1|c")
        assert listener.producer.count("a") == number
        assert listener.figures.lines == number


def test_what_the_kernel_drops_is_told() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        assert set_receive_buffer(receiver, 4096) < 10_000
        sender.connect(receiver.getsockname())
        for _ in range(1000):
            sender.send(b"a:1|c")
        receiver.setblocking(False)
        received = 0
        while True:
            try:
                receiver.recv(10)
            except BlockingIOError:
                break
            received += 1
        assert received < 1000
        assert dropped_datagrams(receiver) == 1000 - received


def test_ipv6_and_ipv4_loopback_at_one_port() -> None:
    with listening(host="localhost", tcp=True) as listener:
        ports = {url.rpartition(":")[2] for url in listener.server.listening}
        assert len(ports) == 1
        with listener.sender() as sender:
            sender.send(b"a:1|c")
        listener.has_lines(1)


# --- TCP ---------------------------------------------------------------------------------------


def test_lines_that_come_in_pieces_and_the_last_without_its_newline() -> None:
    with listening(tcp=True) as listener:
        with listener.connection() as connection:
            for byte in b"a:12|c\nb:1|c\na:2|c":
                connection.sendall(bytes([byte]))
            listener.has_lines(2)
            assert listener.producer.totals() == {("a", ""): 12, ("b", ""): 1}
        listener.has_lines(3)
        assert listener.producer.totals() == {("a", ""): 14, ("b", ""): 1}
        assert listener.figures.connections == 0


def test_half_a_line_of_a_broken_connection_is_no_line() -> None:
    with listening(tcp=True) as listener:
        connection = listener.connection()
        listener.takes(connection, b"a:1|c\na:1|c", 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # a reset, not an end
        eventually(lambda: listener.figures.connections == 0)
        assert listener.producer.count("a") == 1


def test_a_line_without_end_closes_its_connection_and_no_other() -> None:
    with listening(tcp=True) as listener, listener.connection() as good:
        with listener.connection() as bad:
            bad.settimeout(20)
            with pytest.raises(OSError):  # noqa: PT012
                while True:
                    bad.sendall(b"x" * LONGEST)
        listener.takes(good, b"a:1|c\n", 2)
        assert (listener.producer.count("a"), listener.figures.malformed) == (1, 1)


def test_idle_connections_keep_nobody_out() -> None:
    with listening(tcp=True, max_connections=2) as listener, listener.connection() as first:
        listener.takes(first, b"a:1|c\n", 1)
        with listener.connection() as second, listener.connection() as third:
            third.sendall(b"a:1|c\n")
            assert first.recv(1) == b""  # it was idle for longest
            listener.has_lines(2)
            second.sendall(b"a:1|c\n")  # and now the third is
            listener.has_lines(3)
            with listener.connection() as fourth:
                fourth.sendall(b"a:1|c")
                assert third.recv(1) == b""
                listener.takes(second, b"a:1|c\n", 4)
                assert (listener.figures.connections, listener.figures.refused) == (2, 2)
    assert listener.producer.count("a") == 5


def test_lines_that_come_byte_by_byte_keep_nobody_out() -> None:
    with listening(tcp=True, max_connections=20) as listener, ExitStack() as stack:
        slow = [stack.enter_context(listener.connection()) for _ in range(20)]
        for number in range(1, 31):
            for each in slow:
                with suppress(OSError):  # it has made room
                    each.send(b"a")
            stack.enter_context(listener.connection()).sendall(b"b:1|c\n")
            listener.has_lines(number)
    assert listener.producer.count("b") == 30
    assert listener.figures.malformed == 0


def test_a_line_that_lasts_too_long_makes_room_before_those_that_only_wait() -> None:
    with (
        listening(tcp=True, max_connections=2, line_timeout_s=0) as listener,
        listener.connection() as waiting,
        listener.connection() as slow,
    ):
        listener.takes(waiting, b"a:1|c\n", 1)
        listener.takes(slow, b"a:1|c\na", 2)
        with listener.connection() as new:
            assert slow.recv(1) == b""
            listener.takes(new, b"a:1|c\n", 3)
            listener.takes(waiting, b"a:1|c\n", 4)


def test_a_connection_that_has_ended_makes_room_and_its_last_line_counts() -> None:
    with listening(tcp=True, max_connections=1) as listener:
        for number in range(20):
            with listener.connection() as connection:
                listener.takes(connection, b"a:1|c\na:1|c", 2 * number + 1)
    assert (listener.producer.count("a"), listener.figures.refused) == (40, 0)


def test_the_end_reads_what_connections_have_sent() -> None:
    with listening(tcp=True) as listener:
        connections = [listener.connection() for _ in range(20)]
        for connection in connections:
            connection.sendall(b"a:1|c\n" * 1000)
    assert listener.producer.count("a") == 20_000
    for connection in connections:
        connection.close()


# --- unix sockets ------------------------------------------------------------------------------


def test_both_kinds_of_unix_sockets(directory: Path) -> None:
    with listening(udp=False, socket="d", stream_socket="s", socket_mode=0o622) as listener:
        assert listener.server.listening == ("unixgram://d", "unix://s")
        assert stat.S_IMODE(os.stat("d").st_mode) == 0o622
        with unix(socket.SOCK_DGRAM, "d") as sender, unix(socket.SOCK_STREAM, "s") as connection:
            for _ in range(1000):
                sender.send(b"a:1|c")  # waits while the queue is full
            listener.takes(connection, b"b:1|c\n" * 1000, 2000)
        assert listener.producer.totals() == {("a", ""): 1000, ("b", ""): 1000}
    assert os.listdir() == []


def test_of_a_datagram_that_is_too_large_the_cut_line_does_not_count(directory: Path) -> None:
    with (
        listening(udp=False, socket="d") as listener,
        unix(socket.SOCK_DGRAM, "d") as sender,
    ):
        # cut behind its type, the line would count 1 instead of 10
        line = b"a:1|c\n"
        fitting = 10_800
        filler = b"b" * (LARGEST - len(line) * fitting - len(b":1|c\na:1|c")) + b":1|c\n"
        sender.send(line * fitting + filler + b"a:1|c|@0.1\n" * 500)
        listener.has_lines(fitting + 2)
        assert (listener.producer.count("a"), listener.figures.malformed) == (fitting, 1)


@pytest.mark.parametrize(
    ("kind", "option"),
    [(socket.SOCK_DGRAM, "socket"), (socket.SOCK_STREAM, "stream_socket")],
)
def test_what_a_killed_listener_left_is_replaced(
    directory: Path, kind: socket.SocketKind, option: str
) -> None:
    left = socket.socket(socket.AF_UNIX, kind)
    left.bind("s")
    left.close()
    assert os.path.exists("s")
    with listening(udp=False, **{option: "s"}) as listener:
        with unix(kind, "s") as sender:
            sender.send(b"a:1|c\n")
        listener.has_lines(1)


def test_a_living_listeners_socket_is_left_alone(directory: Path) -> None:
    with listening(udp=False, socket="s") as listener:
        with pytest.raises(CannotListen, match="another program"), listening(socket="s"):
            pass
        with unix(socket.SOCK_DGRAM, "s") as sender:
            sender.send(b"a:1|c")
        listener.has_lines(1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind("s")
        with pytest.raises(CannotListen, match="another program"), listening(socket="s"):
            pass
    os.unlink("s")
    Path("s").write_text("a file")
    with pytest.raises(CannotListen, match="no socket"), listening(socket="s"):
        pass
    assert Path("s").read_text() == "a file"


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "2001:db8::1"])
def test_beyond_loopback_only_when_told_so(host: str) -> None:
    with pytest.raises(NotLoopback, match="--anyone"), listening(host=host):
        pass


def test_everybody_when_told_so() -> None:
    with listening(host="0.0.0.0", anyone=True) as listener:
        assert listener.server.listening[0].startswith("udp://0.0.0.0:")


def test_a_port_that_is_taken() -> None:
    with (
        listening(tcp=True) as listener,
        pytest.raises(CannotListen, match="is another StatsD server running"),
        listening(port=listener.port()),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"udp": False}, "nothing to listen at"),
        ({"port": 70_000}, "port is"),
        ({"max_amount": 10**13}, "max_amount"),
        ({"max_ahead_s": float("nan")}, "max_ahead_s"),
        ({"receive_buffer": 1 << 30}, "below 1 GiB"),
        ({"socket": "x", "stream_socket": "x"}, "both"),
        ({"socket_mode": 0o1777}, "octal"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StatsdOptions(**options)  # type: ignore[arg-type]


def test_a_host_without_address() -> None:
    with pytest.raises(CannotListen, match="host"), listening(host="no.such.host.invalid"):
        pass


def test_what_was_opened_is_closed_when_the_rest_fails(directory: Path) -> None:
    with pytest.raises(CannotListen), listening(socket="s", stream_socket="none/s"):
        pass
    assert not os.path.exists("s")
    with listening(socket="s"):
        pass


# --- the map -----------------------------------------------------------------------------------


def test_the_map_is_read_again(directory: Path) -> None:
    Path("map").write_text("[[rule]]\nmatch = 'a.*'\ncounter = 'c'\nkey = '$1'\n")
    with listening(map="map") as listener, listener.sender() as sender:
        listener.takes(sender, b"a.x:1|c", 1)
        Path("map").write_text("[[rule]]\nmatch = 'a.*'\ncounter = 'd'\n")
        assert listener.server.reload()
        listener.takes(sender, b"a.x:1|c", 2)
        Path("map").write_text("[[rule]]\n")
        assert not listener.server.reload()
        listener.takes(sender, b"a.x:1|c", 3)
        assert listener.producer.totals() == {("c", "x"): 1, ("d", ""): 2}
        assert listener.figures.rules == 1


def test_a_wrong_map_is_told_before_anything_is_opened(directory: Path) -> None:
    Path("map").write_text("x = 1")
    with (
        pytest.raises(MapError, match=r"the file: .* unknown field `x`"),
        listening(map="map", socket="s"),
    ):
        pass
    assert not os.path.exists("s")
