"""The little HTTP server of processes that serve nothing else."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
import requests

from countersink import metrics as module
from countersink.cli.private_server import free_port
from countersink.metrics import MAX_CONNECTIONS, Endpoint
from countersink.metrics.health import STUCK_AFTER_S, Health
from countersink.metrics.table import Sample, Samples
from tests.web.raw import answer, connected


@dataclass
class Told:
    """What the endpoint under test tells."""

    moved: float = field(default_factory=time.monotonic)
    busy: str = ""
    broken: bool = False

    def samples(self) -> Samples:
        if self.broken:
            raise RuntimeError("a secret of the inside")
        yield Sample("countersink_queue_entries", 7)

    def health(self) -> Health:
        return Health(
            process="test",
            samples=self.samples,
            moved=lambda: self.moved,
            busy=lambda: self.busy,
        )


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def endpoint(told: Told) -> Iterator[Endpoint]:
    with Endpoint("127.0.0.1", 0, told.health()) as served:
        yield served


def test_metrics_in_the_format_that_is_asked_for(endpoint: Endpoint) -> None:
    plain = requests.get(f"{endpoint.url}/metrics", timeout=60)
    assert plain.status_code == 200
    assert plain.headers["Content-Type"].startswith("text/plain")
    assert "\ncountersink_queue_entries 7.0\n" in plain.text
    assert 'countersink_build_info{process="test",version="' in plain.text
    assert plain.headers["Cache-Control"] == "no-store"
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    other = requests.get(f"{endpoint.url}/metrics?x=1", headers=accept, timeout=60)
    assert other.headers["Content-Type"].startswith("application/openmetrics-text")
    assert other.text.endswith("# EOF\n")


def test_a_stuck_process_does_not_live(endpoint: Endpoint, told: Told) -> None:
    assert requests.get(f"{endpoint.url}/livez", timeout=60).status_code == 200
    told.moved = time.monotonic() - STUCK_AFTER_S
    stuck = requests.get(f"{endpoint.url}/livez", timeout=60)
    assert (stuck.status_code, stuck.text.partition(":")[0]) == (503, "stuck")
    assert requests.get(f"{endpoint.url}/readyz", timeout=60).status_code == 503


def test_figures_that_cannot_be_had_end_the_scrape_and_nothing_else(
    endpoint: Endpoint, told: Told
) -> None:
    told.broken = True
    failed = requests.get(f"{endpoint.url}/metrics", timeout=60)
    assert failed.status_code == 500
    assert "secret" not in failed.text
    assert requests.get(f"{endpoint.url}/livez", timeout=60).status_code == 200


def test_nonsense_is_refused_without_an_echo(endpoint: Endpoint) -> None:
    for sent in (
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n",
        b"\r\n\r\n",
        b"GET <script>alert(1)</script> HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"GET /" + b"a" * 70_000,
    ):
        with connected(endpoint.url) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            said = answer(connection)
        assert not said or b" 4" in said[:13] or b" 5" in said[:13] or b"200" in said[:13], sent
        assert b"<script" not in said
        assert b"Traceback" not in said
        assert requests.get(f"{endpoint.url}/livez", timeout=60).status_code == 200


def test_connections_that_say_nothing_are_ended_and_keep_nobody_out_for_long(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.2)
    with Endpoint("127.0.0.1", 0, told.health()) as served, ExitStack() as open_ones:
        silent = [
            open_ones.enter_context(connected(served.url)) for _ in range(2 * MAX_CONNECTIONS)
        ]
        for each in silent[::2]:
            each.sendall(b"GET /livez HTTP/1.1\r\n")
        assert requests.get(f"{served.url}/livez", timeout=60).ok
        assert all(each.recv(1) == b"" for each in silent)  # closed, without an answer


def test_a_request_that_comes_byte_by_byte_is_ended(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.5)
    with connected(endpoint.url) as client:
        client.settimeout(0.01)
        ended = time.monotonic() + 60
        while time.monotonic() < ended:
            try:
                client.send(b"G")
                if client.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
        pytest.fail("the connection was kept")


def test_at_loopback_it_answers_to_names_of_loopback_alone(endpoint: Endpoint) -> None:
    known = "127.0.0.1 127.0.0.1:9100 localhost:9100 LOCALHOST. worker.localhost [::1]:9100"
    unknown = (
        "evil.example evil.example:9100 127.0.0.1.evil.example localhost.evil.example"
        " localhost@evil.example 0.0.0.0 ["
    )
    hosts = {**dict.fromkeys(known.split(), 200), **dict.fromkeys([*unknown.split(), ""], 421)}
    for host, status in hosts.items():
        for path in ("/metrics", "/livez", "/readyz", "/none"):
            told = requests.get(endpoint.url + path, headers={"Host": host}, timeout=60)
            expected = 404 if status == 200 and path == "/none" else status
            assert told.status_code == expected, (host, path)


def test_beyond_loopback_it_answers_to_any_name(told: Told) -> None:
    with Endpoint("0.0.0.0", 0, told.health()) as served:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        told_so = requests.get(f"{url}/livez", headers={"Host": "worker.example:9100"}, timeout=60)
        assert told_so.ok


def test_a_forked_child_does_not_hold_the_port(told: Told) -> None:
    """A job may outlive its killed parent, whose place and port another process takes."""
    port = free_port()  # the system gives it to no connection meanwhile
    with Endpoint("127.0.0.1", port, told.health()):
        reader, writer = os.pipe()
        begun, begins = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.write(begins, b"!")
            os.read(reader, 1)
            os._exit(0)
        os.read(begun, 1)  # it may still be about to let the port go
        for end in (reader, begun, begins):
            os.close(end)
    try:
        with Endpoint("127.0.0.1", port, told.health()) as again:
            assert requests.get(f"{again.url}/livez", timeout=60).ok
    finally:
        os.close(writer)
        os.waitpid(child, 0)
