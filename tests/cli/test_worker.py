"""`countersink worker`: its options become the worker's."""

import json

import pytest

from tests.cli.command import Servers, call, one_sentence


def test_it_drains_and_ends(servers: Servers) -> None:
    servers.call("increment", "c")
    done = servers.call("worker", "--drain")
    assert (done.status, done.out) == (0, "")
    assert servers.call("totals", "c", "--format", "json").json["rows"][0]["total"] == 1


def test_its_logs_are_json_when_asked(servers: Servers) -> None:
    done = servers.call("worker", "--drain", COUNTERSINK_WORKER_LOG_FORMAT="json")
    actions = [json.loads(line)["action"] for line in done.err.splitlines()]
    assert actions[0] == "started"
    assert "drained" in actions


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch-entries", "0"], "batch_entries is 0: at least 1 is needed"),
        (["--batch-wait-ms", "5000"], "at most 4000 ms"),
        (["--claim-every-s", "0"], "seconds above 0"),
        (["--batch-entries", "many"], "is not a valid integer"),
        (["--log-format", "xml"], "is not one of"),
    ],
)
def test_wrong_options_are_wrong_usage(arguments: list[str], said: str) -> None:
    refused = call(
        "worker",
        *arguments,
        COUNTERSINK_REDIS_URL="redis://127.0.0.1:1/0",
        COUNTERSINK_MYSQL_URL="mysql://127.0.0.1:1/x",
    )
    assert said in one_sentence(refused, 2)
