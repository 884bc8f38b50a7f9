"""An answer of what may hang: nobody waits for long, and it is asked once."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from countersink.metrics.health import CachedAnswer
from tests.support.waiting import eventually

LONG = 3600.0


def test_an_answer_is_kept() -> None:
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        return len(asked)

    asking = CachedAnswer(ask, kept_s=LONG, within_s=LONG)
    assert [asking.get() for _ in range(3)] == [1, 1, 1]
    again = CachedAnswer(ask, kept_s=0, within_s=LONG)
    assert [again.get(), again.get()] == [2, 3]


def test_what_hangs_is_asked_once_and_nobody_waits_again() -> None:
    released, asked = threading.Event(), []

    def ask() -> int:
        asked.append(1)
        released.wait(60)
        return 5

    def look() -> int | None:
        try:
            return asking.get()
        except TimeoutError:
            return None

    asking = CachedAnswer(ask, kept_s=LONG, within_s=0.05)
    with ThreadPoolExecutor(20) as pool:
        assert [each.result() for each in [pool.submit(look) for _ in range(20)]] == [None] * 20
    for _ in range(1000):
        assert look() is None
    assert len(asked) == 1
    released.set()
    eventually(lambda: look() == 5)
    assert len(asked) == 1


def test_many_who_ask_at_once_share_one_answer_and_may_go_away() -> None:
    asked: list[int] = []
    go = threading.Event()

    def ask() -> int:
        asked.append(1)
        go.wait(60)
        return len(asked)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.wrap_future(asking.start())

    asking = CachedAnswer(ask, kept_s=LONG, within_s=LONG)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(asking.get) for _ in range(8)]
        eventually(lambda: len(asked) == 1)
        asyncio.run(give_up())
        go.set()
        assert [each.result() for each in found] == [1] * 8


def test_what_takes_long_is_asked_seldom() -> None:
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        time.sleep(0.05)
        return len(asked)

    asking = CachedAnswer(ask, kept_s=0, kept_factor=1000)
    assert [asking.get() for _ in range(3)] == [1, 1, 1]
    # But its server may have stood still for a moment.
    again = CachedAnswer(ask, kept_s=0, kept_factor=1000, max_kept_s=0)
    assert [again.get() for _ in range(2)] == [2, 3]
