"""An app goes on counting while Redis is frozen. Needs a Redis of the stage's own."""

import json
from typing import Any

from tests.faults.stage import APPLIED_WITHIN, Stage
from tests.support.oracle import Oracle
from tests.support.processes import Child
from tests.support.run_app import CHUNK
from tests.support.traffic import FIRST_MINUTE
from tests.support.waiting import eventually

PER_SECOND = 100_000
PEAK_MB = 250
"""What an app may take at most, interpreter and 100,000 waiting rows included."""


def app_outlives_a_freeze(stage: Stage, seconds: float = 30.0) -> None:
    """No call raises, memory is bounded, and every accepted increment counts after SIGCONT."""
    counter = f"frozen{stage.random.getrandbits(32)}"
    chunks = int((seconds + 1) * PER_SECOND / CHUNK)
    app = _app(stage, wait_for_word=True, counter=counter, chunks=chunks)
    _wait_stored(app, 1)
    _freeze(stage)
    try:
        eventually(lambda: _last(app, "counted"), 4 * seconds + 60, message=app.output)
    finally:
        stage.redis_server.thaw()
    app.say("go on")
    assert app.wait(APPLIED_WITHIN * 2) == 0, app.output()
    said = _lines(app)[-1]
    found = said["flushed"], said["raised"], said["dropped"], said["accepted"]
    assert found == (True, 0, 0, chunks * CHUNK), said
    assert said["peak_mb"] < PEAK_MB, said
    _book(stage, counter, {f"chunk-{number}": CHUNK for number in range(chunks)})
    stage.finish("frozen Redis")


def apps_killed_with_a_spool(stage: Stage) -> None:
    """Apps share a spool, are SIGKILLed while Redis is frozen, or is not, and others replay it: all
    that was stored counts once, and what was not stored counts at most once.
    """
    spool = stage.directory / f"spool{stage.random.getrandbits(32)}"
    spool.mkdir()
    producer = {"spool": str(spool), "socket_timeout": 0.5, "flush_interval": 0.02}
    stored: dict[str, int] = {}
    for frozen in (True, False, True):
        stored |= _killed_while_spooling(stage, producer, frozen=frozen)
    replaying = [_app(stage, replay=True, producer=producer) for _ in range(2)]
    for replayer in replaying:
        assert replayer.wait(APPLIED_WITHIN * 2) == 0, replayer.output()
    stage.wait_applied_by_worker()
    for name, chunks in stored.items():
        counted = _counted(stage, name)
        for number in range(chunks):
            assert counted.get(f"chunk-{number}") == CHUNK, (name, number, chunks, counted)
        assert all(0 < amount <= CHUNK for amount in counted.values()), counted
        _book(stage, name, counted)
    stage.finish("killed with a spool")


def _killed_while_spooling(
    stage: Stage, producer: dict[str, Any], *, frozen: bool
) -> dict[str, int]:
    """Apps are killed when each has stored some chunks more, while Redis is ``frozen``; by the
    counters of theirs how many chunks were stored.
    """
    plan = {"chunks": 10**6, "per_second": 20_000, "producer": producer}
    names = [f"spool{stage.random.getrandbits(32)}" for _ in range(2)]
    apps = {name: _app(stage, counter=name, **plan) for name in names}
    for app in apps.values():
        _wait_stored(app, 1)
    if frozen:
        _freeze(stage)
    try:
        for app in apps.values():
            _wait_stored(app, _last(app, "stored") + 10)
            app.kill()
            stage.faults["app kill"] += 1
    finally:
        stage.redis_server.thaw()
    return {name: _last(app, "stored") for name, app in apps.items()}


def _app(stage: Stage, **plan: Any) -> Child:
    return stage.children.app(stage.redis_server.url, **plan)


def _lines(app: Child) -> list[dict[str, Any]]:
    found = []
    for line in app.output().splitlines():
        if line.startswith("{") and line.endswith("}"):
            found.append(json.loads(line))
    return found


def _last(app: Child, name: str) -> int:
    return max((int(line[name]) for line in _lines(app) if name in line), default=0)


def _wait_stored(app: Child, chunks: int) -> None:
    eventually(lambda: _last(app, "stored") >= chunks, APPLIED_WITHIN, message=app.output)


def _counted(stage: Stage, counter: str) -> dict[str, int]:
    with Oracle(stage.mysql_url) as oracle:
        return {
            key.decode(): total
            for (name, _, key), total in oracle.totals().items()
            if name == counter
        }


def _book(stage: Stage, counter: str, counted: dict[str, int]) -> None:
    stage.traffic.count([(counter, key, FIRST_MINUTE, amount) for key, amount in counted.items()])
    stage.traffic.increments += sum(counted.values()) - len(counted)  # a key was counted so often


def _freeze(stage: Stage) -> None:
    stage.redis_server.freeze()
    stage.faults["redis frozen"] += 1
