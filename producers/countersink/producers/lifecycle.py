"""Forks and ends of the process, for all its producers.

Every end of the process that Python sees flushes every open producer: an exit by ``atexit``, and,
since children of ``multiprocessing`` skip that, by a finalizer of ``multiprocessing`` where that
module is in use; signals, see ``end_signals``; ``os._exit`` and the like, see ``exit_hooks``.
"""

import atexit
import encodings.idna  # noqa: F401  (see below)
import os
import sys

from countersink.producers import end_signals, exit_hooks
from countersink.producers.process_end import Closable, close_all, in_child, producers

_finalized = False


def register(producer: Closable, *, handle_sigterm: bool, handle_os_exit: bool) -> None:
    """Flush ``producer`` when the process ends, and empty it in forked children."""
    producers[id(producer)] = producer
    if handle_sigterm:
        end_signals.install()
        exit_hooks.install(exit_hooks.SIGNALS)
    if handle_os_exit:
        exit_hooks.install(exit_hooks.EXITS)


def forget(producer: Closable) -> None:
    """``producer`` is closed."""
    producers.pop(id(producer), None)
    if not producers:
        end_signals.uninstall()
        exit_hooks.uninstall()


def use_multiprocessing() -> None:
    """Have ``multiprocessing``, if it is in use, flush at the end of this process."""
    global _finalized
    # Not imported here: it is slow, and an app that does not use it has no children that skip
    # atexit.
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _finalized:
        _finalized = True
        util.Finalize(None, close_all, exitpriority=0)


def handle_signals_anew() -> None:
    """Flush at signals whose default action came back since a producer was made, as in children of
    servers and of job queues, which reset them; or that could not be had in the thread that made
    it.
    """
    end_signals.install_anew()


def _in_child() -> None:
    global _finalized
    _finalized = False  # a child of multiprocessing clears its finalizers
    end_signals.in_child()
    in_child()


atexit.register(close_all)
os.register_at_fork(after_in_child=_in_child)

# Why this module imports encodings.idna: looking up a host's name does so, the first time, in the
# sender's thread. A child forked at that moment could never look up a host's name again.
