"""Serves an application on a free port.

`python -m tests.producers.middleware.run_example FILE APP`:

FILE is a program of docs/examples, APP the name of the application in it, which is
served by uvicorn if it speaks ASGI, else by wsgiref. It prints its port, and
ends on SIGTERM as any process does: what the producer then stores, it stores by itself.
"""

import asyncio
import importlib
import importlib.util
import socket
import sys
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server


class Silent(WSGIRequestHandler):
    """No line for each request."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main() -> None:
    """Serve until SIGTERM."""
    path, name = Path(sys.argv[1]), sys.argv[2]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Django looks its URLs up by the module's name
    spec.loader.exec_module(module)
    app = getattr(module, name)
    if asyncio.iscoroutinefunction(type(app).__call__):
        uvicorn = importlib.import_module("uvicorn")  # late: the other servers need not wait for it
        with socket.create_server(("127.0.0.1", 0)) as listener:
            print(listener.getsockname()[1], flush=True)
            config = uvicorn.Config(app, log_level="warning", lifespan="off")
            uvicorn.Server(config).run(sockets=[listener])
    else:
        with make_server("127.0.0.1", 0, app, handler_class=Silent) as server:
            print(server.server_port, flush=True)
            server.serve_forever()


if __name__ == "__main__":
    main()
