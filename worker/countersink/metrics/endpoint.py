"""``/metrics``, ``/livez`` and ``/readyz`` of workers, schedulers and other processes without HTTP
of their own: statuses and texts, limits of time, size and connections, loopback only by default.

Whoever may connect may read: so it listens at loopback unless told otherwise, and says nothing of
what is counted. At loopback it answers to names of loopback alone: a page on the internet can make
its own name resolve to 127.0.0.1 (DNS rebinding), and then read here as if it were ours.
"""

import io
import ipaddress
import os
import socket
import threading
import time
import weakref
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

from countersink.metrics.exposition import render
from countersink.metrics.health import Health

WITHIN_S: Final = 5.0
"""Seconds in which a request's head must have arrived."""
MAX_HEAD: Final = 16_384
"""Bytes that it may have."""
AT_ONCE: Final = 32
"""Connections at once. For a further one the one makes room whose head has not come for longest;
where all are at work, it is closed."""
ASKING: Final = AT_ONCE // 2
"""Requests at once that may have to wait for other servers: there is room for ``/livez`` beside."""
TEXT: Final = "text/plain; charset=utf-8"
_END: Final = b"\r\n\r\n"


class Endpoint:
    """Serves until :meth:`close`; a context manager.

    Args:
        host: the address to listen at.
        port: 0 for any free one.
        health: what to tell.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, health: Health) -> None:
        self._server = _Server(host, port, health)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="metrics",
            daemon=True,
        )
        self._thread.start()
        _open.add(self._server)

    @property
    def url(self) -> str:
        """Of its root, without a slash at the end."""
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if self._server.address_family == socket.AF_INET6 else str(host)
        return f"http://{name}:{port}"

    def close(self) -> None:
        """Serve no more. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.health = health
        self.local = _is_loopback(host)
        self.asking = threading.BoundedSemaphore(ASKING)
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._silent: dict[socket.socket, None] = {}  # whose heads have not come, by age
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, if there is room for one more, or can be made."""
        if self._room.acquire(blocking=False) or (
            self._hang_up() and self._room.acquire(timeout=WITHIN_S)
        ):
            with self._lock:
                self._silent[request] = None
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread could be started
                self.heard(request)
                self._room.release()
                raise
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def heard(self, request: socket.socket) -> None:
        """Its head has come, or will not."""
        with self._lock:
            self._silent.pop(request, None)

    def _hang_up(self) -> bool:
        """End the connection that has been silent for longest; False where there is none."""
        with self._lock:
            longest = next(iter(self._silent), None)
            if longest is None:
                return False
            del self._silent[longest]
            try:
                longest.shutdown(socket.SHUT_RDWR)  # which its thread sees as the end
            except OSError:
                pass  # its client was faster
            return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that went away is no news."""

    server_bind = TCPServer.server_bind  # without the name look-up of HTTPServer: it may take long


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.0"  # one request per connection

    def handle(self) -> None:
        """Read the head within :data:`WITHIN_S`, however it drips, and answer."""
        try:
            head = _read_head(self.connection)
        finally:
            self.server.heard(self.connection)
        if head is None:
            return
        self.rfile = io.BufferedReader(io.BytesIO(head))
        self.handle_one_request()

    def do_GET(self) -> None:
        """Answer."""
        if self.server.local and not _is_ours(self.headers.get("Host")):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "ask for this by a name of loopback\n")
            return
        path = self.path.partition("?")[0]
        if path == "/livez":
            lives = self.server.health.lives()
            status = HTTPStatus.OK if lives else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, "ok\n" if lives else "stuck: its main loop does not move\n")
        elif path not in ("/metrics", "/readyz"):
            self._answer(HTTPStatus.NOT_FOUND, "there are /metrics, /livez and /readyz\n")
        elif self.server.asking.acquire(blocking=False):
            try:
                self._ask(path)
            finally:
                self.server.asking.release()
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many ask at once\n")

    do_HEAD = do_GET

    def _ask(self, path: str) -> None:
        health = self.server.health
        if path == "/metrics":
            try:
                body, media_type = render(health.everything(), self.headers.get("Accept", ""))
            except Exception:  # whatever it is, the process goes on, and the scrape has failed
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "the figures cannot be had\n")
                return
            self._answer(HTTPStatus.OK, body, media_type)
        else:
            why = health.unready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
            self._answer(status, f"not ready: {why}\n" if why else "ok\n")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses: in one line, quoting nothing of the request."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self._answer(code, f"{HTTPStatus(code).phrase}\n")

    def version_string(self) -> str:
        """For the Server header."""
        return "countersink"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def _answer(self, status: int, body: str | bytes, media_type: str = TEXT) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.request_version = self.protocol_version  # else to HTTP/0.9 there goes no head
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_ours(host: str | None) -> bool:
    """Whether a request with this Host header, or without one, can have meant loopback."""
    if host is None:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return _is_loopback(name.rstrip("."))


def _read_head(connection: socket.socket) -> bytes | None:
    """The head of the request; None if it did not arrive, or is too large."""
    deadline = time.monotonic() + WITHIN_S
    head = b""
    while _END not in head:
        left = deadline - time.monotonic()
        if left <= 0 or len(head) > MAX_HEAD:
            return None
        connection.settimeout(left)
        try:
            got = connection.recv(4096)
        except OSError:
            return None
        if not got:
            return None
        head += got
    connection.settimeout(WITHIN_S)
    return head


_open: "weakref.WeakSet[_Server]" = weakref.WeakSet()


def _close_in_child() -> None:
    """In a forked child, such as one that does a job: else it would hold the port, for as long as
    it lives, against a process that takes the place of its killed parent."""
    for server in list(_open):
        server.socket.close()


os.register_at_fork(after_in_child=_close_in_child)
