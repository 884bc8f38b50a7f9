"""Serves a WSGI app by eventlet: `python -m tests.processes.eventlet_server MODULE:APP PORT`."""

import sys
from importlib import import_module

import eventlet
import eventlet.wsgi

if __name__ == "__main__":
    eventlet.monkey_patch()
    module, _, name = sys.argv[1].partition(":")
    app = getattr(import_module(module), name)
    listener = eventlet.listen(("127.0.0.1", int(sys.argv[2])))
    eventlet.wsgi.server(listener, app, log_output=False)
