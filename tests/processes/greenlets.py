"""A program of greenlets that count, patched by gevent or eventlet at some point of its beginning.

`python -m tests.processes.greenlets gevent|eventlet BEGINNING END REDIS_URL`:

BEGINNING is a list of what is done one after the other, a letter each: p patch, i import the
producer and make it, c count and flush, f fork (and the child goes on). It then lets ten greenlets
count 1,000 while another one ticks, flushes and counts 500 more. END is `exit`, `busy` (an exit
while a greenlet counts and says so), `SIGTERM` (which it sends itself), or `never`. Each step is a
line of JSON: its name, what it returned, and how often the other one ticked meanwhile.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

library, beginning, end, url = sys.argv[1:]
producer: Any = None
ticks = 0


imported_aside: list[str] = []


class Finder:
    """Notes what is imported by another thread than the main one; finds nothing."""

    @staticmethod
    def find_spec(name: str, *ignored: object) -> None:
        if threading.get_native_id() != os.getpid():
            imported_aside.append(name)


def patch() -> None:
    if library == "gevent":
        from gevent import monkey  # noqa: PLC0415

        monkey.patch_all()
    else:
        import eventlet  # noqa: PLC0415

        eventlet.monkey_patch()


def make() -> None:
    from countersink.producers import Producer  # noqa: PLC0415

    global producer
    producer = Producer(url, flush_interval=3600)


def count() -> None:
    producer.increment("before")
    assert producer.flush(20)


def fork() -> None:
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(code if code >= 0 else 128 - code)  # as a shell says it


def say(step: str, result: object, before: int) -> None:
    print(json.dumps([step, result, ticks - before]), flush=True)


def main() -> None:
    sys.meta_path.insert(0, Finder)
    steps: dict[str, Callable[[], None]] = {"p": patch, "i": make, "c": count, "f": fork}
    for letter in beginning:
        steps[letter]()
    green = __import__(library)

    def tick() -> None:
        global ticks
        while True:
            ticks += 1
            green.sleep(0.001)

    done = []

    def work() -> None:
        for number in range(100):
            producer.increment("hits", str(number))
            green.sleep(0)
        done.append(1)

    def count_on() -> None:
        number = 0
        while True:
            producer.increment("busy")
            number += 1
            say("busy", number, 0)
            green.sleep(0)

    green.spawn(tick)
    for _ in range(10):
        green.spawn(work)
    while len(done) < 10:
        green.sleep(0.01)
    say("counted", True, 0)
    before = ticks
    say("flushed", producer.flush(2), before)
    for _ in range(500):
        producer.increment("hits", "last")
    say("imported aside", imported_aside, ticks)
    say("ready", producer.stats().accepted, ticks)
    if end == "busy":
        green.spawn(count_on)
        green.sleep(0.2)
    if end in ("exit", "busy"):
        return
    if end == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    while True:
        green.sleep(1)


if __name__ == "__main__":
    main()
