"""Stops and signals: whoever waits wakes at once, from whichever thread or handler it was asked."""

import os
import signal
import threading
import time

from countersink.runtime.process import Stop, signal_queue


def test_a_stop_wakes_all_who_wait_and_stays() -> None:
    stop, woken = Stop(), []

    def wait() -> None:
        woken.append(stop.wait(60))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not stop.wait(0)
    for _ in range(2):
        stop.request()
    for thread in threads:
        thread.join(20)
    assert woken == [True, True, True]
    assert stop.requested
    assert stop.wait(60)


def test_a_signal_handler_may_ask_while_its_own_thread_waits() -> None:
    stop = Stop()
    before = signal.signal(signal.SIGUSR1, lambda *_: stop.request())
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    begun = time.monotonic()
    try:
        timer.start()
        assert stop.wait(60)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - begun < 30


def test_signals_are_queued_in_their_order_and_handlers_put_back() -> None:
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    with signal_queue(numbers) as queue:
        assert queue.next(0) is None
        for number in (signal.SIGUSR2, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        assert [queue.next(20), queue.next(20)] == [signal.SIGUSR2, signal.SIGUSR1]
        assert queue.next(0) is None
    assert [signal.getsignal(number) for number in numbers] == before
