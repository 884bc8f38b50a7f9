"""No key, and a real nginx in front: nobody from outside is let in, as far as can be told."""

from pathlib import Path

import requests

from tests.web.nginx import needs_nginx, nginx
from tests.web.process import StartWeb
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


def test_a_server_without_a_key_says_at_its_start_what_a_proxy_needs(
    web_process: StartWeb,
) -> None:
    open_ = web_process()
    assert "there is no key" in open_.child.output()
    assert "proxy" in open_.child.output()
    by_intent = web_process("--without-keys")
    assert "--without-keys was said" in by_intent.child.output()


def test_one_with_a_key_says_nothing_of_it(web: Web, web_process: StartWeb) -> None:
    web.key("read")
    assert "there is no key" not in web_process().child.output()
