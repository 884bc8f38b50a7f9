"""Ends of a process: exit, exceptions, `os._exit`, exec, signals that the app handles or not."""

import signal
from pathlib import Path

import pytest
import redis

from tests.producers.helpers import Queue, run_script, said, total
from tests.support.factories import RedisFactory
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

BEGINNING = """
import os, signal, sys, threading, time
from countersink.producers import Producer
{before}
producer = Producer(sys.argv[1], flush_interval=3600)
producer.increment("first")  # it is sent at once; what follows waits for the interval
assert producer.flush(20)
for _ in range(100):
    producer.increment("{counter}")
print("{{}}", flush=True)
"""
FAST_EXIT = """
from countersink.producers import Options
Options.__init__.__kwdefaults__["exit_timeout"] = 0.5
"""
# Not signal.pause(): it sleeps on where a signal comes after the interpreter's last look for one
# and before the system call, as happens when other threads want the interpreter, too.
FOR_EVER = """
while True:
    time.sleep(0.05)
"""


class Start:
    """Starts processes that have counted 100, with the next flush an hour away, and tells what is
    stored.
    """

    def __init__(self, queue: Queue, children: Children) -> None:
        self._queue = queue
        self._children = children

    def __call__(
        self,
        url: str = "",
        *arguments: str,
        before: str = "",
        then: str = FOR_EVER,
        ready: bool = True,
        counter: str = "hits",
        status: int | None = None,
    ) -> Child:
        """A process that has counted, or, where a status is named, has ended with that."""
        script = BEGINNING.format(before=before, counter=counter) + then
        child = run_script(self._children, script, url or self._queue.url, *arguments)
        if status is not None:
            assert child.wait() == status, child.output()
        elif ready:
            eventually(lambda: said(child), message=child.output)
        return child

    def total(self, counter: str = "hits") -> int:
        return total(self._queue.client, counter)


@pytest.fixture
def start(queue: Queue, children: Children) -> Start:
    return Start(queue, children)


FORK = "if os.fork(): os._exit(os.waitstatus_to_exitcode(os.wait()[1]))"
COUNT_AND_EXIT = """
producer.increment({counter!r})
os._exit(7)
"""
EXEC = """
try:
    os.execlp("no such program", "x")
except FileNotFoundError:
    producer.increment({counter!r})
os.execlp("true", "true")
"""
# What a script does at its end, the status that it ends with, and what it has counted.
ENDS = {
    "exit": ("", 0, 100),
    "unhandled": ("1/0", 1, 100),
    "os._exit": (COUNT_AND_EXIT, 7, 101),
    "os._exit-in-a-child": (FORK + COUNT_AND_EXIT, 7, 101),
    "exec": (EXEC, 0, 101),
}


def test_every_end_flushes(start: Start) -> None:
    """And an exec of a program that is not there ends nothing."""
    children = {
        name: start(then=end.format(counter=name), ready=False, counter=name)
        for name, (end, _, _) in ENDS.items()
    }
    for name, (_, status, counted) in ENDS.items():
        assert (children[name].wait(), start.total(name)) == (status, counted), name


def test_counting_in_a_later_exit_hook_is_not_an_error(start: Start) -> None:
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
    child = start(before=before, then="", status=0)
    assert "hooked" in child.output()
    assert "Traceback" not in child.output()
    assert start.total() == 100


def test_signals_flush_and_end_as_they_do(start: Start) -> None:
    before = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what SIGQUIT leaves
signal.signal(signal.SIGINT, signal.SIG_DFL)
"""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
    children = {number: start(before=before, counter=number.name) for number in numbers}
    for number, child in children.items():
        child.send(number)
    for number, child in children.items():
        assert child.wait() == -number
        assert start.total(number.name) == 100


BUSY = """
while True:
    producer.increment("more")
    producer.stats()
"""
BLOCKING_LOG = f"""
import logging
from countersink.producers import lifecycle
lifecycle.CLOSING_SECONDS = 1.0
class Blocked(logging.Handler):
    def emit(self, record):
        time.sleep(3600)
logging.getLogger("countersink.producers").addHandler(Blocked())
logging.getLogger("countersink.producers").setLevel(logging.INFO)
{FAST_EXIT}
"""
COUNTING_LOG = """
import logging
from countersink.producers import lifecycle
lifecycle.GRACE_SECONDS = 0.5
class Counting(logging.Handler):
    def emit(self, record):
        producer.increment("records")
logging.getLogger().addHandler(Counting())
logging.getLogger().setLevel(logging.INFO)
def talk():
    while True:
        logging.info("here")
"""
TALKING = "threading.Thread(target=talk, daemon=True).start()" + FOR_EVER


OWN_HANDLER = """
def stop(number, frame):
    producer.increment("hits")
    sys.exit(7)
