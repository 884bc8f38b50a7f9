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
    app = _app(stage, counter=counter, chunks=chunks, wait_for_word=True)
    _wait_stored(app, 1)
    _freeze(stage)
    try:
        eventually(lambda: _last(app, "counted"), 4 * seconds + 60, message=app.output)
    finally:
        stage.redis_server.thaw()
    app.say("go on")
    assert app.wait(APPLIED_WITHIN * 2) == 0, app.output()
    said = _lines(app)[-1]
    assert said["flushed"] is True, said
    assert said["raised"] == 0, said
    assert said["dropped"] == 0, said
    assert said["accepted"] == chunks * CHUNK, said
    assert said["peak_mb"] < PEAK_MB, said
    _book(stage, counter, {f"chunk-{number}": CHUNK for number in range(chunks)})
    stage.finish("frozen Redis")


def memory_is_bounded(stage: Stage, seconds: float = 5.0) -> None:
    """Keys that never repeat, and Redis frozen: what does not fit is dropped and counted so."""
    counter = f"distinct{stage.random.getrandbits(32)}"
    chunks = int(seconds * PER_SECOND / CHUNK)
    app = _app(
        stage,
        counter=counter,
        chunks=chunks,
        distinct_keys=True,
        wait_for_word=True,
        producer={"max_rows_in_memory": 50_000},
    )
    _wait_stored(app, 1)
    _freeze(stage)
    try:
        eventually(lambda: _last(app, "counted"), 120, message=app.output)
    finally:
        stage.redis_server.thaw()
    app.say("go on")
    assert app.wait(APPLIED_WITHIN * 2) == 0, app.output()
    said = _lines(app)[-1]
    assert said["raised"] == 0, said
    assert said["accepted"] + said["dropped"] == chunks * CHUNK, said
    assert said["dropped"] > 0, said
    assert said["peak_mb"] < PEAK_MB, said
    stage.wait_applied_by_worker()
    counted = _counted(stage, counter)
    assert sum(counted.values()) == said["accepted"], said
    assert set(counted.values()) <= {1}
    _book(stage, counter, counted)
    stage.finish("bounded memory")


def app_killed_with_a_spool(stage: Stage, seconds: float = 30.0) -> None:
    """Redis frozen, the app spools and is SIGKILLed, another process replays: all that was stored
    counts once, and what was not stored counts at most once.
    """
    counter = f"spool{stage.random.getrandbits(32)}"
    spool = stage.directory / counter
    spool.mkdir()
    producer = {"spool": str(spool), "socket_timeout": 1.0}
    app = _app(stage, counter=counter, chunks=10**6, producer=producer)
    _wait_stored(app, 1)
    _freeze(stage)
    try:
        before = _last(app, "stored")
        target = before + int(seconds * PER_SECOND / CHUNK * 0.8)
        eventually(lambda: _last(app, "stored") >= target, 4 * seconds + 60, message=app.output)
        _kill(stage, app)
    finally:
        stage.redis_server.thaw()
    stored = _last(app, "stored")
    replayer = _app(stage, replay=True, producer=producer)
    assert replayer.wait(APPLIED_WITHIN * 2) == 0, replayer.output()
    stage.wait_applied_by_worker()
    counted = _counted(stage, counter)
    for number in range(stored):
        assert counted.get(f"chunk-{number}") == CHUNK, (number, stored, counted)
    assert all(0 < amount <= CHUNK for amount in counted.values()), counted
    _book(stage, counter, counted)
    stage.finish("killed with a spool")


def app_killed_again_and_again(stage: Stage) -> None:
    """Several apps share a spool, are killed at random moments, and start again."""
    counter = f"shared{stage.random.getrandbits(32)}"
    spool = stage.directory / counter
    spool.mkdir()
    producer = {"spool": str(spool), "socket_timeout": 0.5, "flush_interval": 0.02}
    stored: dict[str, int] = {}
    for turn in range(3):
        apps = {
            f"{counter}.{turn}.{number}": _app(
                stage,
                counter=f"{counter}.{turn}.{number}",
                chunks=10**6,
                per_second=20_000,
                producer=producer,
            )
            for number in range(2)
        }
        for app in apps.values():
            _wait_stored(app, 1)
        frozen = turn != 1
        if frozen:
            _freeze(stage)
        try:
            for app in apps.values():
                _wait_stored(app, _last(app, "stored") + 10)
                _kill(stage, app)
        finally:
            stage.redis_server.thaw()
        stored |= {name: _last(app, "stored") for name, app in apps.items()}
    replayers = [_app(stage, replay=True, producer=producer) for _ in range(2)]
    for replayer in replayers:
        assert replayer.wait(APPLIED_WITHIN * 2) == 0, replayer.output()
    stage.wait_applied_by_worker()
    for name, chunks in stored.items():
        counted = _counted(stage, name)
        for number in range(chunks):
            assert counted.get(f"chunk-{number}") == CHUNK, (name, number, chunks, counted)
        assert all(0 < amount <= CHUNK for amount in counted.values()), counted
        _book(stage, name, counted)
    stage.finish("killed again and again")


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


def _kill(stage: Stage, app: Child) -> None:
    app.kill()
    stage.faults["app kill"] += 1
