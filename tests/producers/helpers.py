"""What the stream holds, counted as a worker would: each entry id once."""

import json
import logging
import resource
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from countersink.runtime.log import Log
from countersink.stream.connection import command
from countersink.stream.decode import entry_id_of
from countersink.stream.entry import Delivery
from countersink.stream.group import Group
from tests.support.forked import ForkedChild
from tests.support.processes import Child, Children, child_environment

STREAM = "{countersink:0}:events"


@dataclass(frozen=True)
class Entry:
    """A stream entry, as it lies there."""

    stream_id: str
    fields: tuple[tuple[bytes, bytes], ...]

    def __getitem__(self, name: str) -> str:
        return dict(self.fields)[name.encode()].decode()

    @property
    def rows(self) -> list[tuple[str, str, int, int]]:
        """Its rows: counter, key, minute, amount."""
        return [(row[0], row[1], row[2], row[3]) for row in json.loads(self["rows"])]


@dataclass(frozen=True)
class Queue:
    """An empty Redis."""

    url: str
    client: redis.Redis


def entries(client: redis.Redis, stream: str = STREAM) -> list[Entry]:
    """Every entry, copies included, in the stream's order."""
    found: list[Entry] = []
    for stream_id, flat in command(client, "XRANGE", stream, "-", "+"):
        fields = tuple(zip(flat[::2], flat[1::2], strict=True))
        found.append(Entry(stream_id.decode(), fields))
    return found


def distinct(found: list[Entry]) -> list[Entry]:
    """One of each id; copies must be identical to the byte."""
    by_id: dict[str, Entry] = {}
    for entry in found:
        first = by_id.setdefault(entry["id"], entry)
        assert first.fields == entry.fields, "a resend is byte-identical"
    return list(by_id.values())


def totals(client: redis.Redis, stream: str = STREAM) -> dict[tuple[str, str], int]:
    """(counter, key) → what a worker would count."""
    sums: Counter[tuple[str, str]] = Counter()
    for entry in distinct(entries(client, stream)):
        for counter, key, _, amount in entry.rows:
            sums[counter, key] += amount
    return dict(sums)


def total(client: redis.Redis, counter: str = "hits") -> int:
    """One counter's total over all keys."""
    return sum(amount for (name, _), amount in totals(client).items() if name == counter)


def run_script(children: Children, script: str, *arguments: str) -> Child:
    """Start a Python process that runs `script`, which finds `arguments` in `sys.argv[1:]`."""
    preloaded = ("countersink.producers.spool",)
    child = ForkedChild(textwrap.dedent(script), arguments, preloaded=preloaded)
    children._children.append(child)
    return child


def play(script: str, *arguments: str) -> list[Any]:
    """Run a script to its end, which is no failure; the JSON lines that it has written."""
    with Children() as children:
        child = run_script(children, script, *arguments)
        assert child.wait() == 0, child.output()
        return said(child)


def said(child: Child) -> list[Any]:
    """The JSON lines that a child has written so far."""
    return [json.loads(line) for line in child.output().splitlines() if line.startswith(("{", "["))]


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """A disk that is full for this process where a file has that many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def imported(module: str, after: str) -> set[str]:
    """The modules of others that an import brings to a fresh process that has imported some."""
    script = (
        f"import sys, {after}; before = set(sys.modules); import {module};"
        "print('\\n'.join(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", script]
    said = subprocess.check_output(command, env=child_environment(), text=True)
    assert module in said.split()
    return {name for name in said.split() if not name.startswith("countersink")}


class Worker:
    """The queue's side of a worker; what it reads counts as applied when it acknowledges."""

    def __init__(self, client: redis.Redis, name: str = "w") -> None:
        self.group = Group(client, [STREAM], name)
        self.group.ensure()

    def take(self, count: int = 100) -> list[Delivery]:
        return self.group.read(count, 0) or self.group.read(count, 0)

    def acknowledge(self, deliveries: list[Delivery]) -> None:
        held = [(d.stream, d.stream_id, entry_id_of(d)) for d in deliveries]
        assert self.group.acknowledge(held) == len(held)

    def work(self) -> None:
        self.acknowledge(self.take())


def new_log() -> Log:
    """The log of a producer that has logged nothing so far."""
    return Log(logging.getLogger("countersink.producers"))
