"""The dispatcher: names, origins, paths, headers, and what is told when something breaks."""

import logging
import re
from typing import Any

import pytest
import requests

from countersink.database.sessions import open_tables
from countersink.store import api_keys
from countersink.web.app import ROUTES as EVERY_ROUTE
from countersink.web.errors import CannotServe
from countersink.web.http.answers import DATA
from countersink.web.server import first_key
from tests.web.raw import exchange, status
from tests.web.routes import ROUTES, SECRET
from tests.web.serving import Web

CLOSE = b"Connection: close\r\n"


def ask(web: Web, path: str, method: str = "GET", **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.ask(method, path, headers=named, allow_redirects=False)


def test_only_names_that_cannot_be_rebound_to_us_are_answered_to(opened: Web) -> None:
    good = ("127.0.0.1", "localhost", "LOCALHOST:80", "[::1]:8321", "127.1.2.3", "a.localhost")
    for host in good:
        assert ask(opened, "/read", Host=host).status_code == 200, host
    for host in ("10.1.2.3", "203.0.113.9:8321", "[fe80::1]", "[::ffff:10.1.2.3]"):
        assert ask(opened, "/live", Host=host).status_code == 200, host
    zeros = ("0.0.0.0", "0.0.0.0:8321", "[::]", "[0::0]:80", "[::ffff:0.0.0.0]", "0")
    evil = ("0x7f000001", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80")
    for host in (*evil, *zeros):
        assert ask(opened, "/read", Host=host).status_code == 421, host
    for host in ("", "a b", "[::1", "x:99999", "a/b", "user@localhost", "localhost:80:80"):
        assert ask(opened, "/read", Host=host).status_code == 400, host


def test_by_http_1_0_there_may_be_no_host_header(opened: Web) -> None:
    """No browser speaks it. What HTTP/1.1 is told: ``tests/web/attacks/wire.py``."""
    assert status(exchange(opened.url, b"GET /live HTTP/1.0\r\n\r\n")) == 200


def test_a_page_of_another_origin_changes_nothing_and_is_nobody_where_the_public_may(
    opened: Web,
) -> None:
    own = opened.url
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": own},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": own + "0"},
        {"Origin": own.replace("http", "https")},
        {"Referer": "https://evil.example/" + own},
        {"Origin": "http://["},
    ):
        for path in ("/ingest", "/admin"):
            answer = requests.post(own + path, headers=headers, timeout=20)
            assert answer.status_code == 403, headers
        public = requests.post(f"{own}/hit/a", headers=headers, timeout=20).json()
        assert public["public"] is True
    # What counts by GET, too: a pixel.
    pixel = requests.get(f"{own}/hit/a/b.gif", headers={"Sec-Fetch-Site": "cross-site"}, timeout=20)
    assert pixel.json()["public"] is True


def test_a_picture_that_says_nothing_adds_to_what_is_public_alone(opened: Web) -> None:
    def public(path: str = "/hit/a/b.gif", method: str = "GET", **headers: str) -> bool:
        return bool(ask(opened, path, method, **headers).json()["public"])

    assert public() is True
    assert public(Sec_Fetch_Site="none") is False
    assert public(Referer=f"{opened.url}/page") is False
    # What is sent by POST has an Origin where a page sends it; what counts nothing may be read.
    assert public("/hit/a", "POST") is False
    assert public("/read") is False


def test_our_own_pages_and_programs_may(opened: Web) -> None:
    for headers in (
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": opened.url},
        {"Referer": f"{opened.url}/page?x"},
    ):
        answer = requests.post(f"{opened.url}/admin", headers=headers, timeout=20)
        assert answer.status_code == 200, headers


def test_a_key_in_a_header_needs_no_origin(guarded: Web) -> None:
    key = guarded.key("ingest")
    answer = ask(guarded, "/ingest", "POST", X_API_Key=key, Origin="https://shop.example")
    assert answer.status_code == 200


def test_without_keys_names_and_origins_are_checked(opened: Web) -> None:
    """Whoever is let in, and however it comes here."""
    with opened.beside(routes=ROUTES, host="0.0.0.0", allowed_hosts=("counters.example",)) as web:
        for host in ("127.0.0.1:8321", "a.localhost", "[::1]:1", "10.0.0.1", "counters.example"):
            assert ask(web, "/read", Host=host, Via="1.1 x").status_code == 200, host
            told = ask(web, "/admin", "POST", Host=host, Origin="https://elsewhere.example")
            assert told.status_code == 403, host
        for host in ("0.0.0.0", "elsewhere.example"):
            assert ask(web, "/read", Host=host).status_code == 421, host


