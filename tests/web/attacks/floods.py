"""What goes on as long as somebody wants: new keys without end, and crowds of slow clients."""

import json

from countersink.runtime.limits import MAX_KEY_BYTES
from countersink.store import Store
from tests.support.waiting import eventually
from tests.web.attacks.asking import ask, post
from tests.web.attacks.crowd import WINDOW_BYTES, crowd, drip
from tests.web.attacks.target import Target
from tests.web.raw import answer, status

BATCH = 1_000
CAP = 100
"""Keys that the flooded counter may have in a day."""
SOME = 10
"""Connections of live traffic, and to the servers behind."""


def flood(target: Target, counter: str, keys: int) -> None:
    """Count so many keys that were never seen, as long as keys can be; few of them get rows."""
    with Store(target.mysql_url) as store:
        store.counters.set(counter, max_keys=CAP)
    for begin in range(0, keys, BATCH):
        names = [f"{number:0{MAX_KEY_BYTES}}" for number in range(begin, begin + BATCH)]
        batch = [{"counter": counter, "key": name} for name in names]
        assert post(target, json.dumps(batch).encode()) == 202


def flooded(target: Target, counter: str, keys: int) -> None:
    """Everything of the flood is counted, in few rows; this empties the queue first."""
    target.apply()
    with Store(target.mysql_url) as store:
        found = dict(store.totals.by_key(counter))
        assert len(found) == CAP + 1
        assert found["__overflow__"] == keys - CAP
        assert store.totals.total(counter) == keys
    shown = ask(target, "GET", f"/v1/counters/{counter}").json()
    assert shown["max_keys"] == CAP
    assert shown["overflown"] >= 1


def slow_and_deaf_clients(target: Target, share: float = 1.0) -> None:
    """Hundreds of clients (or a share of them) whose requests do not come to an end, or who do not
    take the answers: all of them are given up."""
    key = f"X-API-Key: {target.key}\r\n".encode()
    begin = b"POST /v1/increments HTTP/1.1\r\nHost: localhost\r\n" + key
    large = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    before = target.open_files()
    with (
        crowd(target, int(80 * share)) as heads,
        crowd(target, int(60 * share)) as bodies,
        crowd(target, int(60 * share)) as chunked,
        crowd(target, int(60 * share), window=WINDOW_BYTES) as deaf,
    ):
        drip(heads, begin + b"X-A: ")
        drip(bodies, begin + b"Content-Length: 100000\r\n\r\n")
        drip(chunked, begin + b"Transfer-Encoding: chunked\r\n\r\n")
        drip(deaf, large * 90)  # of which the kernel takes some megabytes
        eventually(lambda: target.open_files() >= before + len(deaf))

        def ended() -> bool:
            return not (drip(heads, b"a") + drip(bodies, b" ") + drip(chunked, b"1\r\n \r\n"))

        eventually(ended)
        for each in (*heads, *bodies, *chunked):
            said = answer(each)
            assert not said or status(said) == 408
        eventually(lambda: target.open_files() <= before + SOME)