signal.signal(signal.SIGTERM, stop)
"""


@pytest.mark.parametrize(
    ("before", "then", "status", "counted"),
    [
        pytest.param("", BUSY, -signal.SIGTERM, 100, id="a busy process"),
        pytest.param(BLOCKING_LOG, FOR_EVER, -signal.SIGTERM, 100, id="a log that blocks"),
        pytest.param(COUNTING_LOG, TALKING, -signal.SIGTERM, 100, id="a log handler that counts"),
        pytest.param(OWN_HANDLER, FOR_EVER, 7, 101, id="the app's own handler"),
    ],
)
def test_sigterm_ends(start: Start, before: str, then: str, status: int, counted: int) -> None:
    child = start(before=before, then=then)
    child.terminate()
    assert child.wait() == status
    assert start.total() == counted


def test_an_app_that_goes_on_after_sigterm_is_flushed_at_each(start: Start) -> None:
    before = "signal.signal(signal.SIGTERM, lambda *_: None)"
    child = start(before=before)
    child.terminate()
    eventually(lambda: start.total() == 100)
    assert child.running
    child.kill()


def test_handlers_of_the_apps_are_left_alone_or_put_back_by_closing(start: Start) -> None:
    before = """
def own(*_): pass
signal.signal(signal.SIGTERM, own)
signal.signal(signal.SIGHUP, own)
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_DFL)
import faulthandler
faulthandler.register(signal.SIGINT)  # in C: Python says that it has its default
"""
    then = """
assert signal.getsignal(signal.SIGHUP) is own
assert signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN
assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
for number in 0, signal.SIGQUIT, signal.SIGINT:
    os.kill(os.getpid(), number)
producer.increment("hits")
assert signal.getsignal(signal.SIGTERM) is not own
other = Producer(sys.argv[1])
producer.close()
assert signal.getsignal(signal.SIGTERM) is not own
other.close()
assert signal.getsignal(signal.SIGTERM) is own
again = Producer(sys.argv[1], handle_sigterm=False)
assert signal.getsignal(signal.SIGTERM) is own
"""
    assert "Current thread" in start(before=before, then=then, status=0).output()


def test_what_is_counted_until_a_server_ends_by_the_signal_it_had_caught_is_stored(
    start: Start,
) -> None:
    """As uvicorn's workers do, and Twisted."""
    before = """
asked = []
default = signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
"""
    then = """
while not asked:
    time.sleep(0.001)
time.sleep(0.05)  # longer than the flush that the signal has begun
producer.increment({counter!r})
signal.signal(signal.SIGTERM, default)
def end():
    {again}
    time.sleep(60)
if {thread}:
    threading.Thread(target=end).start()
    time.sleep(60)
end()
"""
    calls = ("signal.raise_signal(signal.SIGTERM)", "os.kill(os.getpid(), signal.SIGTERM)")
    ways = [(again, thread) for again in calls for thread in (False, True)]
    children = [
        start(
            before=before,
            then=then.format(again=again, thread=thread, counter=f"way-{number}"),
            counter=f"way-{number}",
        )
        for number, (again, thread) in enumerate(ways)
    ]
    for child in children:
        child.terminate()
    for number, child in enumerate(children):
        assert child.wait() == -signal.SIGTERM, ways[number]
        assert start.total(f"way-{number}") == 101, ways[number]


COUNTING = """
import mmap, struct
returned = mmap.mmap(os.open(sys.argv[2], os.O_RDWR), 4096)
def count(place):
    calls = 0
    while True:
        {call}
        calls += 1
        struct.pack_into("q", returned, 8 * place, calls)
for place in range(4):
    threading.Thread(target=count, args=(place,), daemon=True).start()
"""


PLAIN = 'producer.increment("more")'
DATED = 'producer.increment("more", "x", 1, at=AT)'
EXITS = ("time.sleep(0.1); os._exit(0)", "time.sleep(0.1)")
BOTH = pytest.mark.long("each call at each end")


@pytest.mark.parametrize(
    ("call", "end"),
    [
        *((PLAIN, FOR_EVER), (DATED, FOR_EVER)),
        *((PLAIN, end) for end in EXITS),
        *(pytest.param(DATED, end, marks=BOTH) for end in EXITS),
    ],
)
def test_no_call_that_returned_while_the_process_ended_is_lost(
    start: Start, queue: Queue, tmp_path: Path, call: str, end: str
) -> None:
    shared = tmp_path / "returned"
    shared.write_bytes(bytes(4096))
    before = "from datetime import UTC, datetime\nAT = datetime.now(UTC)"
    then = COUNTING.format(call=call) + end
    child = start(queue.url, str(shared), before=before, then=then)
    eventually(lambda: all(memoryview(shared.read_bytes())[:32].cast("q")))
    if end == FOR_EVER:
        child.terminate()
    assert child.wait() == (-signal.SIGTERM if end == FOR_EVER else 0), child.output()
    returned = sum(memoryview(shared.read_bytes())[:32].cast("q"))
    # A call that the end has met is stored or not.
    assert returned <= total(queue.client, "more") <= returned + 4


