"""No key, and a real nginx in front: nobody from outside is let in, as far as can be told."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from countersink.producers import Producer
from countersink.store import api_keys
from countersink.store.sessions import open_tables
from countersink.web.options import WebOptions
from countersink.web.server.process import run
from tests.web.nginx import needs_nginx, nginx
from tests.web.serving import Web

FORWARDED = {
    "as it is": "",
    "host": "proxy_http_version 1.1; proxy_set_header Host $host;",
    "real-ip": "proxy_http_version 1.1; proxy_set_header X-Real-IP $remote_addr;",
    "proto": "proxy_http_version 1.1; proxy_set_header X-Forwarded-Proto $scheme;",
    "via": 'proxy_http_version 1.1; proxy_set_header Via "1.1 nginx";',
}


@needs_nginx
def test_who_comes_through_nginx_is_not_let_in_without_a_key(opened: Web, tmp_path: Path) -> None:
    locations = " ".join(
        f"location '/{name}/' {{ proxy_pass {opened.url}/; {said} }}"
        for name, said in FORWARDED.items()
    )
    with nginx(tmp_path, f"server {{ listen PORT; {locations} }}") as outside:
        for name in FORWARDED:
            for host in ("192.0.2.1", "localhost" if name != "host" else "203.0.113.1:80"):
                told = requests.get(f"{outside}/{name}/live", headers={"Host": host}, timeout=20)
                assert told.status_code == 200, name
                told = requests.get(f"{outside}/{name}/read", headers={"Host": host}, timeout=20)
                assert (told.status_code, "WWW-Authenticate" in told.headers) == (401, True), name
                told = requests.post(f"{outside}/{name}/admin", headers={"Host": host}, timeout=20)
                assert told.status_code == 401, name


def test_a_server_says_at_its_start_what_a_proxy_needs_and_one_with_a_key_nothing_of_it(
    redis_url: str, mysql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def said(**options: Any) -> str:
        """What a server says that ends as soon as it serves."""
        chosen = WebOptions(redis_url=redis_url, mysql_url=mysql_url, port=0, **options)
        producer = partial(Producer, redis_url, handle_sigterm=False)
        caplog.clear()
        ready: dict[str, Any] = {"system": dict, "schedule": no_jobs, "announce": ended}
        assert run(chosen, producer=producer, **ready) == 0
        return caplog.text

    def no_jobs(what: str, job: str) -> dict[str, str]:
        raise LookupError(job)

    def ended(url: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    assert "there is no key: every program" in said()
    assert "proxy" in caplog.text
    assert "--without-keys was said" in said(without_keys=True)
    with open_tables(mysql_url) as session:
        api_keys.create(session, "reader", ["read"])
    assert "there is no key" not in said()
