"""Opening the sockets of a listener."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from typing import Final

from countersink.producers.statsd.options import Address

BACKLOG: Final = 128
ATTEMPTS: Final = 20
"""To find a port that is free for UDP and TCP."""

_RCVBUFFORCE: Final = 33  # socket(7); Python has no name for these two
_MEMINFO: Final = 55
_MEMINFO_FIELDS: Final = struct.Struct("=9I")  # include/uapi/linux/sock_diag.h, SK_MEMINFO_*
_DROPS: Final = 8
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class CannotListen(Exception):
    """A socket cannot be opened; the message says which, why and what to do."""


class NetworkSockets:
    """UDP and TCP sockets at one port of some addresses.

    Args:
        found: the addresses; those of a kind that this machine lacks are left out, if others work.
        port: 0 for any that is free for all.

    Raises:
        CannotListen: one cannot be opened.
    """

    def __init__(self, found: list[Address], port: int, *, udp: bool, tcp: bool) -> None:
        self.udp: list[socket.socket] = []
        self.tcp: list[socket.socket] = []
        kinds = [socket.SOCK_DGRAM] * udp + [socket.SOCK_STREAM] * tcp
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._open(found, port, kinds)
            except OSError as error:
                self.close()
                if port == 0 and error.errno == errno.EADDRINUSE and attempt < ATTEMPTS:
                    continue
                raise CannotListen(
                    f"cannot listen at port {port}: {error.strerror}; is another StatsD running?"
                ) from error
            return

    def _open(self, found: list[Address], port: int, kinds: list[socket.SocketKind]) -> None:
        absent: OSError | None = None
        for family, address in found:
            for kind in kinds:
                try:
                    opened = _bound(family, address, port, kind)
                except OSError as error:
                    if error.errno not in _NOT_HERE:
                        raise
                    absent = error
                    continue
                (self.udp if kind == socket.SOCK_DGRAM else self.tcp).append(opened)
                port = opened.getsockname()[1]
        if absent is not None and not (self.udp or self.tcp):
            raise absent

    def close(self) -> None:
        """Close them."""
        for opened in (*self.udp, *self.tcp):
            opened.close()
        self.udp.clear()
        self.tcp.clear()


def _bound(
    family: socket.AddressFamily, address: str, port: int, kind: socket.SocketKind
) -> socket.socket:
    opened = socket.socket(family, kind)
    try:
        if kind == socket.SOCK_STREAM:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and address != "::":
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind((address, port))
        if kind == socket.SOCK_STREAM:
            opened.listen(BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened


@contextlib.contextmanager
def unix_socket(path: str, kind: socket.SocketKind, mode: int) -> Iterator[socket.socket]:
    """A unix socket at ``path``, which is removed afterwards.

    A lock on ``<path>.lock`` says whether another listener has it: so what one that was killed has
    left is replaced, and a living one's socket never is.

    Raises:
        CannotListen: it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_left_over(path, kind)
            opened = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            opened.bind(path)
            stack.callback(_unlink, path)
            os.chmod(path, mode)  # until here nobody else may write to it: the umask says so
            if kind == socket.SOCK_STREAM:
                opened.listen(BACKLOG)
        except BlockingIOError:
            raise CannotListen(f"{path}: another countersink statsd listens there") from None
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


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


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
