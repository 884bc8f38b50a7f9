"""Replies that are lost, and errors in their place."""

from datetime import UTC, datetime
from itertools import cycle, product

from countersink.producers import Producer
from tests.faults.stage import ACKNOWLEDGE, APPLIED_WITHIN, Stage
from tests.support.oracle import Oracle
from tests.support.proxies import Deed, Phase
from tests.support.traffic import FIRST_MINUTE, add
from tests.support.waiting import eventually

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


def every_statement_fails(stage: Stage, *, one_of_each: bool = False) -> None:
    """Each statement of a batch, COMMIT too, is answered by 1205, 1213 and 1020, and the connection
    is cut before, and after, the server ran it; or one of each of the two, in turns.
    """
    worker = stage.worker()
    kinds = statements_of_a_batch(stage)
    cases: list[tuple[str, int | Phase]] = []
    given: tuple[tuple[int | Phase, ...], ...] = (CONFLICTS, tuple(Phase))
    for faults in given:
        drawn, turns = stage.random.sample(kinds, len(kinds)), cycle(faults)
        cases += zip(drawn, turns, strict=False) if one_of_each else product(drawn, faults)
    for kind, fault in stage.random.sample(cases, len(cases)):
        if isinstance(fault, Phase):
            rule, note = stage.when(kind, fault, Deed.CUT), f"cut {fault.value} {kind}"
        else:
            rule = stage.when(kind, Phase.BEFORE, Deed.ERROR, error=fault)
            note = f"{fault} at {kind}"
        _send_with_a_poison_row(stage)
        stage.wait_for(rule.done, note, worker)
        stage.wait_applied()
        stage.check(note)
    stage.end(worker)


def replies_lost(stage: Stage) -> None:
    """The server commits twice in a row without the worker hearing of it; so it does with
    acknowledgements, and does not hear of others.
    """
    worker = stage.worker(batch_entries=5)
    lost = (("commit", Phase.AFTER), (ACKNOWLEDGE, Phase.BEFORE), (ACKNOWLEDGE, Phase.AFTER))
    for kind, phase in stage.random.sample(lost, 3):
        rule = stage.when(kind, phase, Deed.CUT, times=2)
        stage.send(20)
        stage.wait_acted(rule, 2, worker)
        stage.wait_applied()
    stage.end(worker)
    stage.check("replies lost")


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
