"""Forked children: a buffer, a connection, threads of their own, and no row of their parent's."""

import pytest

from tests.producers.helpers import Queue, distinct, entries, play, total, totals
from tests.support.examples import MANY


def test_a_forked_child_never_sends_its_parents_rows(queue: Queue) -> None:
    script = """
    import json, os, sys
    from countersink.producers import Producer
    producer = Producer(sys.argv[1], flush_interval=3600)
    for _ in range(1000):
        producer.increment("hits", "parent")
    producer.increment("hits", "parent", 2)
    producer.increment("hits", "parent", id="p")
    producer.increment_many("hits", {"parent": 1})
    pid = os.fork()
    if pid == 0:
        assert producer.stats().accepted == 0
        for _ in range(10):
            producer.increment("hits", "child")
        pid = os.fork()
        if pid == 0:
            producer.increment("hits", "grandchild")
            os._exit(0 if producer.close() else 1)
        assert os.waitpid(pid, 0)[1] == 0
        os._exit(0 if producer.close() and producer.stats().stored == 10 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    producer.increment("hits", "parent")
    assert producer.close()
    assert producer.stats().stored == 1004
    """
    play(script, queue.url)
    assert totals(queue.client) == {
        ("hits", "parent"): 1005,
        ("hits", "child"): 10,
        ("hits", "grandchild"): 1,
    }


@pytest.mark.random
def test_forks_in_the_midst_of_everything(queue: Queue) -> None:
    # Threads count and flush while another forks: no lock may be left held, no row sent twice.
    script = """
    import os, sys, threading
    from countersink.producers import Producer
    sys.setswitchinterval(1e-5)
    producer = Producer(sys.argv[1], flush_interval=0.001)
    stop = threading.Event()
    counted = [0, 0]
    def count(number):
        while not stop.is_set():
            for _ in range(100):
                producer.increment("hits", "parent")
                counted[number] += 1
            producer.stats()
            producer.flush(1)
    threads = [threading.Thread(target=count, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(int(sys.argv[2])):
        pid = os.fork()
        if pid == 0:
            for _ in range(100):
                producer.increment("hits", "child")
            os._exit(0 if producer.close(20) else 1)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert producer.close(20)
    print([sum(counted), producer.stats().stored])
    """
    forks = 40 if MANY else 15
    ((counted, stored),) = play(script, queue.url, str(forks))
    found = totals(queue.client)
    assert counted == stored == found["hits", "parent"]
    assert found["hits", "child"] == 100 * forks
    assert len(distinct(entries(queue.client))) == len(entries(queue.client))


def test_children_of_multiprocessing_are_flushed(queue: Queue) -> None:
    script = """
    import multiprocessing, sys
    from countersink.producers import Producer
    def work(producer):
        producer.increment("hits", "first")  # it is sent at once
        producer.flush(20)
        for _ in range(10):
            producer.increment("hits", "forked")
    def work_spawned(url):
        producer = Producer(url, flush_interval=3600)
        producer.increment("hits", "first")
        producer.flush(20)
        producer.increment("hits", "pooled")
    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        producer = Producer(sys.argv[1], flush_interval=3600)
        producer.increment("hits", "main")
        children = [context.Process(target=work, args=(producer,)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
        with context.Pool(2) as pool:
            pool.map(work_spawned, [sys.argv[1]] * 4)
            pool.close()
            pool.join()
    """
    play(script, queue.url)
    assert totals(queue.client) == {
        ("hits", "forked"): 30,
        ("hits", "main"): 1,
        ("hits", "pooled"): 4,
        ("hits", "first"): 3 + 4,
    }
    assert total(queue.client) == 42
