"""Prometheus metrics of all processes: ``Endpoint`` serves ``/metrics``, ``/livez`` and ``/readyz``
over HTTP, for processes without a web server; ``render`` writes metrics as Prometheus or
OpenMetrics text; further functions return the samples of the installation and of a producer.

One table (:mod:`~countersink.metrics.table`) defines all metrics of ours; ``process_…`` and
``python_info`` come from prometheus_client. A process collects the values only when its metrics are
requested. So metrics cost nearly nothing while increments are counted.

The endpoint asks for no key: commands let it listen at loopback by default, and no metric names a
counter or a key. At loopback it refuses any Host header that is neither a name nor an address of
loopback. Otherwise a page on the internet could make its own name resolve to 127.0.0.1 (DNS
rebinding), and its scripts could read the answers.
"""

import os
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final

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
from countersink.metrics.table import METRICS, RUN_STATES, WORKER_STATES, Kind, Sample, Samples
from countersink.producers.errors import SpoolError
from countersink.producers.producer import Producer
from countersink.producers.spool.replay import used_bytes
from countersink.runtime.process import Closable, header_host, is_loopback

SILENT_S: Final = 5.0
"""Seconds after which a connection is closed if it has sent and received nothing."""
HEAD_S: Final = 10.0
"""Seconds within which a request must arrive as a whole."""
MAX_CONNECTIONS: Final = 32
"""Connections that are answered at the same time. A further one waits until one of them ends; it is
closed if none ends within :data:`SILENT_S`."""
TEXT: Final = "text/plain; charset=utf-8"
_PROCESS_COLLECTORS: Final = (ProcessCollector(registry=None), PlatformCollector(registry=None))
"""Collectors of ``process_…`` (CPU, memory, descriptors, start) and ``python_info``."""
_Family = CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily
_FAMILIES: Final[Mapping[Kind, Callable[..., _Family]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "summary": SummaryMetricFamily,
}


class Endpoint(Closable):
    """An HTTP endpoint that serves in a thread until :meth:`close` is called. As a context
    manager, it is closed at the end of the block.

    Args:
        host: the address to listen at.
        port: the TCP port; 0 for any free one.
        health: tells the health of the process, and yields the samples for ``/metrics``.

    Raises:
        OSError: the address is not available.
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
        _open_servers.add(self._server)

    @property
    def url(self) -> str:
        """The endpoint's URL, without a path."""
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if self._server.address_family == socket.AF_INET6 else str(host)
        return f"http://{name}:{port}"

    def close(self) -> None:
        """Stop serving. Further calls do nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, port: int, health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.health = health
        self.local = is_loopback(host)
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a new thread. If :data:`MAX_CONNECTIONS` are being answered, wait
        until one of them ends; if none ends within :data:`SILENT_S`, close the new connection."""
        if not self._places.acquire(timeout=SILENT_S):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection in its thread. :data:`HEAD_S` seconds after its start, read no more
        of its request. When it has ended, let a waiting connection be answered."""
        head = threading.Timer(HEAD_S, _end_reading, (request,))
        head.daemon = True
        head.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            head.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about a failed connection: clients may disconnect at any time."""

    server_bind = TCPServer.server_bind  # without HTTPServer's name look-up, which may take long


def _end_reading(connection: socket.socket) -> None:
    """Stop reading from a connection, as if the client would send nothing more. An answer can still
    be sent."""
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RD)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SILENT_S

    def do_GET(self) -> None:
        """Answer a GET or HEAD request: ``/livez`` and ``/readyz`` with 200, or with 503 and the
        reason; ``/metrics`` with the samples, or with 500 if collecting them fails; other paths
        with 404. A Host header that is refused (see the module) gets 421."""
        health, host = self.server.health, self.headers.get("Host")
        path = self.path.partition("?")[0]
        if self.server.local and host is not None and not is_loopback(header_host(host)):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "use localhost or 127.0.0.1 as the host\n")
        elif path == "/livez":
            stuck = "" if health.lives() else "stuck: the main loop makes no progress\n"
            self._answer_health(stuck)
        elif path == "/readyz":
            reason = health.unready_reason()
            self._answer_health(reason and f"not ready: {reason}\n")
        elif path == "/metrics":
            try:
                body, media_type = render(health.all_samples(), self.headers.get("Accept", ""))
            except Exception:  # the scrape fails, the process goes on
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "collecting the metrics failed\n")
            else:
                self._answer(HTTPStatus.OK, body, media_type)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "not found: use /metrics, /livez or /readyz\n")

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that ``http.server`` refuses: with the status ``code``, or with 405 if
        its method is not GET or HEAD. The answer is the standard text of the status, in one line.
        ``message`` and ``explain`` are ignored, so the answer quotes nothing of the request."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self._answer(code, f"{HTTPStatus(code).phrase}\n")

    def version_string(self) -> str:
        """Return the value of the Server header: ``countersink``, without versions."""
        return "countersink"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing about a request."""

    def _answer_health(self, trouble: str) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
        self._answer(status, trouble or "ok\n")

    def _answer(self, status: int, body: str | bytes, media_type: str = TEXT) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.request_version = self.protocol_version  # else an HTTP/0.9 request gets no head
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


_open_servers: "weakref.WeakSet[_Server]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Close the listening sockets of all endpoints in a forked child, such as a process that runs a
    job. If the parent is killed, the child may outlive it, and the parent's successor needs the
    port."""
    for server in list(_open_servers):
        server.socket.close()


