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
    said = _counted_while_frozen(stage, 4 * seconds + 60, counter=counter, chunks=chunks)
    assert said["flushed"] is True, said
    assert said["dropped"] == 0, said
    assert said["accepted"] == chunks * CHUNK, said
    _book(stage, counter, {f"chunk-{number}": CHUNK for number in range(chunks)})
    stage.finish("frozen Redis")


def memory_is_bounded(stage: Stage, seconds: float = 5.0) -> None:
    """Keys that never repeat, and Redis frozen: what does not fit is dropped and counted so."""
    counter = f"distinct{stage.random.getrandbits(32)}"
    chunks = int(seconds * PER_SECOND / CHUNK)
    plan = {"distinct_keys": True, "producer": {"max_rows_in_memory": 50_000}}
    said = _counted_while_frozen(stage, 120, counter=counter, chunks=chunks, **plan)
    assert said["accepted"] + said["dropped"] == chunks * CHUNK, said
    assert said["dropped"] > 0, said
    stage.wait_applied_by_worker()
    counted = _counted(stage, counter)
    assert sum(counted.values()) == said["accepted"], said
    assert set(counted.values()) <= {1}
    _book(stage, counter, counted)
    stage.finish("bounded memory")


def _counted_while_frozen(stage: Stage, within: float, **plan: Any) -> dict[str, Any]:
    """An app counts all while Redis is frozen, and ends when it is thawed; its statistics."""
    app = _app(stage, wait_for_word=True, **plan)
    _wait_stored(app, 1)
    _freeze(stage)
    try:
        eventually(lambda: _last(app, "counted"), within, message=app.output)
    finally:
        stage.redis_server.thaw()
    app.say("go on")
    assert app.wait(APPLIED_WITHIN * 2) == 0, app.output()
    said = _lines(app)[-1]
    assert said["raised"] == 0, said
    assert said["peak_mb"] < PEAK_MB, said
    return said


def app_killed_with_a_spool(stage: Stage, seconds: float = 30.0) -> None:
    """Redis frozen, the app spools and is SIGKILLed, another process replays: all that was stored
    counts once, and what was not stored counts at most once.
    """
    more = int(seconds * PER_SECOND / CHUNK * 0.8)
    producer = _spooling(stage, 1.0)
    stored = _killed_while_spooling(stage, 1, more, producer, per_second=PER_SECOND)
    _replayed(stage, stored, producer, 1)
    stage.finish("killed with a spool")


def app_killed_again_and_again(stage: Stage) -> None:
    """Several apps share a spool, are killed at random moments, and start again."""
    producer = _spooling(stage, 0.5) | {"flush_interval": 0.02}
    stored: dict[str, int] = {}
    for turn in range(3):
        stored |= _killed_while_spooling(stage, 2, 10, producer, frozen=turn != 1)
    _replayed(stage, stored, producer, 2)
    stage.finish("killed again and again")


def _spooling(stage: Stage, socket_timeout: float) -> dict[str, Any]:
    """Options of producers that share a new spool."""
    spool = stage.directory / f"spool{stage.random.getrandbits(32)}"
    spool.mkdir()
    return {"spool": str(spool), "socket_timeout": socket_timeout}


def _killed_while_spooling(
    stage: Stage,
    number: int,
    more: int,
    producer: dict[str, Any],
    *,
    frozen: bool = True,
    per_second: int = 20_000,
) -> dict[str, int]:
    """Apps are killed when each has stored so many chunks more, while Redis is ``frozen``; by the
    counters of theirs how many chunks were stored.
    """
    plan = {"chunks": 10**6, "per_second": per_second, "producer": producer}
    names = [f"spool{stage.random.getrandbits(32)}" for _ in range(number)]
    apps = {name: _app(stage, counter=name, **plan) for name in names}
    for app in apps.values():
        _wait_stored(app, 1)
    if frozen:
        _freeze(stage)
    try:
        for app in apps.values():
            within = APPLIED_WITHIN + 5 * more * CHUNK / per_second
            _wait_stored(app, _last(app, "stored") + more, within)
            app.kill()
            stage.faults["app kill"] += 1
    finally:
        stage.redis_server.thaw()
    return {name: _last(app, "stored") for name, app in apps.items()}


def _replayed(
    stage: Stage, stored: dict[str, int], producer: dict[str, Any], replayers: int
) -> None:
    """Others replay the spool: what was stored counts once, and the rest at most once."""
    replaying = [_app(stage, replay=True, producer=producer) for _ in range(replayers)]
    for replayer in replaying:
        assert replayer.wait(APPLIED_WITHIN * 2) == 0, replayer.output()
    stage.wait_applied_by_worker()
    for name, chunks in stored.items():
        counted = _counted(stage, name)
        for number in range(chunks):
            assert counted.get(f"chunk-{number}") == CHUNK, (name, number, chunks, counted)
        assert all(0 < amount <= CHUNK for amount in counted.values()), counted
        _book(stage, name, counted)


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


def _wait_stored(app: Child, chunks: int, within: float = APPLIED_WITHIN) -> None:
    eventually(lambda: _last(app, "stored") >= chunks, within, message=app.output)


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
