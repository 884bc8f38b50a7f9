"""Forks a process for each script that it is sent, until its socket is closed (``forkserver``)."""

import builtins
import ctypes
import gc
import json
import os
import signal
import socket
import sys

import countersink.producers
import countersink.producers.spool  # noqa: F401

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def process_told() -> str:
    """The script of the next request, in a process of its own whose end is told by another one."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not message:
            sys.exit()
        if not os.fork():
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    output, told = descriptors
    prctl = ctypes.CDLL(None).prctl
    prctl(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        os.write(told, b"%d\n" % child)
        os.write(told, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    prctl(DIE_WITH_PARENT, signal.SIGKILL)
    os.close(told)
    os.setsid()
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    request = json.loads(message)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]
    return str(request["script"])


def run(script: str) -> None:
    """Run it in place of this module."""
    names, fresh = globals(), {"__name__": "__main__", "__builtins__": builtins}
    names.clear()
    names.update(fresh)
    exec(compile(script, "<script>", "exec"), names)


signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
gc.freeze()
run(process_told())
