"""The real `countersink statsd`, for tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.forked import ForkedChildren
from tests.support.processes import Child
from tests.support.waiting import eventually


@dataclass
class Listener:
    """The process and where it listens."""

    child: Child
    at: dict[str, str]

    @property
    def port(self) -> int:
        """Of UDP and TCP."""
        return int(self.at["udp"].rpartition(":")[2])

    def records(self, action: str) -> list[dict[str, object]]:
        """What it has logged."""
        lines = (json.loads(line) for line in self.child.output().splitlines())
        return [line for line in lines if line["action"] == action]

    def end(self) -> dict[str, object]:
        """SIGTERM, a good end, and the last record."""
        self.child.terminate()
        self.child.go_on()  # should it be stopped
        assert self.child.wait() == 0, self.child.output()
        (stopped,) = self.records("stopped")
        return stopped


@contextmanager
def listener(redis_url: str, *arguments: str, **variables: str) -> Iterator[Listener]:
    """`countersink statsd` at a free port, once it listens."""
    environment = {
        "COUNTERSINK_REDIS_URL": redis_url,
        "COUNTERSINK_STATSD_PORT": "0",
        "COUNTERSINK_STATSD_LOG_FORMAT": "json",
        **variables,
    }
    with ForkedChildren() as children:
        child = children.countersink("statsd", *arguments, environment=environment)
        eventually(lambda: '"listening"' in child.output() or not child.running)
        started = Listener(child, {})
        (record,) = started.records("listening")
        started.at = dict(url.split("://", 1) for url in str(record["at"]).split())
        yield started
