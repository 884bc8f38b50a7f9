"""The how-tos do what they say: SQL of a BI tool, the number of views on a page, nginx in front."""

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import requests

from countersink.database.connection import connect
from countersink.store import Store
from tests.cli.command import Servers
from tests.docs.console import blocks
from tests.docs.rights import users_with
from tests.support.certificates import make_certificates
from tests.support.processes import PROJECT
from tests.support.waiting import eventually
from tests.support.width_rows import put_rows
from tests.web.nginx import needs_nginx, nginx
from tests.web.serving import serving
from tests.worker.running import Running

BI, VIEWS, NGINX = (f"docs/how-to/{name}.md" for name in ("bi-tool", "views-on-a-page", "nginx"))
NAME = "counters.example.com"


@pytest.fixture
def bi_url(mysql_url: str) -> Iterator[str]:
    """The database for a user that has the rights of the page and no other."""
    rights, *_ = blocks(BI, "sql")
    granted = re.findall(r"^GRANT (.+) ON countersink\.(\S+) TO (\w+);$", rights, re.MULTILINE)
    assert len(granted) == 5
    with users_with(mysql_url, granted) as urls:
        yield urls["bi"]


@pytest.mark.servers("mariadb", "mysql")
def test_the_queries_of_a_bi_tool_are_right_with_the_rights_of_the_page(
    servers: Servers, bi_url: str
) -> None:
    set_counter = ("counter", "set", "visits", "--dimensions", "page,country")
    assert servers.call(*set_counter, "--breakdowns", "page,country").status == 0
    for name in ("checkouts", "page_views"):
        assert servers.call("counter", "set", name, "--resolution", "minute").status == 0
    servers.call("increment", "visits", "--dimension", "page=/home", "--dimension", "country=DE")
    servers.call("increment", "checkouts", "--amount", "7")
    servers.apply()
    with connect(servers.mysql_url) as session:
        months = [(date(2024, month, 1), 1000) for month in (1, 2)]
        put_rows(session, [("page_views", "month", day, "/home", n) for day, n in months])
        for width, amount in (("day", 100), ("hour", 10), ("minute", 1)):
            rows = [("page_views", width, date(2024, 3, 5), "/home", amount)]
            put_rows(session, rows, slots=(0, 1, 300))  # type: ignore[arg-type]
    _, daily, hourly, broken_down, monthly = (each.strip() for each in blocks(BI, "sql"))
    with connect(bi_url) as session:

        def read(sql: str) -> list[tuple[Any, ...]]:
            return session.query(sql.rstrip(";"))

        assert [(day.isoformat(), int(n)) for day, n in read(daily)] == [("2024-03-05", 333)]
        assert [int(total) for _, total in read(hourly)] == [7]
        assert [(key, int(n)) for _, key, n in read(broken_down)] == [("/home, DE", 1)]
        by_month = [(month, int(n)) for name, month, n in read(monthly) if name == "page_views"]
        assert by_month == [("2024-01-01", 1000), ("2024-02-01", 1000), ("2024-03-01", 333)]
        with pytest.raises(Exception, match="denied"):
            session.query("SELECT * FROM api_key")
    with Store(servers.mysql_url) as store:
        assert store.totals.total("page_views") == sum(total for _, total in by_month)


def test_a_page_shows_how_often_it_was_viewed(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, url in servers.variables().items():
        monkeypatch.setenv(name, url)
    assert servers.call("counter", "set", "page_views").status == 0
    found: dict[str, Any] = {}
    [example] = blocks(VIEWS, "python")
    exec(example, found)
    with found["producer"], found["store"] as store:
        assert found["view"]("/home") == 0
        with Running(servers.redis_url, servers.mysql_url):
            eventually(lambda: store.totals.total("page_views") == 1)
        assert found["view"]("/home") == 1
        assert store.totals.many("page_views", ["/home", "/b"]) == {"/home": 1, "/b": 0}
        with Store("mysql://127.0.0.1:1/countersink") as found["store"]:
            assert found["view"]("/home") is None


def test_the_units_of_two_servers_are_there() -> None:
    text = (PROJECT / "docs/how-to/two-servers.md").read_text("utf-8")
    units = {path.name for path in (PROJECT / "ops/systemd").glob("*.service")}
    assert "cp -r *.service *.service.d /etc/systemd/system/" in text
    [started] = re.findall(r"systemctl enable --now (.*)", text)
    assert {re.sub(r"@\d", "@", name) + ".service" for name in started.split()} < units


@needs_nginx
def test_nginx_as_on_the_page_passes_on_who_asks_and_how(servers: Servers, tmp_path: Path) -> None:
    make_certificates(tmp_path / "tls", "127.0.0.1")
    (directory := tmp_path / "nginx").mkdir()
    options: dict[str, Any] = {
        "trusted_proxies": ("127.0.0.1",),
        "allowed_hosts": (NAME,),
        "without_keys": False,
    }
    with serving(servers.redis_url, servers.mysql_url, **options) as web:
        [http] = blocks(NGINX, "nginx")
        http = http.replace("listen 443", "listen PORT").replace("http://127.0.0.1:8321", web.url)
        http = http.replace(f"/etc/ssl/{NAME}.pem", str(tmp_path / "tls/cert.pem"))
        http = http.replace(f"/etc/ssl/{NAME}.key", str(tmp_path / "tls/key.pem"))
        with nginx(directory, http) as url:

            def ask(method: str, path: str, host: str = NAME, **more: Any) -> requests.Response:
                headers = {"Host": host, "Origin": f"https://{host}"}
                more |= {"verify": tmp_path / "tls/ca.pem", "allow_redirects": False}
                secure = url.replace("http:", "https:")
                return requests.request(method, secure + path, headers=headers, timeout=20, **more)

            assert ask("GET", "/livez").status_code == 200
            assert ask("GET", "/", host="other.example.com").status_code == 421
            login = ask("POST", "/login", data={"key": web.key("admin")})
            assert login.status_code == 303
            assert "__Host-" in login.headers["Set-Cookie"]
            assert "Secure" in login.headers["Set-Cookie"]
