"""Datagrams per second without loss: `countersink statsd` beside a bare receiver in Python."""

from __future__ import annotations

import json
import os
import re
import socket
from collections import Counter
from pathlib import Path
from typing import Any, Final

from benchmarks.command import service
from benchmarks.measuring import Benchmark, Measurement, Wrong
from benchmarks.processes import Child, Message
from benchmarks.site import Site
from benchmarks.workload import COUNTER, zipf_counts
from countersink.stream.names import stream_key

MAP: Final = f'[[rule]]\nmatch = "web.*.hits"\ncounter = "{COUNTER}"\nkey = "$1"\n'


class UdpBare:
    """`udp_bare`: a loop that receives and counts, and looks at nothing."""

    name = "udp_bare"

    def measure(self, seconds: float) -> Measurement:
        """Datagrams, until the last one was taken from the socket."""
        with Child("benchmarks.children.udp_receiver") as receiver:
            port = receiver.hear()["port"]
            said = _send(port, seconds)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", ("127.0.0.1", port))
            heard = receiver.hear()
        if heard["count"] != said["events"]:
            raise Wrong(f"{said['events']} datagrams sent, {heard['count']} received")
        return _measurement(said, heard["cpu_seconds"])


class Statsd:
    """`statsd`: the real command with its defaults and a map of one rule, into Redis."""

    name = "statsd"

    def __init__(self, site: Site) -> None:
        self._site = site

    def measure(self, seconds: float) -> Measurement:
        """Datagrams, until the last one was taken from the socket; all must be in Redis."""
        mapped = self._site.directory / "statsd.toml"
        mapped.write_text(MAP)
        with self._site.database() as mysql_url:
            options = ("--port", "0", "--map", str(mapped))
            with service("statsd", self._site.redis_url, mysql_url, *options) as running:
                running.wait_until_it_says("listening at")
                port = re.search(r"udp://127\.0\.0\.1:(\d+)", running.said())
                if port is None:
                    raise Wrong(f"statsd does not say its port\n{running.said()}")
                before = _cpu_seconds(running.pid)
                said = _send(int(port[1]), seconds)
                spent = _cpu_seconds(running.pid) - before
            self._check(said["passes"])
        return _measurement(said, spent)

    def _check(self, passes: int) -> None:
        """Raises Wrong unless the stream holds exactly what was sent."""
        found: Counter[str] = Counter()
        with self._site.redis_client() as client:
            entries: Any = client.xrange(stream_key(0))
        for _, fields in entries:
            for _, key, _, amount in json.loads(fields[b"rows"]):
                found[key] += amount
        sent = {key.strip("/").replace("/", "-"): n * passes for key, n in zipf_counts().items()}
        if found != sent:
            raise Wrong(f"{sum(sent.values())} datagrams sent, {found.total()} counted")


def _send(port: int, seconds: float) -> Message:
    with Child("benchmarks.children.udp_sender", port=port, seconds=seconds) as sender:
        return sender.hear()


def _measurement(said: Message, cpu_seconds: float) -> Measurement:
    return Measurement(
        said["events"], said["seconds"], {"cpu_per_second": said["events"] / cpu_seconds}
    )


def _cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rows(site: Site) -> list[Benchmark]:
    """Both rows."""
    return [UdpBare(), Statsd(site)]
