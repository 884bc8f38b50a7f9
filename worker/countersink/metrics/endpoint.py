"""``/metrics``, ``/livez`` and ``/readyz`` of workers, schedulers and other processes without HTTP
of their own: statuses and texts, limits of time, size and connections, loopback only by default.
Metrics as text in Prometheus' format or OpenMetrics, by the Accept header, and the values of those
about the whole installation and a producer (a process's own: in its command); names and helps are
in ``table.py``.

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
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from countersink.metrics.health import Health
from countersink.metrics.table import METRICS, RUN_STATES, WORKER_STATES, Sample, Samples
from countersink.producers.errors import SpoolError
from countersink.producers.producer import Producer
from countersink.producers.spool.directory import used_bytes

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
_OF_THE_PROCESS: Final = (ProcessCollector(registry=None), PlatformCollector(registry=None))
"""``process_…`` (CPU, memory, descriptors, start) and ``python_info``."""


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


class _Given(Collector):
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        yield from families(self._samples)


def render(samples: Samples, accept: str) -> tuple[bytes, str]:
    """The samples, and those of the process itself.

    Args:
        samples: in any order; each named in the table.
        accept: the request's ``Accept`` header.

    Returns:
        The text, and its media type.

    Raises:
        KeyError: a sample's name is not in the table, or one of its labels is missing.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in (_Given(samples), *_OF_THE_PROCESS):
        registry.register(collector)
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


def families(samples: Samples) -> list[Metric]:
    """The samples grouped by metric, in the order of the table.

    Raises:
        KeyError: as :func:`render`.
    """
    found: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for sample in samples:
        found[sample.name].append(sample)
    return [_family(name, some) for name, some in found.items() if some]


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    metric = METRICS[name]
    if metric.kind == "summary":
        summary = SummaryMetricFamily(name, metric.help, labels=metric.labels)
        for one in samples:
            summary.add_metric(_values(metric.labels, one), one.observations, one.value)
        return summary
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, metric.help, labels=metric.labels)
    for one in samples:
        family.add_metric(_values(metric.labels, one), one.value)
    return family


def _values(labels: tuple[str, ...], sample: Sample) -> list[str]:
    return [sample.labels[label] for label in labels]


def installation_samples(document: Mapping[str, Any]) -> Samples:
    """The samples of the document of ``countersink info``.

    What it says is not known has none, instead of a wrong 0.
    """
    yield Sample("countersink_looked_timestamp_seconds", _seconds(document["at"]))
    yield Sample("countersink_queue_entries", document["backlog"])
    yield Sample("countersink_queue_pending_entries", document["pending"])
    yield Sample("countersink_queue_oldest_age_seconds", document["lag_ms"] / 1000)
    sizes = [stream["bytes"] for stream in document["streams"] if stream["bytes"] is not None]
    yield Sample("countersink_queue_bytes", sum(sizes))
    yield Sample("countersink_queue_nodes_away", len(document["away"]))
    if document["workers"] or not document["away"]:
        states = Counter(str(worker.get("state")) for worker in document["workers"])
        for state in WORKER_STATES:
            yield Sample("countersink_workers", states[state], {"state": state})
    for reason, rows in (document["dead_by_reason"] or {}).items():
        yield Sample("countersink_dead_rows", rows, {"reason": reason})
    for reason, rows in (document["dead_not_kept"] or {}).items():
        yield Sample("countersink_dead_rows_not_kept", rows, {"reason": reason})
    if document["overflown"] is not None:
        yield Sample("countersink_overflown", document["overflown"]["amount"])
        yield Sample("countersink_overflown_counters", document["overflown"]["counters"])
    if document["lost"] is not None:
        yield Sample("countersink_entries_lost_total", document["lost"]["entries"])
    if document["schedules"]["unknown"] is None:
        yield from _schedules(document["schedules"])


def _schedules(found: Mapping[str, Any]) -> Samples:
    yield Sample("countersink_schedulers_planning", float(found["planning"]))
    yield Sample("countersink_job_overdue_runs", len(found["overdue"]))
    for one in found["failing"]:
        yield Sample("countersink_job_failures_in_a_row", one["times"], {"job_name": one["job"]})
    for job, tally in found["jobs"].items():
        if tally["last_success"] is not None:
            yield Sample(
                "countersink_job_last_success_timestamp_seconds",
                _seconds(tally["last_success"]),
                {"job_name": job},
            )
        for state in RUN_STATES:
            runs = tally["runs"].get(state, 0)
            yield Sample("countersink_job_runs", runs, {"job_name": job, "state": state})


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def producer_samples(producer: Producer) -> Samples:
    """The samples of its stats, and of the directory of its spool if it has one."""
    stats = producer.stats()
    for name in ("accepted", "stored", "resent", "spooled", "replayed", "dropped"):
        yield Sample(f"countersink_producer_increments_{name}_total", getattr(stats, name))
    yield Sample("countersink_producer_pending_rows", stats.pending_rows)
    yield Sample("countersink_producer_connected", float(stats.connected))
    if producer.spool is not None:
        try:
            size = used_bytes(Path(producer.spool))
        except SpoolError:
            return  # not known: the producer itself says what ails the directory
        yield Sample("countersink_producer_spool_bytes", size)
