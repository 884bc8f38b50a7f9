"""`countersink worker`: its options become the worker's."""

import json

from tests.cli.command import Servers


def test_it_drains_and_ends(servers: Servers) -> None:
    servers.call("increment", "c")
    done = servers.call("worker", "--drain")
    assert (done.status, done.out) == (0, "")
    assert servers.rows("c")[0]["total"] == 1


def test_its_logs_are_json_when_asked(servers: Servers) -> None:
    done = servers.call("worker", "--drain", COUNTERSINK_WORKER_LOG_FORMAT="json")
    actions = [json.loads(line)["action"] for line in done.err.splitlines()]
    assert actions[0] == "started"
    assert "drained" in actions
