"""StatsD datagrams over UDP and unix sockets: how many are received per call, and how one that is
too large is cut.

Most of what a datagram costs in Python is the call that receives it, and that it hands the
interpreter lock to another thread and waits for it. Linux takes many at once with recvmmsg(2), for
which Python has no function: so it is called by way of ctypes, and where there is none, datagrams
are received one by one.
"""

import ctypes
import errno
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Final

from countersink.producers.statsd.options import DRAIN_SECONDS
from countersink.producers.statsd.tally import DELIVER_SECONDS, StatsdAction, StatsdTally

BATCH: Final = 128
"""Datagrams by one call."""
LARGEST: Final = 65_536
"""Bytes of a datagram: of UDP none is as large; those of unix sockets may be, and are cut."""
PAUSE_SECONDS: Final = 0.1
"""Before a socket that failed is tried again."""

_WORD: Final = 4

Receive = Callable[[], Sequence[bytes | bytearray]]
"""Gives at most ``BATCH`` datagrams that are there; fewer: there are no more. Does not wait. Raises
``OSError`` where the socket failed."""


class Datagrams(Thread):
    """Reads one socket until told to stop, and then what has arrived by then.

    While there are more to be received, the kernel is not asked to wait.

    Args:
        opened: the socket, blocking.
        tally: what counts.
        stop: a descriptor that becomes readable when it is time to stop.
    """

    def __init__(self, opened: socket.socket, tally: StatsdTally, stop: int) -> None:
        super().__init__(name="statsd-datagrams", daemon=True)
        self._socket = opened
        self._receiver = receiver(opened)
        self._may_cut = opened.family == socket.AF_UNIX
        self._tally = tally
        self._stop_fd = stop

    def run(self) -> None:
        """Receive and count."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stop_fd, select.POLLIN)
        until: float | None = None
        more = waiting = False
        while True:
            ready = poll.poll(0 if more else DELIVER_SECONDS * 1000 if waiting else None)
            if until is None and any(each == self._stop_fd for each, _ in ready):
                until = time.monotonic() + DRAIN_SECONDS
            packets = self._receive()
            more = len(packets) == BATCH
            try:
                # Also when there are none: what came before may have waited long enough.
                waiting = self._tally.packets(packets)
                if until is not None and (not more or time.monotonic() >= until):
                    self._tally.deliver()
                    return
            except Exception as error:
                self._tally.failed(error)

    def _receive(self) -> Sequence[bytes | bytearray]:
        """What is there, one batch at most."""
        try:
            packets = self._receiver()
        except OSError as error:
            self._tally.log.seldom(StatsdAction.FAILED, f"cannot receive: {error.strerror}")
            select.select([self._stop_fd], [], [], PAUSE_SECONDS)
            return ()
        return [self._whole(each) for each in packets] if self._may_cut else packets

    def _whole(self, packet: bytes | bytearray) -> bytes | bytearray:
        """``packet`` without its last line, where it was too large and that one is cut."""
        if len(packet) < LARGEST:
            return packet
        lines, _, cut = packet.rpartition(b"\n")
        self._tally.too_long(bytes(cut))
        return lines


def receiver(opened: socket.socket) -> Receive:
    """The best there is for a socket."""
    return partial(_one_by_one, opened) if _recvmmsg is None else _Many(opened, _recvmmsg)


def _one_by_one(opened: socket.socket) -> list[bytes]:
    """A call for each datagram: see :data:`Receive`."""
    found: list[bytes] = []
    try:
        for _ in range(BATCH):
            found.append(opened.recv(LARGEST, socket.MSG_DONTWAIT))
    except BlockingIOError:
        pass
    except OSError:
        if not found:  # else it comes again by the next call
            raise
    return found


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """struct msghdr: recvmsg(2)."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(_Iovec)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """struct mmsghdr: recvmmsg(2)."""

    _fields_ = (("header", _Header), ("received", ctypes.c_uint32))


class _Many:
    """One call for up to ``BATCH`` datagrams, each into its own part of one buffer.

    8 MiB of addresses; of memory only what datagrams fill, in pages.
    """

    def __init__(self, opened: socket.socket, recvmmsg: Callable[..., int]) -> None:
        self._socket = opened
        self._recvmmsg = recvmmsg
        self._buffer = bytearray(BATCH * LARGEST)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._starts = range(0, BATCH * LARGEST, LARGEST)
        self._vectors = (_Iovec * BATCH)(*[_Iovec(base + start, LARGEST) for start in self._starts])
        self._messages = (_Message * BATCH)()
        for message, vector in zip(self._messages, self._vectors, strict=True):
            message.header.vectors = ctypes.pointer(vector)
            message.header.vector_count = 1
        # The lengths lie in the array of messages at equal distances: one slice gets them all.
        words = memoryview(self._messages).cast("B").cast("I")
        step = ctypes.sizeof(_Message) // _WORD
        self._lengths = words[_Message.received.offset // _WORD :: step]

    def __call__(self) -> list[bytearray]:
        """See :data:`Receive`."""
        fd = self._socket.fileno()
        count = self._recvmmsg(fd, self._messages, BATCH, socket.MSG_DONTWAIT, None)
        if count < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                return []
            raise OSError(number, os.strerror(number))
        buffer = self._buffer
        lengths = self._lengths[:count].tolist()
        return [
            buffer[start : start + length]
            for start, length in zip(self._starts, lengths, strict=False)
        ]


def _find() -> "ctypes._NamedFuncPointer | None":
    if not sys.platform.startswith("linux"):
        return None
    try:
        found = ctypes.CDLL(None, use_errno=True).recvmmsg
    except (OSError, AttributeError):
        return None
    found.argtypes = (
        ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p,
    )  # fmt: skip
    found.restype = ctypes.c_int
    return found


_recvmmsg = _find()
