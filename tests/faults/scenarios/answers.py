"""Replies that are lost, and errors in their place."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import cycle, product
from typing import TypeVar
from urllib.parse import urlsplit

from countersink.producers import Producer
from tests.faults.stage import ACKNOWLEDGE, APPLIED_WITHIN, FAST_WORKER, Stage
from tests.support.oracle import Oracle
from tests.support.proxies import Deed, Phase, Request
from tests.support.traffic import FIRST_MINUTE, add
from tests.support.waiting import eventually

T = TypeVar("T")

CONFLICTS = (1205, 1213, 1020)
WAITS = (1290, 1836, 1792, 1142, 1021, 1114)
"""Read-only, a revoked grant, a full disk: the worker waits until it is over."""
REFUSALS = 5
"""How often in a row: more often than an entry may fail before somebody might give it up."""


def statements_of_a_batch(stage: Stage) -> list[str]:
    """The kinds of statement a worker sends from BEGIN to COMMIT, found by watching one batch."""
    seen = stage.mysql_proxy.seen
    seen.clear()
    _send_with_a_poison_row(stage)
    eventually(lambda: stage.backlog() == 0, APPLIED_WITHIN)
    requests = list(seen)
    end = max(at for at, request in enumerate(requests) if request.kind == "commit")
    connection = requests[end].connection
    kinds: list[str] = []
    for request in reversed(requests[: end + 1]):
        if request.connection == connection:
            kinds.insert(0, request.kind)
            if request.kind == "begin":
                break
    assert {"control", "guards", "slots", "ledger", "dead", "commit"} <= set(kinds), kinds
    return list(dict.fromkeys(kinds))


def conflicts_at_every_statement(stage: Stage, *, one_of_them: bool = False) -> None:
    """1205, 1213 and 1020, or one of them, in place of every statement of a batch, COMMIT too."""
    worker = stage.worker()
    kinds = statements_of_a_batch(stage)
    cases = _cases(stage, kinds, CONFLICTS, one_of_them)
    for kind, code in cases:
        rule = stage.when(kind, Phase.BEFORE, Deed.ERROR, error=code)
        _send_with_a_poison_row(stage)
        stage.wait_for(rule.done, f"{code} at {kind}", worker)
        stage.wait_applied()
        stage.check(f"{code} at {kind}")
    stage.end(worker)


def connection_lost_at_every_statement(stage: Stage, *, one_of_them: bool = False) -> None:
    """The connection is cut before, and after, the server ran each statement of a batch; or at one
    of the two."""
    worker = stage.worker()
    for kind, phase in _cases(stage, statements_of_a_batch(stage), list(Phase), one_of_them):
        rule = stage.when(kind, phase, Deed.CUT)
        _send_with_a_poison_row(stage)
        stage.wait_for(rule.done, f"cut {phase.value} {kind}", worker)
        stage.wait_applied()
        stage.check(f"cut {phase.value} {kind}")
    stage.end(worker)


def commit_replies_lost(stage: Stage) -> None:
    """The server commits three times in a row without the worker hearing of it."""
    rule = stage.when("commit", Phase.AFTER, Deed.CUT, times=3)
    worker = stage.worker(batch_entries=5)
    stage.send(30)
    stage.wait_acted(rule, 3, worker)
    stage.wait_applied()
    stage.end(worker)
    stage.check("COMMIT replies lost")


def waiting_errors(stage: Stage, errors: int = 3) -> None:
    """Errors that are nobody's fault but the server's: the worker waits, and loses nothing."""
    worker = stage.worker()
    for code in stage.random.sample(WAITS, errors):
        kind = stage.random.choice(("guards", "slots", "ledger", "commit"))
        rule = stage.when(kind, Phase.BEFORE, Deed.ERROR, error=code, times=REFUSALS)
        stage.send(5)
        stage.wait_acted(rule, REFUSALS, worker)
        stage.wait_applied()
        stage.check(f"{code} at {kind}")
    stage.end(worker)


def grant_revoked(stage: Stage) -> None:
    """The worker's own account loses INSERT on a table, and later gets it back."""
    parts = urlsplit(stage.mysql_url)
    database = parts.path.lstrip("/")
    with Oracle(stage.mysql_url) as oracle:
        oracle.rows("CREATE USER counting@'127.0.0.1' IDENTIFIED BY 'counting'")
        try:
            rights = f"SELECT, INSERT, UPDATE, DELETE ON `{database}`.*"
            oracle.rows(f"GRANT {rights} TO counting@'127.0.0.1'")
            url = f"mysql://counting:counting@127.0.0.1:{stage.mysql_proxy.port}/{database}"
            worker = stage.children.worker(stage.redis_server.url, url, **FAST_WORKER)
            stage.send(3)
            stage.wait_applied()
            oracle.rows(f"REVOKE INSERT ON `{database}`.* FROM counting@'127.0.0.1'")
            stage.faults["grant revoked"] += 1
            stage.mysql_proxy.cut_all()  # a session keeps the rights it began with
            refused = stage.when(
                "guards", Phase.AFTER, Deed.PASS, times=0, where=_is_error, label="denied"
            )
            stage.send(3)
            stage.wait_acted(refused, REFUSALS, worker)
            oracle.rows(f"GRANT INSERT ON `{database}`.* TO counting@'127.0.0.1'")
            stage.mysql_proxy.cut_all()
            stage.wait_applied()
            stage.end(worker)
            stage.check("grant revoked")
        finally:
            oracle.rows("DROP USER counting@'127.0.0.1'")


