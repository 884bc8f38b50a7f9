"""The log: each record has a known action, as text or JSON, and none holds an event or a secret."""

import io
import json
import logging

import pytest
import redis

from countersink.runtime.log import Log, code_lines, logged
from countersink.stream.entry import encode_rows
from countersink.worker.report import LOGGER, WorkerAction
from tests.support.traffic import FIRST_MINUTE, Traffic, add, now_ms, send
from tests.worker.running import Records, drain

ACTIONS = {
    "started", "ready", "waiting", "resumed", "batch", "progress", "dead", "too_old", "overflow",
    "batch_failed", "entry_failed", "claimed", "orphans", "lost", "lost_in_redis",
    "consumer_removed", "partitions", "chore_failed", "slot", "schema_too_new", "crashed",
    "stopping", "drained", "left_consumer", "stopped", "stop_forced", "salts", "other",
}  # fmt: skip


def test_the_set_of_actions_is_what_people_alert_on() -> None:
    assert {str(action) for action in WorkerAction} == ACTIONS


def test_a_run_logs_its_steps(redis_url: str, redis_client: redis.Redis, mysql_url: str) -> None:
    traffic = Traffic(90)
    send(redis_client, *(traffic.entry(now_ms(redis_client)) for _ in range(3)))
    add(redis_client, {"rows": "secret-garbage"})
    add(redis_client, {"rows": encode_rows([("bad name", "secret-key", FIRST_MINUTE, 1)])})
    with Records() as records:
        assert drain(redis_url, mysql_url) == 0
    assert records.actions() == ["started", "ready", "batch", "dead", "drained", "stopped"]
    consumers = {getattr(record, "fields", {}).get("consumer") for record in records.records}
    assert len(consumers) == 1
    said = "".join(str(vars(record)) for record in records.records)
    assert "secret" not in said
    assert "/page/" not in said


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_json_has_one_object_per_line(stream: io.StringIO) -> None:
    with logged("json", stream):
        Log(LOGGER, consumer="host-1-ab")(
            WorkerAction.WAITING, "MySQL does not serve", for_s=31, error='a "b"\nc'
        )
        LOGGER.warning("from elsewhere")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "action": "waiting",
        "message": "MySQL does not serve",
        "consumer": "host-1-ab",
        "for_s": 31,
        "error": 'a "b"\nc',
    }
    assert second["action"] == "other"


def test_text_has_one_line_per_record(stream: io.StringIO) -> None:
    with logged("text", stream):
        Log(LOGGER, consumer="host-1-ab")(
            WorkerAction.SLOT, "lost", level=logging.WARNING, slot=7, error="two words"
        )
    (line,) = stream.getvalue().splitlines()
    assert line.split(" ", 1)[1] == (
        'warning slot             lost consumer=host-1-ab slot=7 error="two words"'
    )


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_bug_is_shown_by_its_lines_of_code_without_its_text(
    stream: io.StringIO, log_format: str
) -> None:
    secret = "a visitor's " + "address"

    def inner() -> None:
        raise ValueError(secret)

    with logged(log_format, stream):
        try:
            try:
                inner()
            except ValueError as cause:
                raise KeyError(secret) from cause
        except KeyError as error:
            Log(LOGGER, consumer="c")(WorkerAction.ENTRY_FAILED, "failed", bug=error)
            LOGGER.exception("elsewhere")
    said = stream.getvalue()
    assert secret not in said
    assert said.count("in inner") == 2
    assert "ValueError" in said
    assert "KeyError" in said


def test_code_lines_follow_what_came_before() -> None:
    def failing() -> None:
        try:
            raise ValueError
        except ValueError:
            raise KeyError  # noqa: B904 (the context is what is tested)

    with pytest.raises(KeyError) as caught:
        failing()
    assert code_lines(caught.value).split("\nwhile handling\n")[-1].endswith("ValueError")
