"""Datagrams from a socket, many at once."""

import socket
from collections.abc import Iterator

import pytest

from countersink.statsd.sockets import BATCH, Receiver


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


def test_each_datagram_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    sent = [b"%d" % number * (number % 7) for number in range(BATCH + 3)]
    for each in sent:
        there.send(each)
    found = Receiver(here).receive
    first = [bytes(each) for each in found()]
    assert first == sent[:BATCH]
    # what was received stays as it was when more is received
    again = found()
    assert [bytes(each) for each in again] == sent[BATCH:]
    assert first == sent[:BATCH]
    assert list(found()) == []


def test_a_closed_socket_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    here, _ = pair
    found = Receiver(here).receive
    here.close()
    with pytest.raises(OSError):
        found()
