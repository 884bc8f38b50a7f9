"""A real nginx in front of a server: a private instance of Debian's package on a free port."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from countersink.cli.private_server import free_port
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

PROGRAM: Final = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
needs_nginx = pytest.mark.skipif(PROGRAM is None, reason="nginx is not installed here")
_CONFIGURATION: Final = """
daemon off;
master_process off;
error_log stderr;
pid {directory}/pid;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
{http}
}}
"""
ATTEMPTS: Final = 5
"""To find a port that nobody takes before nginx does."""


@contextmanager
def nginx(directory: Path, http: str) -> Iterator[str]:
    """Run nginx until the end of the block; its URL.

    Args:
        directory: an empty one of its own.
        http: what stands in the block ``http``; ``PORT`` stands for the port to listen at.
    """
    assert PROGRAM is not None
    for _ in range(ATTEMPTS):
        port = free_port()
        file = directory / "nginx.conf"
        said = http.replace("PORT", f"127.0.0.1:{port}")
        file.write_text(_CONFIGURATION.format(directory=directory, http=said))
        own = ["-p", str(directory), "-c", str(file), "-e", "stderr"]
        with Children() as children:
            child = children.start([PROGRAM, *own], name="nginx")
            if _begins(child, port):
                yield f"http://127.0.0.1:{port}"
                return
    raise AssertionError("nginx found no port")


def _begins(child: Child, port: int) -> bool:
    """Whether it listens there, rather than having ended since the port is taken."""
    eventually(lambda: not child.running or _listens(port))
    assert child.running or "Address already in use" in child.output(), child.output()
    return child.running


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
