"""Producers under gevent and eventlet, patched before or after they are imported, made or used."""

import signal
import sys
from itertools import product

import pytest
import redis

from countersink.stream.connection import connect
from tests.producers.helpers import said, total
from tests.support.factories import RedisFactory
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

LIBRARIES = ("gevent", "eventlet")
BEGINNINGS = {
    "pi": "patched before the import",
    "ip": "patched after the import",
    "icp": "patched when it has counted",
    "ifp": "patched in a child, as by gunicorn --preload",
    "icfp": "patched in a child of one that has counted",
    "picf": "patched, then forked",
}
SHORT = (("gevent", "ifp", "exit"), ("gevent", "pi", "SIGTERM"), ("eventlet", "pi", "SIGTERM"))
EITHER = ("gevent", pytest.param("eventlet", marks=pytest.mark.long("the other library")))
LONG = pytest.mark.long("the matrix of libraries, beginnings and ends")


def start(children: Children, library: str, beginning: str, end: str, url: str) -> Child:
    return children.start(
        [
            *(sys.executable, "-W", "ignore::DeprecationWarning"),
            *("-m", "tests.processes.greenlets", library, beginning, end, url),
        ],
        name=f"{library} {beginning}",
    )


def steps(child: Child) -> dict[str, tuple[object, int]]:
    return {step: (result, ticks) for step, result, ticks in said(child)}


@pytest.mark.parametrize(
    ("library", "beginning", "end"),
    [
        pytest.param(*case, marks=() if case in SHORT else LONG)
        for case in product(LIBRARIES, BEGINNINGS, ("exit", "SIGTERM"))
    ],
)
def test_greenlets_count_and_flush_and_their_process_ends(
    library: str, beginning: str, end: str, redis_url: str, redis_client: redis.Redis
) -> None:
    terminated = 128 + signal.SIGTERM if "f" in beginning else -signal.SIGTERM
    with Children() as children:
        child = start(children, library, beginning, end, redis_url)
        assert child.wait() == (0 if end == "exit" else terminated), child.output()
        assert steps(child)["flushed"][0] is True, child.output()
        # Import locks are of greenlets, too: a thread that needs one waits for the main thread.
        assert steps(child)["imported aside"][0] == [], child.output()
    assert total(redis_client) == 1_500


@pytest.mark.parametrize("library", EITHER)
def test_no_greenlet_goes_on_while_an_exit_stores_what_they_have_counted(
    library: str, redis_url: str, redis_client: redis.Redis
) -> None:
    with Children() as children:
        child = start(children, library, "pi", "busy", redis_url)
        assert child.wait() == 0, child.output()
        counted, _ = steps(child)["busy"]
    assert counted == total(redis_client, "busy")


@pytest.mark.parametrize("library", EITHER)
def test_other_greenlets_go_on_while_one_waits_for_a_frozen_redis(
    library: str, own_redis_server: RedisFactory
) -> None:
    server = own_redis_server()
    server.freeze()
    with Children() as children:
        child = start(children, library, "ip", "never", server.url)
        eventually(lambda: "ready" in steps(child), message=child.output)
        flushed, ticks = steps(child)["flushed"]
        assert flushed is False
        assert ticks > 100, "within 2 s, one every ms if nothing is in the way"
        server.thaw()
        child.terminate()
        assert child.wait() == -signal.SIGTERM
    with connect(server.url) as client:
        assert total(client) == 1_500
