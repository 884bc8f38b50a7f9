"""An answer of what may hang: nobody waits for long, and it is asked once."""

import threading

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


def test_what_raises_has_no_answer() -> None:
    def ask() -> int:
        raise OSError("away")

    assert CachedAnswer(ask, kept_s=0, within_s=LONG).get() is None


def test_what_hangs_is_asked_once_and_nobody_waits_again() -> None:
    released, asked = threading.Event(), []

    def ask() -> int:
        asked.append(1)
        released.wait(60)
        return 5

    asking = CachedAnswer(ask, kept_s=LONG, within_s=0.05)
    threads = [threading.Thread(target=asking.get) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for _ in range(1000):
        assert asking.get() is None
    assert len(asked) == 1
    released.set()
    eventually(lambda: asking.get() == 5)
    assert len(asked) == 1


def test_many_who_ask_at_once_share_one_answer() -> None:
    asked, found = [], []
    go = threading.Event()

    def ask() -> int:
        asked.append(1)
        go.wait(60)
        return len(asked)

    asking = CachedAnswer(ask, kept_s=LONG, within_s=LONG)
    threads = [threading.Thread(target=lambda: found.append(asking.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(asked) == 1)
    go.set()
    for thread in threads:
        thread.join(60)
    assert found == [1] * 8
