"""`countersink statsd`: clients that are not ours, signals, and what is refused."""

import signal
import socket
import subprocess
from pathlib import Path

import datadog
import pytest
import redis
import requests
import statsd

from tests.cli.command import Servers, call
from tests.cli.listener import Listener, listener
from tests.cli.test_metrics import url_of
from tests.producers.helpers import totals
from tests.support.waiting import eventually

EACH = 1_000
NO_REDIS = "redis://127.0.0.1:1/0"
MAP = '[[rule]]\nmatch = "dd.*"\ncounter = "dd"\nkey = "$1 {tag:city}"\n'


def test_public_clients_count_exactly_and_signals_lose_nothing(
    servers: Servers, tmp_path: Path
) -> None:
    path = tmp_path / "d.sock"
    mapped = tmp_path / "map.toml"
    mapped.write_text("unmatched = 'drop'")
    arguments = ["--tcp", "--socket", str(path), "--map", str(mapped)]
    with listener(servers.redis_url, *arguments) as running:
        read_the_map_again(running, mapped)
        send_by_public_clients(running, path)
        stopped = end_with_much_waiting(running)
    fields = {"counted": 8 * EACH, "dropped": 0}
    assert {name: stopped[name] for name in fields} == fields
    servers.apply()
    rows = servers.rows("--all", "--by", "key")
    assert {(row["counter"], row["key"]): row["total"] for row in rows} == {
        ("py.udp", ""): EACH,
        ("py.pipelined", ""): EACH,
        ("tcp", ""): EACH,
        ("dd", "udp Oslo"): EACH,
        ("dd", "unix Oslo"): EACH,
        ("shell", ""): EACH,
        ("late", ""): 2 * EACH,
    }


def read_the_map_again(running: Listener, mapped: Path) -> None:
    """SIGHUP with a wrong map, which changes nothing, and with the one that is used then."""
    mapped.write_text("unmatched = 'no'")
    running.child.send(signal.SIGHUP)
    eventually(lambda: running.records("map"))
    assert "the previous map stays in use" in str(running.records("map")[0]["message"])
    mapped.write_text(MAP)
    running.child.send(signal.SIGHUP)
    eventually(lambda: len(running.records("map")) == 2)


def send_by_public_clients(running: Listener, path: Path) -> None:
    """Six times `EACH`, and what does not count."""
    udp = statsd.StatsClient("127.0.0.1", running.port, prefix="py")
    tcp = statsd.TCPStatsClient("127.0.0.1", running.port)
    with udp.pipeline() as pipeline:
        for _ in range(EACH):
            pipeline.incr("pipelined")
    for number in range(EACH):
        udp.incr("udp")
        tcp.incr("tcp")
        if not number % 10:
            udp.timing("a.timer", number)
            tcp.gauge("a.gauge", number)
    udp.close()
    tcp.close()
    for name, where in (
        ("udp", {"host": "127.0.0.1", "port": running.port}),
        # by itself it would drop what does not fit into the socket's queue, ten datagrams
        ("unix", {"socket_path": str(path), "socket_timeout": 20}),
    ):
        client = datadog.DogStatsd(**where, constant_tags=["city:Oslo"])
        for _ in range(EACH):
            client.increment(f"dd.{name}", tags=["a:b"])
            client.histogram("dd.histogram", 3)
        client.flush()
        client.close_socket()
    shell = f'for i in $(seq {EACH}); do echo "shell:1|c" >/dev/udp/127.0.0.1/{running.port}; done'
    subprocess.run(["bash", "-c", shell], check=True)


def end_with_much_waiting(running: Listener) -> dict[str, object]:
    """SIGTERM while twice `EACH` wait in its socket; its last record."""
    running.child.stop()
    send(running, b"late:1|c", 2 * EACH)
    stopped = running.end()
    assert stopped["level"] == "info"
    return stopped


def send(running: Listener, packet: bytes, times: int) -> None:
    """By UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", running.port))
        for _ in range(times):
            sender.send(packet)


def test_without_redis_the_spool_keeps_what_came(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    spool = str(tmp_path / "spool")
    with listener(NO_REDIS, COUNTERSINK_PRODUCER_SPOOL=spool) as running:
        send(running, b"a:1|c", EACH)
        send(running, b"a:one|c\na:1|ms", 2)
        stopped = running.end()
        fields = {"counted": EACH, "ignored": 2, "malformed": 2, "lost": 0, "dropped": 0}
        assert {name: stopped[name] for name in fields} == fields
    assert call("spool", "replay", spool, COUNTERSINK_REDIS_URL=redis_url).status == 0
    assert totals(redis_client) == {("a", ""): EACH}


@pytest.mark.parametrize("usable", [True, False])
def test_without_redis_it_is_ready_if_its_spool_works(tmp_path: Path, usable: bool) -> None:
    (tmp_path / "file").touch()
    spool = str(tmp_path / ("spool" if usable else "file/spool"))
    port = "--metrics-port", "0"
    with listener(NO_REDIS, *port, COUNTERSINK_PRODUCER_SPOOL=spool) as running:
        ready = requests.get(f"{url_of(running.child)}/readyz", timeout=60).text
        assert ready == ("ok\n" if usable else "not ready: redis did not answer\n")
        running.end()


def test_what_could_not_be_stored_is_said() -> None:
    with listener(NO_REDIS, COUNTERSINK_PRODUCER_EXIT_TIMEOUT="0.05") as running:
        send(running, b"a:1|c\na:1|c", 1)
        running.child.terminate()
        assert running.child.wait() == 1
        (stopped,) = running.records("stopped")
        assert "lost" in str(stopped["message"])