def test_signals_do_not_cut_the_last_flush_short(
    start: Start, own_redis_server: RedisFactory
) -> None:
    server = own_redis_server()
    before = """
signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
"""
    then = """
def watch():
    from countersink.producers import lifecycle
    while not lifecycle._end.closing:
        time.sleep(0.001)
    print([], flush=True)
threading.Thread(target=watch).start()
"""
    exiting = start(server.url, before=before, then=then + FOR_EVER)
    terminated = start(server.url)
    server.freeze()
    exiting.send(signal.SIGUSR1)
    eventually(lambda: len(said(exiting)) == 2, message=exiting.output)
    for _ in range(3):
        exiting.terminate()
        terminated.terminate()
    server.thaw()
    assert exiting.wait() == 7
    assert terminated.wait() == -signal.SIGTERM
    with redis.Redis.from_url(server.url) as client:
        assert client.xlen("{countersink:0}:events") == 4


CLOSING = """
    threading.Thread(target=producer.close, args=(3600,), daemon=True).start()
    while producer._closing.acquire(blocking=False):
        producer._closing.release()
    os._exit(0)
"""


def test_with_redis_frozen_a_process_ends_and_says_what_is_not_stored(
    start: Start, own_redis_server: RedisFactory
) -> None:
    server = own_redis_server()
    ends = {
        "os._exit(7)": (7, "100 increments could be stored neither"),
        'os.execlp("true", "true")': (0, "100 increments not stored"),
        CLOSING: (0, "100 increments not stored"),
    }
    before = "import logging; logging.basicConfig()" + FAST_EXIT
    at_usr1 = """
def end(*_):
    {}
signal.signal(signal.SIGUSR1, end)
"""
    children = [start(server.url, before=before + at_usr1.format(end)) for end in ends]
    terminated = start(server.url, before=before)
    server.freeze()
    terminated.terminate()
    for child in children:
        child.send(signal.SIGUSR1)
    for child, (status, said_then) in zip(children, ends.values(), strict=True):
        assert child.wait() == status
        assert said_then in child.output()
    assert terminated.wait() == -signal.SIGTERM
    assert "100 increments could be stored neither" in terminated.output()


def test_hooks_are_put_once_where_a_producer_wants_them(start: Start) -> None:
    before = """
functions = os._exit, os.execv, os.execve, os.kill, signal.raise_signal
def now():
    return os._exit, os.execv, os.execve, os.kill, signal.raise_signal
from countersink.producers import Options
Options.__init__.__kwdefaults__ |= {"handle_sigterm": False, "handle_os_exit": False}
"""
    then = """
assert now() == functions
Producer(sys.argv[1], handle_os_exit=True)
assert now()[3:] == functions[3:]
Producer(sys.argv[1], handle_sigterm=True, handle_os_exit=True)
assert not any(one is other for one, other in zip(functions, now()))
def theirs(status, ours=os._exit):
    ours(status + 1)
os._exit = theirs
third = Producer(sys.argv[1], handle_os_exit=True)
assert os._exit is theirs
third.increment("hits")
os._exit(6)
"""
    start(before=before, then=then, status=7)
    assert start.total() == 101


def test_no_thread_of_ours_takes_a_signal_that_the_app_blocks(start: Start) -> None:
    then = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
for number in signal.SIGUSR1, signal.SIGTERM:
    os.kill(os.getpid(), number)
    producer.increment("hits")
assert producer.flush()
assert signal.sigwait({signal.SIGTERM}) == signal.SIGTERM
assert signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1
producer.increment("hits")
sys.exit(9)
"""
    start(then=then, status=9)
    assert start.total() == 103


@pytest.mark.parametrize(
    "first", ["", "signal.signal(signal.SIGTERM, signal.SIG_DFL)"], ids=["", "as RQ's work horses"]
)
def test_a_child_that_is_terminated_flushes_its_own_also_if_a_default_came_back(
    start: Start, first: str
) -> None:
    then = """
read_end, write_end = os.pipe()
pid = os.fork()
if pid == 0:
    {first}
    producer.increment("child")
    producer.flush(20)
    producer.increment("child")
    os.write(write_end, b"!")
    while True:
        time.sleep(0.05)
os.read(read_end, 1)
os.kill(pid, signal.SIGTERM)
status = os.waitpid(pid, 0)[1]
assert os.WTERMSIG(status) == signal.SIGTERM, status
"""
    start(then=then.format(first=first), status=0)
    assert start.total("child") == 2
    assert start.total() == 100


def test_a_producer_made_in_a_thread_handles_signals_only_once_the_main_thread_counts(
    queue: Queue, children: Children
) -> None:
    script = """
    import signal, sys, threading, time
    from countersink.producers import Producer
    made = []
    thread = threading.Thread(target=lambda: made.append(Producer(sys.argv[1], flush_interval=60)))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    for _ in range(100):
        made[0].increment("hits")
    print([], flush=True)
    while True:
        time.sleep(0.05)
    """
    child = run_script(children, script, queue.url)
    eventually(lambda: said(child), message=child.output)
    child.terminate()
    assert child.wait() == -signal.SIGTERM
    assert total(queue.client) == 100
