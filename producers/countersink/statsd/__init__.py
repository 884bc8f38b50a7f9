"""The StatsD listener (``Server``): it receives counters from StatsD clients and passes them to a
producer, which treats them like increments of an application.

``Server`` opens UDP, TCP and unix sockets, sets their receive buffers, starts and ends the threads
that read them, reloads the map, and asks the kernel how many datagrams it dropped
(``dropped_datagrams``). StatsD has no acknowledgement: if the kernel or the network drops a
datagram, it is lost, and its sender does not know.
"""

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Final

from countersink.runtime.process import Closable
from countersink.statsd.errors import CannotListen, MapError, NotLoopback
from countersink.statsd.options import DRAIN_SECONDS, Address, Rules, StatsdOptions, addresses, load
from countersink.statsd.sockets import Datagrams, Streams
from countersink.statsd.tally import CountingProducer, Figures, StatsdAction, StatsdTally

__all__ = ["CannotListen", "Figures", "MapError", "NotLoopback", "Server", "StatsdOptions"]

JOIN_SECONDS: Final = 2.0
"""Seconds that the end of the listener waits for a thread, after the thread's own time limit."""
BACKLOG: Final = 128

_RCVBUFFORCE: Final = 33  # socket(7); Python lacks this constant and the next
_MEMINFO: Final = 55
_MEMINFO_FIELDS: Final = struct.Struct("=9I")  # include/uapi/linux/sock_diag.h, SK_MEMINFO_*
_DROPS: Final = 8
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Server(Closable):
    """A StatsD listener. It listens from its construction until :meth:`close`, and is a context
    manager.

    Args:
        options: the settings.
        producer: gets the increments. The caller closes it after the server.

    Raises:
        MapError: the map's file cannot be read, or its content is invalid.
        NotLoopback: an address for UDP or TCP is not loopback, and ``anyone`` is not set.
        CannotListen: a socket cannot be opened, or the name ``host`` is unknown.

    Attributes:
        log: the listener's log.
        listening: the URLs of the sockets: ``udp://127.0.0.1:8125``, ``tcp://…``,
            ``unixgram:///path``, ``unix:///path``.
    """

    def __init__(self, options: StatsdOptions, producer: CountingProducer) -> None:
        self._options = options
        self._tally = StatsdTally(producer, self._rules(), options)
        self.log = self._tally.log
        self._lost_before = 0
        self._datagrams: list[socket.socket] = []
        self._streams: list[socket.socket] = []
        self._threads: list[Thread] = []
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._widen()
            self._wake, self._stop = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, self._wake)
            self._threads += [Datagrams(each, self._tally, self._wake) for each in self._datagrams]
            if self._streams:
                streams = Streams(self._streams, self._tally, options, self._wake)
                self._threads.append(streams)
            for thread in self._threads:
                thread.start()
            self._close_sockets = stack.pop_all()
        self.listening = tuple(socket_url(each) for each in (*self._datagrams, *self._streams))
        self.log(StatsdAction.LISTENING, "listening", at=" ".join(self.listening))

    @property
    def figures(self) -> Figures:
        """The listener's figures. Every access returns the same object, whose numbers change while
        the listener runs. ``lost`` is the exception: only an access sets it.
        """
        figures = self._tally.figures
        figures.lost = self._lost_before + sum(map(dropped_datagrams, self._datagrams))
        return figures

    def reload(self) -> bool:
        """Read the map again (SIGHUP), use it, and return True. If its file cannot be read or is
        invalid, log that, keep the previous map, and return False. Without a map, return True.
        """
        try:
            rules = self._rules()
        except MapError as error:
            self.log(
                StatsdAction.MAP,
                f"the previous map stays in use: {error}",
                level=logging.ERROR,
            )
            return False
        self._tally.use(rules)
        self.log(StatsdAction.MAP, "the map was read again", rules=len(rules.rules))
        return True

    def close(self) -> None:
        """Stop listening. Lines that have arrived are still counted, as many as can be read within
        :data:`DRAIN_SECONDS`. A second call does nothing.
        """
        if self._stop < 0:
            return
        os.close(self._stop)  # its other end becomes readable for all threads
        self._stop = -1
        for thread in self._threads:
            thread.join(DRAIN_SECONDS + JOIN_SECONDS)
        self._lost_before = self.figures.lost
        self._datagrams = []
        self._close_sockets.close()

    # --- opening -----------------------------------------------------------------------------

    def _rules(self) -> Rules:
        return load(Path(self._options.map)) if self._options.map else Rules()

    def _open(self, stack: contextlib.ExitStack) -> None:
        options = self._options
        try:
            found = addresses(options)
        except OSError as error:
            raise CannotListen(f"host {options.host}: {error.strerror}") from error
        # TCP first: with port 0, a port that is free for TCP is more likely free for UDP, too.
        kinds = [socket.SOCK_STREAM] * options.tcp + [socket.SOCK_DGRAM] * options.udp
        for opened in network_sockets(stack, found, options.port, kinds):
            (self._datagrams if opened.type == socket.SOCK_DGRAM else self._streams).append(opened)
        for path, kind, into in (
            (options.socket, socket.SOCK_DGRAM, self._datagrams),
            (options.stream_socket, socket.SOCK_STREAM, self._streams),
        ):
            if path:
                into.append(stack.enter_context(unix_socket(path, kind, options.socket_mode)))

    def _widen(self) -> None:
        wanted = self._options.receive_buffer
        granted = [set_receive_buffer(each, wanted) for each in self._datagrams]
        self._tally.figures.receive_buffer = min(granted, default=0)
        if granted and min(granted) < wanted:
            self.log(
                StatsdAction.SMALL_BUFFER,
                "the kernel granted a smaller receive buffer than requested, so bursts may be lost:"
                f" run sysctl -w net.core.rmem_max={wanted} and restart",
                level=logging.WARNING,
                asked=wanted,
                granted=min(granted),
            )


