"""Datagrams from a socket, many at once or one by one: the same either way."""

import socket
from collections.abc import Callable, Iterator

import pytest

from countersink.statsd import sockets
from countersink.statsd.sockets import BATCH, Receive

Made = Callable[[socket.socket], Receive]


@pytest.fixture(params=["many", "one by one"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Made:
    if request.param == "many":
        assert sockets._recvmmsg is not None
    else:
        monkeypatch.setattr(sockets, "_recvmmsg", None)
    return sockets.receiver


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there,
    ):
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        here.bind(("127.0.0.1", 0))
        there.connect(here.getsockname())
        yield here, there


def test_each_datagram_whole_and_in_order(
    made: Made, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    sent = [b"%d" % number * (number % 7) for number in range(BATCH + 3)]
    for each in sent:
        there.send(each)
    found = made(here)
    first = [bytes(each) for each in found()]
    assert first == sent[:BATCH]
    # what was received stays as it was when more is received
    again = found()
    assert [bytes(each) for each in again] == sent[BATCH:]
    assert first == sent[:BATCH]
    assert list(found()) == []


def test_the_largest_and_the_empty_one(
    made: Made, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    found = made(here)
    for each in (b"x" * 65_507, b"", b"y"):
        there.send(each)
    assert [bytes(each) for each in found()] == [b"x" * 65_507, b"", b"y"]


def test_a_closed_socket_is_an_error(made: Made, pair: tuple[socket.socket, socket.socket]) -> None:
    here, _ = pair
    found = made(here)
    here.close()
    with pytest.raises(OSError):
        found()
