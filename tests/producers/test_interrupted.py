"""Signal handlers that raise, or call the producer, in the midst of its calls."""

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from countersink.producers import Increment, Producer
from countersink.producers.batch import check_batch
from countersink.producers.buffer.events import EventBuffer
from countersink.producers.buffer.generations import Generation
from countersink.producers.buffer.queues import fold_lists
from countersink.producers.buffer.rows import RowBuffer
from countersink.producers.engine import Engine
from countersink.producers.send_thread import Flush
from tests.producers.helpers import Queue, play, total, totals


class Interrupt(BaseException):
    """What the handler raises."""


@contextmanager
def interrupting(
    code: CodeType, deed: Callable[[], None], seen: list[int] | None = None
) -> Iterator[list[int]]:
    """Do `deed`, as a signal handler would, at each line of `code` that this thread runs, once; no
    more of them once it has raised, and none of those `seen` before.
    """
    seen = [] if seen is None else seen

    def tracer(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not code:
            return None

        def local(inner: FrameType, event: str, arg: Any) -> Any:
            if event == "line" and inner.f_lineno not in seen:
                seen.append(inner.f_lineno)
                deed()
            return local

        return local

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield seen
    finally:
        sys.settrace(before)  # that of `make coverage`


def interrupt() -> None:
    raise Interrupt


@pytest.fixture
def silent_redis() -> Iterator[str]:
    """The URL of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.mark.parametrize(
    "place",
    [RowBuffer.add_ones, EventBuffer.fold_all, fold_lists, Flush.wait, Flush.over],
)
def test_an_exception_in_a_flush_loses_nothing(queue: Queue, place: Callable[..., object]) -> None:
    asked = 0
    with Producer(queue.url) as producer:
        with interrupting(place.__code__, interrupt):
            for _ in range(30):
                for number in range(100):
                    producer.increment("hits", str(number))
                    asked += 1
                try:
                    producer.flush(20)
                    producer.stats()
                except Interrupt:
                    pass
        assert producer.flush(20)
        assert producer.stats().stored == asked
    assert total(queue.client) == asked


def test_rows_are_found_even_if_adding_them_was_interrupted() -> None:
    buffer = RowBuffer(1000)
    with interrupting(Generation.count_new_rows.__code__, interrupt), pytest.raises(Interrupt):
        buffer.add_ones("c", 0, list("abababab"))
    assert buffer.waiting
    piece = buffer.take(10, buffer.generation)
    assert piece is not None
    assert len(piece.rows) == 2


@pytest.mark.long("fifty flushes beside a busy thread")
def test_flush_covers_what_its_thread_has_just_counted(redis_url: str) -> None:
    """However much others count meanwhile, in lists that are folded before."""
    ended = threading.Event()
    names = [f"busy-{number}" for number in range(40)]

    with Producer(redis_url) as producer:

        def hammer() -> None:
            while not ended.is_set():
                for name in names:
                    producer.increment(name, "x")

        thread = threading.Thread(target=hammer)
        thread.start()
        try:
            for _ in range(50):
                producer.increment("rare", "y")
                assert producer.flush(20)
                assert not producer._events._lists.list_for("rare")
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("place", [Engine.flush, Engine.close, Engine._stop_threads, Flush.wait])
def test_a_close_that_was_interrupted_is_made_up_for(
    silent_redis: str, tmp_path: Path, place: Callable[..., object]
) -> None:
    producer = Producer(silent_redis, spool=tmp_path, socket_timeout=0.2, handle_sigterm=False)
    for _ in range(1000):
        producer.increment("hits")
    with interrupting(place.__code__, interrupt):
        for _ in range(50):
            try:
                producer.close(0.3)
                break
            except Interrupt:
                pass
        else:
            raise AssertionError("it was interrupted for ever")
    stats = producer.stats()
    assert (stats.spooled, stats.dropped) == (1000, 0)
    assert producer.close()


def test_without_time_close_still_spools(silent_redis: str, tmp_path: Path) -> None:
    producer = Producer(silent_redis, spool=tmp_path, handle_sigterm=False)
    producer.increment("hits")
    assert producer.close(0)
    assert producer.stats().spooled == 1


@pytest.mark.parametrize("raising", [False, True])
@pytest.mark.parametrize("place", [Producer.increment_batch, EventBuffer.put_batch, check_batch])
def test_a_signal_handler_may_count_and_flush_in_the_midst_of_a_batch(
    queue: Queue, place: Callable[..., object], raising: bool
) -> None:
    producer = Producer(queue.url, handle_sigterm=False, max_rows_in_memory=100)
    assert producer.increment_batch([Increment("hits")])  # the fold thread runs from here on
    handled = 0
    inside = False

    def handler() -> None:
        nonlocal handled, inside
        if not inside:
            inside = True
            assert producer.increment_batch([Increment("handled")])
            handled += 1
            assert producer.flush(20)
            inside = False
            if raising:
                raise Interrupt

    accepted = 1
    batch = [Increment("hits"), Increment("hits", "a")]
    seen: list[int] = []
    for _ in range(20):
        try:
            with interrupting(place.__code__, handler, seen):
                accepted += len(batch) * producer.increment_batch(batch)
        except Interrupt:
            inside = False
    assert len(seen) == handled > 3
    # None of the room is lost. A bit more of it there may be, where an exception tore a batch.
    assert producer.flush(20)
    buffer = producer._events.buffer
    assert 100 <= buffer.free_rows <= (102 if raising else 100)
    assert producer.close()
    stored = totals(queue.client)
    assert stored["handled", ""] == handled
    assert sum(stored.values()) == producer.stats().stored
    asked = accepted + handled
    # One that an exception ended may have been accepted before that.
    assert sum(stored.values()) >= asked if raising else sum(stored.values()) == asked


def test_a_signal_handler_may_close_in_the_midst_of_a_batch(queue: Queue) -> None:
    """Before each line of it: what was accepted is stored, and what was not is not."""
    accepted = turn = 0
    closed: list[bool] = [True]
    while closed:
        turn += 1
        producer = Producer(queue.url, handle_sigterm=False, flush_interval=60)
        accepted += producer.increment_batch([Increment("hits")])
        lines = 0
        closed = []

        def close(
            turn: int = turn, producer: Producer = producer, closed: list[bool] = closed
        ) -> None:
            nonlocal lines
            lines += 1
            if lines == turn:
                closed.append(producer.close())

        with interrupting(EventBuffer.put_batch.__code__, close):
            accepted += producer.increment_batch([Increment("hits")])
        assert closed in ([True], [])
        assert producer.close()
        assert total(queue.client) == accepted
        assert producer.stats().dropped == 0
    assert turn > 5


def test_a_close_whose_folder_does_not_answer_does_not_say_that_nothing_is_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("countersink.producers.engine.ANSWER_SECONDS", 0.05)
    monkeypatch.setattr("countersink.producers.engine.JOIN_SECONDS", 0.05)
    producer = Producer(redis_url, handle_sigterm=False)
    assert producer.flush(20)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with producer._events.lock:
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(20)
        producer.increment("hits")
        assert not producer.close(0.05)
    finally:
        release.set()
        holder.join()
    (record,) = [each for each in caplog.records if getattr(each, "action", "") == "left_over"]
    assert "the thread that folds increments did not end" in record.getMessage()


@pytest.mark.parametrize(
    "place", [Flush.over, Flush.wait, Engine.close, Engine.flush, Engine._start, Engine.stats]
)
def test_a_signal_handler_may_flush_in_the_midst_of_a_flush(
    redis_url: str, place: Callable[..., object]
) -> None:
    producer = Producer(redis_url, handle_sigterm=False)
    inside = False

    def handler() -> None:
        nonlocal inside
        if not inside:
            inside = True
            producer.flush(5)
            producer.stats()
            inside = False

    with interrupting(place.__code__, handler):
        producer.increment("hits")
        assert producer.flush(20)
        producer.stats()
        assert producer.close()
    assert producer.stats().stored == 1


def test_a_signal_handler_may_close_in_the_midst_of_a_close(silent_redis: str) -> None:
    producer = Producer(silent_redis, socket_timeout=0.2, handle_sigterm=False)
    producer.increment("hits")
    previous = signal.signal(signal.SIGALRM, lambda number, frame: producer.close(0.5) and None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert not producer.close(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_an_exit_during_close_still_spools(silent_redis: str, tmp_path: Path) -> None:
    script = """
            import json, signal, sys
            from countersink.producers import Producer

            signal.signal(signal.SIGALRM, lambda number, frame: sys.exit(0))
            with Producer(sys.argv[1], spool=sys.argv[2], exit_timeout=0.5) as producer:
                for _ in range(1000):
                    producer.increment("hits")
                signal.setitimer(signal.ITIMER_REAL, 0.3)
            print(json.dumps(["closed in time"]))
    """
    assert play(script, silent_redis, str(tmp_path)) == []
    assert list(tmp_path.glob("*.spool"))
