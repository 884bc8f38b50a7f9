"""Logs that tests write, and runs of tail over them inside the test's process."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
import redis

from countersink.logs import Parser, Rejected, tail
from countersink.logs.lines import Hits, Reporter, Summary
from countersink.logs.position import LogMark, PositionFile
from countersink.logs.sender import Begin, LogSender
from countersink.logs.tail import FileTail
from countersink.runtime.process import Stop
from countersink.stream.decode import decode
from countersink.stream.entry import pages
from countersink.stream.names import stream_keys

COUNTER = "page_views"
FIRST = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)


def line(path: str, *, minutes: int = 0) -> bytes:
    """A combined-format line without its newline, for a hit on ``path``."""
    when = (FIRST + timedelta(minutes=minutes)).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return f'10.0.0.1 - - [{when}] "GET {path} HTTP/1.1" 200 12 "-" "agent"'.encode()


def write(log: Path, *paths: str) -> None:
    """Append a line for each path, in one write, as a server does."""
    with log.open("ab") as file:
        file.write(b"".join(line(path) + b"\n" for path in paths))


def append(log: Path, data: bytes) -> None:
    """Append bytes."""
    with log.open("ab") as file:
        file.write(data)


def entries(client: redis.Redis) -> dict[str, Counter[str]]:
    """The hits of the streams' entries by key, by entry id."""
    found: dict[str, Counter[str]] = {}
    for stream in stream_keys(client):
        for page in pages(client, stream):
            for delivery in page:
                entry = decode(delivery)
                assert not entry.bad
                totals = Counter[str]()
                for _, counter, key, _, amount in entry.rows:
                    assert counter == COUNTER
                    assert isinstance(key, str)
                    totals[key] += amount
                assert found.setdefault(entry.id, totals) == totals
    return found


def counted(client: redis.Redis) -> Counter[str]:
    """What the streams' entries add up to by key: each entry id once, as the worker does."""
    return sum(entries(client).values(), Counter[str]())


def snapshot(client: redis.Redis) -> Callable[[], None]:
    """What puts Redis back to what it is now."""
    kept = {key: client.dump(key) or b"" for key in client.scan_iter()}

    def restore() -> None:
        client.flushall()
        for key, value in kept.items():
            client.restore(key, 0, value)

    return restore


@dataclass
class Recorder(Reporter):
    """Remembers what a run told."""

    notices: list[str] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def rejected(self, path: str, rejected: Rejected) -> None:
        self.lines.append((os.path.basename(path), rejected.line))
        self.reasons.append(rejected.reason)


class Tailing:
    """Runs of tail on one log."""

    def __init__(
        self,
        client: redis.Redis,
        log: Path,
        *,
        kind: str = "path",
        full: int = 1_000_000,
        rotate_wait: float = 0.0,
        file: Path | None = None,
        log_format: str = "",
        rotated_in: Path | None = None,
    ) -> None:
        self.file = file or log.with_name(f"{log.name}.{kind}.position")
        self.rotated_in = str(rotated_in or "")
        self.log_format = log_format
        self.client = client
        self.log = log
        self.kind: str = kind
        self.full = full
        self.rotate_wait = rotate_wait
        self.stop = Stop()
        self.told = Recorder()
        self.source = f"{COUNTER} {kind} {log}"

    @property
    def mark(self) -> LogMark:
        """The log's mark in Redis."""
        return LogMark(self.client, self.source)

    @contextmanager
    def made(
        self, *, follow: bool = False, client: redis.Redis | None = None
    ) -> Iterator[FileTail]:
        """A run that has not begun; it holds the position file."""
        connection = client or self.client
        sender = LogSender(
            connection, counter=COUNTER, full=self.full, notice=self.told.notice, stop=self.stop
        )
        with closing(PositionFile(str(self.file), self.source)) as file:
            yield FileTail(
                sender,
                file,
                LogMark(connection, self.source),
                Hits(Parser(self.kind, log_format=self.log_format), self.told, Summary()),
                path=str(self.log),
                follow=follow,
                rotate_wait=self.rotate_wait,
                rotated_in=self.rotated_in,
            )

    def run(
        self, *, begin: Begin | None = None, client: redis.Redis | None = None, follow: bool = False
    ) -> Summary:
        """One run to the end of the log."""
        with self.made(client=client, follow=follow) as run:
            return run.run(begin=begin)

    def count(self, *paths: str) -> Summary:
        """One run after a line for each path was appended to the log."""
        write(self.log, *paths)
        return self.run()

    @contextmanager
    def following(self, begin: Begin | None = None) -> Iterator[Thread]:
        """A run with --follow, in a thread, stopped at the end."""
        failures: list[BaseException] = []

        def body() -> None:
            try:
                self.run(begin=begin, follow=True)
            except BaseException as error:
                failures.append(error)

        thread = Thread(target=body, name="tail --follow")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tail, "POLL", 0.02)
            thread.start()
            try:
                yield thread
            finally:
                self.stop.request()
                thread.join(20)
        assert not thread.is_alive()
        assert not failures, failures
