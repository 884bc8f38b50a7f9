"""A process that takes values of sequences.

It says `ready`, then for each of its jobs waits for a line on stdin, does it, and says `done`. Each
value is written as it comes, by its own write: a SIGKILL loses only what was never heard of. What
was refused is written as the error's name.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pymysql

from countersink.store import SequenceUncertain, Store, Unavailable
from tests.support.oracle import connect

CONFLICTS = (1020, 1205, 1213)
"""Codes after which an application runs its transaction again."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to take."""

    way: str
    """`next`, `block`, `next_in` (with every third transaction rolled back) or `naive`."""
    name: str
    """Of the sequence; with `naive` of a table with one row and a column n."""
    count: int = 0
    """How many calls; 0: until a line or the end comes on stdin."""
    step: int | None = None
    start: int | None = None
    size: int = 10
    """Of a block."""


def main(url: str, jobs: Sequence[Mapping[str, Any]]) -> int:
    """Do the jobs."""
    with Store(url) as store, connect(url) as app:
        store.sequences.next("connected")
        _say("ready")
        for job in (Job(**each) for each in jobs):
            sys.stdin.readline()
            for _ in _calls(job.count):
                try:
                    for value in _take(store, app, job):
                        _say(str(value))
                except (SequenceUncertain, Unavailable) as error:
                    _say(type(error).__name__)
            _say("done")
    return 0


def _calls(count: int) -> Iterator[int]:
    if count:
        yield from range(count)
        return
    over = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    while not over.is_set():
        yield 0


def _take(store: Store, app: pymysql.connections.Connection[Any], job: Job) -> Sequence[int]:
    match job.way:
        case "next":
            return [store.sequences.next(job.name, job.step, start=job.start)]
        case "block":
            return store.sequences.next_block(job.name, job.size, job.step, start=job.start)
        case "next_in":
            return _transaction(store, app, job)
        case "naive":
            with app.cursor() as cursor:
                cursor.execute(f"UPDATE {job.name} SET n = n + 1")
                cursor.execute(f"SELECT n FROM {job.name}")
                return [row[0] for row in cursor.fetchall()]
        case way:
            raise ValueError(way)


def _transaction(store: Store, app: pymysql.connections.Connection[Any], job: Job) -> Sequence[int]:
    """The value of a transaction that was committed, if it was."""
    take = partial(store.sequences.next_in, app, job.name, job.step, start=job.start)
    while True:
        app.begin()
        try:
            value = take()
        except pymysql.err.OperationalError as error:
            app.rollback()
            if error.args[0] not in CONFLICTS:
                raise
            continue
        if random.randrange(3) == 0:
            app.rollback()
            return []
        app.commit()
        return [value]


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")
