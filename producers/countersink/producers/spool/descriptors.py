"""Open segment files, none of which may stay open in a forked child.

A ``flock`` belongs to the open file, which a child shares: as long as a child keeps it open, the
lock of a dead parent would go on, and nobody could replay its segment.
"""

import os

from countersink.producers.primitives import RLock

_lock = RLock()  # held over a fork, so that no file is open and not yet noted here
_open: dict[object, int] = {}


def open_file(token: object, path: str, flags: int) -> int:
    """Open ``path`` for this process alone.

    Raises:
        OSError: from ``open(2)``.
    """
    with _lock:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        _open[token] = fd
        return fd


def close_file(token: object) -> None:
    """Close what was opened for ``token``, unless this is a child, which has closed it."""
    with _lock:
        fd = _open.pop(token, None)
        if fd is not None:
            os.close(fd)  # inside the lock: a fork in between would leave it open in the child


def _in_child() -> None:
    global _lock
    _lock = RLock()
    for fd in _open.values():
        os.close(fd)
    _open.clear()


def _before() -> None:
    _lock.acquire()


def _in_parent() -> None:
    _lock.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