def test_a_path_is_utf_8_or_refused_never_another_key(opened: Web) -> None:
    assert ask(opened, "/read/%C3%A9").json()["path"] == {"name": "é"}
    assert ask(opened, "/hit/a/b%2Fc/%25.gif").json()["path"] == {"name": "a", "key": "b/c/%"}
    assert ask(opened, "/hit/a/.gif").json()["path"] == {"name": "a", "key": ""}
    assert ask(opened, "/hit/a/x%0A.gif").json()["path"]["key"] == "x\n"
    for path in ("/read/%FF", "/read/%C3", "/read?a=%FF", "/hit/a/%ED%A0%80.gif"):
        assert ask(opened, path).status_code == 400, path
    raw = "GET /read?a=é HTTP/1.1\r\nHost: localhost\r\n".encode() + CLOSE + b"\r\n"
    assert status(exchange(opened.url, raw)) == 400


def test_what_a_path_does_not_take(opened: Web) -> None:
    answer = ask(opened, "/read/x", "DELETE")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    assert answer.json()["status"] == 405
    answer = ask(opened, "/read/x", "OPTIONS")
    assert (answer.status_code, answer.headers["Allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    assert ask(opened, "/nothing").status_code == 404
    assert ask(opened, "/nothing", "OPTIONS").status_code == 404
    head = ask(opened, "/read", "HEAD")
    assert (head.status_code, head.content) == (200, b"")
    for method in ("TRACE", "PATCH", "PROPFIND", "get"):
        line = f"{method} /read HTTP/1.1\r\nHost: localhost\r\n".encode()
        assert status(exchange(opened.url, line + CLOSE + b"\r\n")) in (400, 405), method


def test_a_person_without_a_key_is_shown_the_way_in_and_a_program_is_told(guarded: Web) -> None:
    person = ask(guarded, "/page", Accept="text/html,*/*;q=0.8")
    assert (person.status_code, person.headers["Location"]) == (303, "/login")
    assert ask(guarded, "/page", Accept="*/*").status_code == 401
    assert ask(guarded, "/read", Accept="text/html").status_code == 401


def test_what_is_public_needs_no_key_and_a_wrong_one_is_still_wrong(guarded: Web) -> None:
    assert ask(guarded, "/hit/a/b.gif").json()["public"] is True
    assert ask(guarded, "/hit/a", "POST", Origin="https://blog.example").json()["public"] is True
    assert ask(guarded, "/hit/a/b.gif", X_API_Key="ck_nobody").status_code == 401
    assert ask(guarded, "/live", X_API_Key="ck_nobody").status_code == 200
    reader = guarded.key("read")
    assert ask(guarded, "/hit/a/b.gif", X_API_Key=reader).json()["public"] is True


def test_every_answer_has_its_headers_and_none_names_the_server(opened: Web) -> None:
    paths = ("/read", "/nothing", "/broken", "/away", "/read?%FF", "/page")
    answers = [ask(opened, path) for path in paths] + [ask(opened, "/read", Host="evil.example")]
    for answer in answers:
        for name, value in DATA:
            assert answer.headers[name.decode()] == value.decode(), answer.url
        assert "Server" not in answer.headers
        assert not any(name.lower().startswith("access-control") for name in answer.headers)


def test_a_bug_is_told_by_a_number_that_is_in_the_log(
    opened: Web, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="countersink.web")
    answer = ask(opened, "/broken")
    assert answer.status_code == 500
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert SECRET not in answer.text
    assert "Traceback" not in answer.text
    record = next(record for record in caplog.records if record.name == "countersink.web")
    assert record.fields["incident"] == answer.json()["incident"]  # type: ignore[attr-defined]
    assert ask(opened, "/refused").status_code == 500


def test_a_server_that_is_away_is_503_with_when_to_come_again(opened: Web) -> None:
    answer = ask(opened, "/away")
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert SECRET not in answer.text


def test_without_a_valid_key_it_does_not_start_but_on_a_terminal_makes_one(mysql_url: str) -> None:
    with open_tables(mysql_url) as session:
        with pytest.raises(CannotServe, match="countersink key create"):
            first_key(session, terminal=False)
        made = first_key(session, terminal=True)
        assert made is not None
        assert api_keys.is_valid(session, made)
        for terminal in (False, True):
            assert first_key(session, terminal=terminal) is None
        (key,) = api_keys.list_keys(session)
        assert key.scopes == ("admin",)
        api_keys.revoke(session, key.id)
        with pytest.raises(CannotServe):
            first_key(session, terminal=False)


def test_the_document_is_served_to_everybody_and_says_whether_a_key_is_needed(
    opened: Web, guarded: Web
) -> None:
    def served(web: Web) -> Any:
        answer = requests.get(f"{web.url}/openapi.json", timeout=20)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/json"
        return answer.json()

    with opened.beside(routes=EVERY_ROUTE) as web:
        document = served(web)
        assert {} in document["paths"]["/v1/increments"]["post"]["security"]
    with guarded.beside(routes=EVERY_ROUTE) as web:
        assert {} not in served(web)["paths"]["/v1/increments"]["post"]["security"]
    assert document["openapi"].startswith("3.1")
    shown = {re.sub(":path", "", route.path) for route in EVERY_ROUTE if not route.hidden}
    assert set(document["paths"]) == {*shown, "/openapi.json"}