def network_sockets(
    stack: contextlib.ExitStack, found: list[Address], port: int, kinds: list[socket.SocketKind]
) -> list[socket.socket]:
    """Return UDP and TCP sockets at one port of several addresses. Addresses that this machine does
    not have are skipped; if it has none of them, that is an error.

    Args:
        stack: the stack that closes the sockets.
        found: the addresses.
        port: the port; 0 for a port that is free for the first socket; the others use it, too.
        kinds: the kinds of sockets to open at each address.

    Raises:
        CannotListen: a socket cannot be opened.
    """
    opened: list[socket.socket] = []
    absent = 0
    for (family, address), kind in product(found, kinds):
        try:
            bound = stack.enter_context(socket.socket(family, kind))
            if kind == socket.SOCK_STREAM:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and address != "::":
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((address, port))
            if kind == socket.SOCK_STREAM:
                bound.listen(BACKLOG)
        except OSError as error:
            absent += 1
            if error.errno in _NOT_HERE and absent < len(found) * len(kinds):
                continue
            raise CannotListen(
                f"cannot listen at port {port}: {error.strerror}; is another StatsD server running?"
            ) from error
        opened.append(bound)
        port = bound.getsockname()[1]
    return opened


@contextlib.contextmanager
def unix_socket(path: str, kind: socket.SocketKind, mode: int) -> Iterator[socket.socket]:
    """Open a unix socket at ``path`` for the block. The end of the block closes it and removes its
    file. If a killed listener left a socket file at ``path``, and no process listens there, the
    file is replaced.

    Args:
        path: the path of the socket file.
        kind: datagram or stream.
        mode: the permissions of the file.

    Raises:
        CannotListen: the socket cannot be opened, for example because another program listens at
            ``path``, or because the file there is no socket.
    """
    with contextlib.ExitStack() as stack:
        try:
            _remove_left_over(path, kind)
            opened = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            opened.bind(path)
            stack.callback(Path(path).unlink, missing_ok=True)
            os.chmod(path, mode)  # until here the umask keeps other users from writing to it
            if kind == socket.SOCK_STREAM:
                opened.listen(BACKLOG)
        except OSError as error:
            raise CannotListen(f"{path}: {error.strerror or error}") from error
        yield opened


def _remove_left_over(path: str, kind: socket.SocketKind) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} exists and is no socket: remove it, or name another path")
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            if error.errno not in (errno.EPROTOTYPE, errno.EAGAIN):
                raise
    raise CannotListen(f"{path}: another program listens there")


def set_receive_buffer(opened: socket.socket, wanted: int) -> int:
    """Request a receive buffer of ``wanted`` bytes; return the bytes that the kernel granted. A
    process with CAP_NET_ADMIN gets any size, others at most ``net.core.rmem_max``.
    """
    try:
        opened.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, wanted)
    except OSError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
    # Linux doubles the value for its own bookkeeping, and returns the doubled one.
    return opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def dropped_datagrams(opened: socket.socket) -> int:
    """Return how many datagrams the kernel dropped since the socket was opened, because its receive
    buffer was full; return 0 if the kernel does not tell.
    """
    try:
        raw = opened.getsockopt(socket.SOL_SOCKET, _MEMINFO, _MEMINFO_FIELDS.size)
        return int(_MEMINFO_FIELDS.unpack(raw)[_DROPS])
    except (OSError, struct.error):
        return 0  # not Linux, or Linux before 4.12


def socket_url(opened: socket.socket) -> str:
    """Return the URL of a listening socket, in a form of :attr:`Server.listening`."""
    stream = opened.type == socket.SOCK_STREAM
    name = opened.getsockname()
    if opened.family == socket.AF_UNIX:
        return f"{'unix' if stream else 'unixgram'}://{name}"
    host = f"[{name[0]}]" if opened.family == socket.AF_INET6 else name[0]
    return f"{'tcp' if stream else 'udp'}://{host}:{name[1]}"
