"""Processes that serve, with a stderr that nobody reads: a pipe that is full from the start."""

import os
from collections.abc import Iterator

import pytest
import redis
import requests

from countersink.cli.private_server import free_port
from countersink.store import Store
from tests.cli.command import Servers, Start
from tests.producers.helpers import STREAM
from tests.support.processes import Child, Children
from tests.support.traffic import add
from tests.support.waiting import eventually


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"." * size)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)  # as a process's stderr is
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def start(servers: Servers, full_pipe: tuple[int, int]) -> Iterator[Start]:
    """Starts the command, from its first line on, with such a stderr."""
    with Children() as children:

        def start(*arguments: str, **variables: str) -> Child:
            environment = servers.variables(**variables)
            return children.countersink(*arguments, environment=environment, stderr=full_pipe[1])

        yield start


def said(reader: int, text: str) -> None:
    """Whoever begins to read gets what was said before."""
    found = b""
    while text.encode() not in found:
        found += os.read(reader, 65_536)


def test_a_worker_applies_and_what_it_said_is_there_when_somebody_reads(
    start: Start, full_pipe: tuple[int, int], redis_client: redis.Redis, store: Store
) -> None:
    worker = start("worker")
    add(redis_client, {"rows": '[["hits","",29400000,1]]'})
    eventually(lambda: not redis_client.xlen(STREAM))
    assert store.totals.total("hits") == 1
    add(redis_client, {"rows": "bad, which is a warning"})
    eventually(lambda: not redis_client.xlen(STREAM))
    said(full_pipe[0], "rows went to the dead letters")
    worker.terminate()
    assert worker.wait() == 0
    said(full_pipe[0], "a worker ends; it leaves nothing pending")


def test_web_answers(start: Start, redis_client: redis.Redis) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    web = start("web", "--without-keys", "--port", str(port))

    def answered() -> bool:
        try:
            return requests.get(f"{url}/livez", timeout=5).ok
        except requests.ConnectionError:
            return False

    eventually(answered)
    counted = requests.post(f"{url}/v1/increments?wait=stored", json={"counter": "hits"}, timeout=9)
    assert counted.json() == {"accepted": 1, "state": "stored"}
    web.terminate()
    assert web.wait() == 0
