"""The ends of a process: exit, exceptions, SIGTERM with and without the app's own handler."""

from __future__ import annotations

import os
import signal

import redis

from tests.producers.helpers import run_script, said, total
from tests.support.factories import RedisFactory
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

BEGINNING = """
import os, signal, sys, threading, time
from countersink.producers import Producer
{before}
producer = Producer(sys.argv[1], flush_interval=3600)
for _ in range(100):
    producer.increment("hits")
print("{{}}", flush=True)
"""
FOR_EVER = """
while True:
    signal.pause()
"""


def start(
    children: Children, url: str, *, before: str = "", then: str = FOR_EVER, ready: bool = True
) -> Child:
    """A process that has counted 100, with the next flush an hour away, when this returns."""
    child = run_script(children, BEGINNING.format(before=before) + then, url)
    if ready:
        eventually(lambda: said(child), message=child.output)
    return child


def test_an_exit_flushes(redis_url: str, redis_client: redis.Redis) -> None:
    with Children() as children:
        assert start(children, redis_url, then="", ready=False).wait() == 0
    assert total(redis_client) == 100


def test_an_unhandled_exception_flushes(redis_url: str, redis_client: redis.Redis) -> None:
    with Children() as children:
        assert start(children, redis_url, then="1/0", ready=False).wait() == 1
    assert total(redis_client) == 100


def test_counting_in_a_later_exit_hook_is_not_an_error(
    redis_url: str, redis_client: redis.Redis
) -> None:
    before = """
import atexit
def hook():
    producer.increment("hits")
    producer.increment_many("hits", {"a": 1, "b": 1})
    assert producer.stats().dropped == 3, producer.stats()
    print("hooked")
# run in reverse order, so after ours, which was registered at the import
import countersink.producers.lifecycle as lifecycle
atexit.unregister(lifecycle.close_all)
atexit.register(hook)
atexit.register(lifecycle.close_all)
"""
    with Children() as children:
        child = start(children, redis_url, before=before, then="", ready=False)
        assert child.wait() == 0
        assert "hooked" in child.output()
        assert "Traceback" not in child.output()
    assert total(redis_client) == 100


def test_sigterm_flushes_and_ends_as_sigterm_does(
    redis_url: str, redis_client: redis.Redis
) -> None:
    with Children() as children:
        child = start(children, redis_url)
        child.terminate()
        assert child.wait() == -signal.SIGTERM
    assert total(redis_client) == 100


def test_sigterm_reaches_a_busy_process(redis_url: str, redis_client: redis.Redis) -> None:
    then = """
while True:
    producer.increment("more")
    producer.stats()
"""
    with Children() as children:
        child = start(children, redis_url, then=then)
        child.terminate()
        assert child.wait() == -signal.SIGTERM
    assert total(redis_client) == 100


def test_a_second_sigterm_does_not_cut_the_flush_short(
    own_redis_server: RedisFactory,
) -> None:
    server = own_redis_server()
    server.freeze()
    with Children() as children:
        child = start(children, server.url)
        for _ in range(3):
            child.terminate()
        server.thaw()
        assert child.wait() == -signal.SIGTERM
    with redis.Redis.from_url(server.url) as client:
        assert client.xlen("{countersink:0}:events") == 1


def test_sigterm_ends_the_process_even_if_redis_is_frozen(own_redis_server: RedisFactory) -> None:
    server = own_redis_server()
    server.freeze()
    with Children() as children:
        child = start(
            children, server.url, before="Producer.__init__.__kwdefaults__['exit_timeout'] = 0.5"
        )
        child.terminate()
        assert child.wait() == -signal.SIGTERM


def test_the_apps_own_handler_is_called(redis_url: str, redis_client: redis.Redis) -> None:
    before = """
def stop(number, frame):
    producer.increment("hits")
    print("own handler", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, stop)
"""
    with Children() as children:
        child = start(children, redis_url, before=before)
        child.terminate()
        assert child.wait() == 7
        assert "own handler" in child.output()
    assert total(redis_client) == 101


def test_an_app_that_goes_on_after_sigterm_is_flushed_at_each(
    redis_url: str, redis_client: redis.Redis
) -> None:
    before = "signal.signal(signal.SIGTERM, lambda *_: None)"
    with Children() as children:
        child = start(children, redis_url, before=before)
        child.terminate()
        eventually(lambda: total(redis_client) == 100)
        assert child.running
        child.kill()


def test_an_ignored_sigterm_stays_ignored(redis_url: str) -> None:
    before = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    then = """
assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
os.kill(os.getpid(), signal.SIGTERM)
print("still here")
"""
    with Children() as children:
        child = start(children, redis_url, before=before, then=then)
        assert child.wait() == 0
        assert "still here" in child.output()


def test_a_handler_of_the_apps_installed_later_wins(
    redis_url: str, redis_client: redis.Redis
) -> None:
    then = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("[]", flush=True)
signal.pause()
"""
    with Children() as children:
        child = start(children, redis_url, then=then)
        eventually(lambda: len(said(child)) == 2, message=child.output)
        child.terminate()
        assert child.wait() == 3
    assert total(redis_client) == 100


def test_closing_puts_back_what_was_there(redis_url: str) -> None:
    before = """
def own(number, frame): pass
signal.signal(signal.SIGTERM, own)
"""
    then = """
assert signal.getsignal(signal.SIGTERM) is not own
other = Producer(sys.argv[1])
producer.close()
assert signal.getsignal(signal.SIGTERM) is not own
other.close()
assert signal.getsignal(signal.SIGTERM) is own
again = Producer(sys.argv[1], handle_sigterm=False)
assert signal.getsignal(signal.SIGTERM) is own
"""
    with Children() as children:
        child = start(children, redis_url, before=before, then=then)
        assert child.wait() == 0, child.output()


def test_a_producer_made_in_a_thread_installs_nothing(redis_url: str) -> None:
    script = """
import signal, sys, threading
from countersink.producers import Producer
made = []
thread = threading.Thread(target=lambda: made.append(Producer(sys.argv[1])))
thread.start()
thread.join()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
made[0].increment("hits")
"""
    with Children() as children:
        child = run_script(children, script, redis_url)
        assert child.wait() == 0, child.output()


def test_a_child_that_is_terminated_flushes_its_own(
    redis_url: str, redis_client: redis.Redis
) -> None:
    then = """
pid = os.fork()
if pid == 0:
    producer.increment("child")
    print("[]", flush=True)
    while True:
        signal.pause()
print([pid], flush=True)
status = os.waitpid(pid, 0)[1]
assert os.WTERMSIG(status) == signal.SIGTERM, status
"""
    with Children() as children:
        child = start(children, redis_url, then=then)
        eventually(lambda: len(said(child)) == 3, message=child.output)
        (pid,) = next(line for line in said(child) if line and isinstance(line, list))
        os.kill(pid, signal.SIGTERM)
        assert child.wait() == 0, child.output()
    assert total(redis_client, "child") == 1
    assert total(redis_client) == 100