os.register_at_fork(after_in_child=_close_in_child)


class _SampleCollector(Collector):
    """Gives prometheus_client samples grouped by metric, in the order of the table of metrics."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        found: dict[str, list[Sample]] = {name: [] for name in METRICS}
        for sample in self._samples:
            found[sample.name].append(sample)
        return [_family(name, some) for name, some in found.items() if some]


def render(samples: Samples, accept: str) -> tuple[bytes, str]:
    """Return samples as text, together with ``process_…`` (CPU, memory ...) and ``python_info``.

    Args:
        samples: the samples, in any order.
        accept: the request's ``Accept`` header, which chooses OpenMetrics or Prometheus text; if
            empty, it is Prometheus text.

    Returns:
        The text and its media type.

    Raises:
        KeyError: the table has no metric of a sample's name, or a sample lacks a label.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in (_SampleCollector(samples), *_PROCESS_COLLECTORS):
        registry.register(collector)
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    metric = METRICS[name]
    family: _Family = _FAMILIES[metric.kind](name, metric.help, labels=metric.labels)
    for sample in samples:
        values = [sample.labels[label] for label in metric.labels]
        if isinstance(family, SummaryMetricFamily):
            family.add_metric(values, sample.observations, sample.value)
        else:
            family.add_metric(values, sample.value)
    return family


def installation_samples(document: Mapping[str, Any]) -> Samples:
    """Yield the samples of the installation, from the document of ``countersink info``. A value
    that is unknown (None) gets no sample; the bytes of the queue are a sum of the known ones. There
    are no numbers of workers if masters of a Redis Cluster are away and no worker is known."""
    yield Sample("countersink_looked_timestamp_seconds", _seconds(document["at"]))
    yield Sample("countersink_queue_entries", document["backlog"])
    yield Sample("countersink_queue_pending_entries", document["pending"])
    yield Sample("countersink_queue_oldest_age_seconds", document["lag_ms"] / 1000)
    sizes = [stream["bytes"] for stream in document["streams"] if stream["bytes"] is not None]
    yield Sample("countersink_queue_bytes", sum(sizes))
    yield Sample("countersink_redis_memory_used_bytes", document["memory"]["used"])
    yield Sample("countersink_redis_memory_max_bytes", document["memory"]["limit"])
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
    for job in found["failing"]:
        yield Sample("countersink_job_failures_in_a_row", job["times"], {"job_name": job["job"]})
    for run in found["next"]:
        if run["last"] is not None:
            failed = float(run["last"] == "failed")
            yield Sample("countersink_job_failed", failed, {"job_name": run["job"]})
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
    """Yield the samples of a producer's statistics, and of the bytes in its spool. Without a
    spool, or if its directory cannot be read, there is no sample of the bytes."""
    stats = producer.stats()
    for name in ("accepted", "stored", "resent", "spooled", "replayed", "dropped"):
        yield Sample(f"countersink_producer_increments_{name}_total", getattr(stats, name))
    yield Sample("countersink_producer_pending_rows", stats.pending_rows)
    yield Sample("countersink_producer_connected", float(stats.connected))
    if producer.spool is not None:
        try:
            size = used_bytes(Path(producer.spool))
        except SpoolError:
            return  # unknown: the producer itself logs the directory's error
        yield Sample("countersink_producer_spool_bytes", size)
