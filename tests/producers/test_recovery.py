"""What fails for a moment is tried again, and costs nothing meanwhile."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from countersink.producers import Producer, engine
from countersink.producers.buffer.events import Mode
from countersink.producers.errors import SpoolError
from countersink.producers.spool import writer
from countersink.producers.spool.segment import Segment
from tests.producers.helpers import Queue, files_up_to, play, total
from tests.support.proxies import Deed, Phase, RedisProxy
from tests.support.waiting import eventually

NOBODY = "redis://127.0.0.1:1/0"


def test_a_segment_that_cannot_be_created_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with files_up_to(0):
        for number in range(20):
            with pytest.raises(SpoolError):
                Segment.create(tmp_path / f"{number}.spool")
    assert len(os.listdir("/proc/self/fd")) < before + 20
    assert not list(tmp_path.iterdir())


def test_the_spool_is_tried_again_though_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.05)
    directory = tmp_path / "spool"
    directory.write_text("in the way")
    producer = Producer(NOBODY, spool=directory, max_rows_in_memory=100)
    for number in range(100):
        producer.increment("hits", str(number))
    eventually(lambda: producer._spool and producer._spool.failure)
    directory.unlink()
    eventually(lambda: producer._outbox.spooled > 0)
    assert "cannot create the directory" not in str(producer.stats().last_error)
    assert producer.close(1)


def test_threads_are_tried_again(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    failures = 2

    def seldom(self: threading.Thread) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", seldom)
    monkeypatch.setattr(engine, "RESTART_SECONDS", 0.05)
    with Producer(queue.url) as producer:
        producer.increment("hits")
        assert producer._events.mode is Mode.NO_THREADS

        def counts_in_a_thread() -> bool:
            producer.increment("hits", "", 0)
            return producer._started

        eventually(counts_in_a_thread)
        assert producer.flush(20)
    assert total(queue.client) == 1


def test_a_producer_with_nothing_to_send_rests(tmp_path: Path) -> None:
    with Producer(NOBODY, spool=tmp_path, flush_interval=0.01) as producer:
        producer.flush(0.1)
        sender = producer._send_thread
        sender._next_adoption = 0.0
        producer._link._not_before = time.monotonic() + 60
        seconds = sender._seconds_to_wait()
        assert seconds is not None
        assert seconds > 30


def test_an_unknown_length_is_an_error(queue: Queue) -> None:
    with RedisProxy.to(queue.url) as proxy:
        refused = proxy.when("XLEN", Phase.BEFORE, Deed.ERROR, skip=1, error="NOPERM no XLEN")
        with Producer(proxy.url(queue.url), flush_interval=0.01) as producer:
            producer.increment("hits")
            assert producer.flush(20)
            eventually(lambda: producer._link.failures == 1)
    assert refused.acted == 1
    assert total(queue.client) == 1


@pytest.mark.long("two exit timeouts are waited for")
def test_no_producer_waits_for_another_at_exit(tmp_path: Path) -> None:
    script = """
            import sys
            from countersink.producers import Producer

            first, second = Producer(sys.argv[1]), Producer(sys.argv[1], spool=sys.argv[2])
            first.increment("hits")
            second.increment("hits")
    """
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        play(script, f"redis://127.0.0.1:{silent.getsockname()[1]}/0", str(tmp_path))
    assert list(tmp_path.glob("*.spool"))
