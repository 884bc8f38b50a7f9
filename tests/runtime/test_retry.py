"""Waiting for a server: repeats, says so, gives up only when a stop is requested."""

import threading
from collections.abc import Callable

import pytest

from countersink.runtime.errors import GivenUp
from countersink.runtime.log import Log
from countersink.runtime.retry import TRIES_WHILE_STOPPING, Patience
from countersink.worker import Stop
from countersink.worker.report import LOGGER
from tests.support.entries import beside
from tests.worker.running import Records


class Away(Exception):
    """What the tests' server says."""


def patience(stop: Stop, *waits: Callable[[Exception], None]) -> Patience:
    log = Log(LOGGER, consumer="c")
    return Patience("MySQL", lambda error: isinstance(error, Away), stop, log, *waits)


def test_repeats_until_it_works_and_says_that_it_waited() -> None:
    calls: list[int] = []

    def work() -> str:
        calls.append(1)
        if len(calls) < 4:
            raise Away("not yet")
        return "done"

    with Records() as records:
        assert patience(Stop()).call(work) == "done"
    assert len(calls) == 4
    assert records.actions() == ["waiting", "resumed"]
    assert records.fields("waiting")[0]["error"] == "not yet"


def test_other_errors_are_raised_at_once() -> None:
    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        patience(Stop()).call(work)


def test_while_stopping_a_few_tries_are_made_and_the_work_is_abandoned() -> None:
    stop, calls = Stop(), []
    stop.request()

    def work() -> None:
        calls.append(1)
        raise Away("gone")

    with pytest.raises(GivenUp) as caught:
        patience(stop).call(work)
    assert len(calls) == TRIES_WHILE_STOPPING
    assert isinstance(caught.value.__cause__, Away)


def test_a_stop_wakes_the_waiting() -> None:
    stop, waiting = Stop(), threading.Event()

    def work() -> None:
        raise Away("gone")

    held = patience(stop, lambda _: waiting.set())
    with beside(lambda: held.call(work)) as waited:
        assert waiting.wait(20)
        stop.request()
        assert isinstance(waited.exception(20), GivenUp)
