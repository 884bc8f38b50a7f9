"""The StatsD listener: opens UDP, TCP and unix sockets with the errors if one is taken, sets
receive buffers, counts the datagrams that the kernel dropped (``lost``), reads the map again, and
ends the threads."""

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
from typing import Final, Self

from countersink.statsd.errors import CannotListen, MapError
from countersink.statsd.options import DRAIN_SECONDS, Address, Rules, StatsdOptions, addresses, load
from countersink.statsd.sockets import Datagrams, Streams
from countersink.statsd.tally import CountingProducer, Figures, StatsdAction, StatsdTally

JOIN_SECONDS: Final = 2.0
"""How long the end of a thread is waited for."""
BACKLOG: Final = 128

_RCVBUFFORCE: Final = 33  # socket(7); Python has no name for these two
_MEMINFO: Final = 55
_MEMINFO_FIELDS: Final = struct.Struct("=9I")  # include/uapi/linux/sock_diag.h, SK_MEMINFO_*
_DROPS: Final = 8
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Server:
    """Listens from its making on, until closed; a context manager.

    Args:
        options: what it was told.
        producer: where increments go; its owner closes it, after this.

    Raises:
        MapError: the map cannot be used.
        NotLoopback: see :func:`countersink.statsd.options.addresses`.
        CannotListen: a socket cannot be opened.

    Attributes:
        log: its log.
        listening: where, as ``udp://127.0.0.1:8125``, ``tcp://…``, ``unixgram:///path``,
            ``unix:///path``.
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
        self.listening = tuple(shown(each) for each in (*self._datagrams, *self._streams))
        self.log(StatsdAction.LISTENING, "listening", at=" ".join(self.listening))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def figures(self) -> Figures:
        """The figures now; the same object each time."""
        figures = self._tally.figures
        figures.lost = self._lost_before + sum(map(lost, self._datagrams))
        return figures

    def reload(self) -> bool:
        """Read the map again; whether it is in use now. One that is wrong is not: the log says
        why.
        """
        try:
            rules = self._rules()
        except MapError as error:
            self.log(
                StatsdAction.MAP,
                f"the map stays as it was before: {error}",
                level=logging.ERROR,
            )
            return False
        self._tally.use(rules)
        self.log(StatsdAction.MAP, "the map was read again", rules=len(rules.rules))
        return True

    def close(self) -> None:
        """Count what has arrived by now, and stop listening. Idempotent."""
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
        # TCP first: of the two, its ports are those that others take, if any is to be free.
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
        granted = [widen(each, wanted) for each in self._datagrams]
        self._tally.figures.receive_buffer = min(granted, default=0)
        if granted and min(granted) < wanted:
            self.log(
                StatsdAction.SMALL_BUFFER,
                "the kernel grants a smaller receive buffer than was asked for: bursts may be lost;"
                f" sysctl -w net.core.rmem_max={wanted} lets it be as large",
                level=logging.WARNING,
                asked=wanted,
                granted=min(granted),
            )


def network_sockets(
    stack: contextlib.ExitStack, found: list[Address], port: int, kinds: list[socket.SocketKind]
) -> list[socket.socket]:
    """UDP and TCP sockets at one port of some addresses; those of a kind that this machine lacks
    are left out, if others work.

    Args:
        stack: closes them.
        found: the addresses.
        port: 0 for any that is free for the first.
        kinds: of sockets, at each address.

    Raises:
        CannotListen: one cannot be opened.
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
                f"cannot listen at port {port}: {error.strerror}; is another StatsD running?"
            ) from error
        opened.append(bound)
        port = bound.getsockname()[1]
    return opened


@contextlib.contextmanager
def unix_socket(path: str, kind: socket.SocketKind, mode: int) -> Iterator[socket.socket]:
    """A unix socket at ``path``, which is removed afterwards. What a listener that was killed has
    left is replaced: nobody listens there.

    Raises:
        CannotListen: it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        try:
            _remove_left_over(path, kind)
            opened = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            opened.bind(path)
            stack.callback(Path(path).unlink, missing_ok=True)
            os.chmod(path, mode)  # until here nobody else may write to it: the umask says so
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
        raise CannotListen(f"{path} is there and no socket: remove it, or name another path")
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


def widen(opened: socket.socket, wanted: int) -> int:
    """Ask for a receive buffer of ``wanted`` bytes; how many the kernel has granted.

    Root gets what it asks for, others at most ``net.core.rmem_max``.
    """
    try:
        opened.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, wanted)
    except OSError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
    # Linux doubles what was set, for its own bookkeeping, and tells the double.
    return opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def lost(opened: socket.socket) -> int:
    """Datagrams that the kernel has dropped for want of room; 0 where it does not tell."""
    try:
        said = opened.getsockopt(socket.SOL_SOCKET, _MEMINFO, _MEMINFO_FIELDS.size)
        return int(_MEMINFO_FIELDS.unpack(said)[_DROPS])
    except (OSError, struct.error):
        return 0  # another system than Linux, or one before 4.12


def shown(opened: socket.socket) -> str:
    """Where it listens, as a URL."""
    stream = opened.type == socket.SOCK_STREAM
    name = opened.getsockname()
    if opened.family == socket.AF_UNIX:
        return f"{'unix' if stream else 'unixgram'}://{name}"
    host = f"[{name[0]}]" if opened.family == socket.AF_INET6 else name[0]
    return f"{'tcp' if stream else 'udp'}://{host}:{name[1]}"
