"""``countersink web`` as a process: how it begins, what it refuses, how it ends."""

import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import requests

from tests.cli.command import Servers, one_sentence
from tests.support.processes import Children
from tests.support.waiting import eventually
from tests.web.process import WebProcess


def test_it_says_where_it_listens_and_stores_at_the_end_what_it_has_accepted(
    servers: Servers, children: Children
) -> None:
    """With a list from the environment, and logs as JSON."""
    web = WebProcess.start(
        children,
        servers.redis_url,
        servers.mysql_url,
        "--without-keys",
        # Nothing is flushed by itself, but the first.
        COUNTERSINK_PRODUCER_FLUSH_INTERVAL="3600",
        COUNTERSINK_WEB_ALLOWED_HOSTS="counters.example.com *.example.org",
        COUNTERSINK_WEB_LOG_FORMAT="json",
    )
    assert web.url.startswith("http://127.0.0.1:")
    body: dict[str, Any] = {"counter": "page_views", "key": "/home", "amount": 3}
    first = requests.post(f"{web.url}/v1/increments?wait=stored", json=body, timeout=20)
    assert first.json() == {"accepted": 1, "state": "stored"}
    answer = requests.post(f"{web.url}/v1/increments", json=body, timeout=20)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 1})
    for host, expected in (
        ("counters.example.com", 200),
        ("a.example.org:80", 200),
        ("example.org", 421),
    ):
        answer = requests.get(f"{web.url}/livez", headers={"Host": host}, timeout=20)
        assert answer.status_code == expected, host
    web.child.terminate()
    assert web.child.wait() == 0
    actions = {json.loads(line)["action"] for line in web.child.output().splitlines()}
    assert actions >= {"started", "announced", "stopped"}
    servers.apply()
    assert servers.rows("page_views", "--by", "total") == [{"total": 6}]


def test_what_cannot_be_stored_at_the_end_is_said_by_its_status(
    mysql_url: str, children: Children, tmp_path: Path
) -> None:
    nowhere = f"unix://{tmp_path}/no-redis.sock"
    web = WebProcess.start(
        *(children, nowhere, mysql_url, "--without-keys"), COUNTERSINK_PRODUCER_EXIT_TIMEOUT="0.1"
    )
    requests.post(f"{web.url}/v1/increments", json={"counter": "c"}, timeout=20)
    web.child.terminate()
    assert web.child.wait() == 1
    assert "some accepted increments could not be stored" in web.child.output()


def test_without_a_key_it_makes_one_on_a_terminal_and_else_refuses(
    servers: Servers, children: Children
) -> None:
    refused = servers.call("web", "--port", "0")
    assert "countersink key create" in one_sentence(refused, 1)
    command = [sys.executable, "-m", "countersink.cli.entry", "web", "--port", "0"]
    terminal = [sys.executable, "-c", f"import pty; pty.spawn({command})"]

    def on_a_terminal() -> tuple[str, str]:
        """What it prints of a key, and the address."""
        child = children.start(terminal, environment=servers.variables())
        (url,) = eventually(lambda: re.findall(r"listening at (http://\S+)", child.output()))
        return " ".join(re.findall(r"shown once: (\S+)", child.output())), url

    key, url = on_a_terminal()
    answer = requests.get(f"{url}/v1/whoami", headers={"X-API-Key": key}, timeout=20)
    assert answer.json()["scopes"] == ["admin"]
    assert requests.get(f"{url}/v1/whoami", timeout=20).status_code == 401
    assert on_a_terminal()[0] == ""


def test_what_it_cannot_begin_with(servers: Servers, empty_mysql_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = servers.call("web", "--port", str(port), "--without-keys")
        assert str(port) in one_sentence(refused, 1)
    refused = servers.call("web", COUNTERSINK_PRODUCER_MAX_ROWS="0")
    assert "COUNTERSINK_PRODUCER_" in one_sentence(refused, 2)
    refused = Servers(servers.redis_url, empty_mysql_url).call("web", "--port", "0")
    assert "countersink migrate" in one_sentence(refused, 1)