def acknowledgement_replies_lost(stage: Stage) -> None:
    """Acknowledged, and the worker does not hear of it; or never acknowledged at all."""
    worker = stage.worker(batch_entries=5)
    for phase in stage.random.sample(list(Phase), 2):
        rule = stage.when(ACKNOWLEDGE, phase, Deed.CUT, times=2)
        stage.send(20)
        stage.wait_acted(rule, 2, worker)
        stage.wait_applied()
    stage.end(worker)
    stage.check("acknowledgement lost")


def add_replies_lost(stage: Stage) -> None:
    """Redis stores an entry and the producer does not hear of it: it resends the same bytes."""
    lost = stage.when("XADD", Phase.AFTER, Deed.CUT, times=4)
    unsent = stage.when("XADD", Phase.BEFORE, Deed.CUT, skip=2, times=2)
    url = stage.redis_proxy.url(stage.redis_server.url)
    at = datetime.fromtimestamp(FIRST_MINUTE * 60, UTC)
    with Producer(url, flush_interval=0.02) as producer:
        for number in range(40):
            rows = stage.traffic.rows(25)
            for counter, key, _minute, amount in rows:
                producer.increment(counter, key, amount, at=at)
            stage.traffic.count(
                [(counter, key, FIRST_MINUTE, amount) for counter, key, _, amount in rows]
            )
            if number % 4 == 0:
                assert producer.flush(timeout=30), producer.stats()
        assert producer.flush(timeout=30), producer.stats()
    assert lost.acted == 4
    assert unsent.acted == 2
    stage.finish("XADD replies lost")


def _cases(
    stage: Stage, kinds: Sequence[str], deeds: Sequence[T], one_of_them: bool
) -> list[tuple[str, T]]:
    """Each kind of statement with each deed, or with one of them, where each deed is taken equally
    often; in random order."""
    drawn = stage.random.sample(kinds, len(kinds))
    if one_of_them:
        return list(zip(drawn, cycle(stage.random.sample(deeds, len(deeds))), strict=False))
    cases = list(product(drawn, deeds))
    return stage.random.sample(cases, len(cases))


def _is_error(_request: Request, reply: bytes) -> bool:
    """An ERR packet: its first byte, after the header, is ff."""
    return reply[4:5] == b"\xff"


def _send_with_a_poison_row(stage: Stage) -> None:
    """A few entries, one with a row that must go to the dead letters; settings have changed, so
    whoever applies them reads the catalog anew.
    """
    with Oracle(stage.mysql_url) as oracle:
        oracle.rows("UPDATE control SET catalog_version = catalog_version + 1")
    stage.send(3)
    entry = stage.entry()
    rows = entry.rows[:-1] + b',["views","poison","no minute",1]]'
    add(stage.redis, {**entry.fields(), "rows": rows})
    stage.dead.add((entry.id, entry.increments))
