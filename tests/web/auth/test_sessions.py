"""Logins to the dashboard: made with a key, held by a cookie, ended in three ways."""

from collections.abc import Iterator
from http.cookies import SimpleCookie

import pytest
import requests

from countersink.database.sessions import open_tables
from countersink.store import api_keys
from countersink.web.endpoints import pages
from tests.web.routes import ROUTES
from tests.web.serving import Web, serving

OWN = {"Sec-Fetch-Site": "same-origin"}
DOORS_AND_LOGIN = (*ROUTES, *pages.ROUTES)


@pytest.fixture(scope="module")
def dashboard(guarded: Web) -> Iterator[Web]:
    """A server with a way in, behind a proxy at the same machine."""
    with guarded.beside(
        routes=DOORS_AND_LOGIN,
        trusted_proxies=("127.0.0.1",),
        allowed_hosts=("counters.example.com",),
        failures_per_minute=3,
    ) as served:
        yield served


def log_in(web: Web, key: str, **headers: str) -> requests.Response:
    form = {"key": key}
    return web.ask("POST", "/login", data=form, headers=OWN | headers, allow_redirects=False)


def log_out(web: Web, held: dict[str, str]) -> requests.Response:
    return web.ask("POST", "/logout", headers=OWN | held, allow_redirects=False)


def cookie(answer: requests.Response) -> dict[str, str]:
    """The cookie that an answer sets, as a request sends it."""
    return {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}


def status(web: Web, method: str, path: str, headers: dict[str, str]) -> int:
    return web.ask(method, path, headers=headers, allow_redirects=False).status_code


def test_a_key_buys_a_cookie_that_scripts_and_other_sites_have_no_part_in(dashboard: Web) -> None:
    answer = log_in(dashboard, dashboard.key("read"))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    (morsel,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert (morsel["httponly"], morsel["samesite"], morsel["path"]) == (True, "strict", "/")
    assert morsel["domain"] == ""
    assert int(morsel["max-age"]) == 12 * 3600
    assert status(dashboard, "GET", "/read", cookie(answer)) == 200
    assert status(dashboard, "POST", "/admin", {**cookie(answer), **OWN}) == 403  # its scope
    # The table has only a hash.
    token = cookie(answer)["Cookie"].partition("=")[2]
    assert len(token) >= 43
    with open_tables(dashboard.options.mysql_url) as session:
        rows = session.query("SELECT * FROM web_session")
    assert any(row[0] == api_keys.hash_of(token) for row in rows)
    assert all(token.encode() not in bytes(repr(row), "utf-8") for row in rows)


def test_by_https_the_cookie_is_of_this_host_and_of_https_alone(dashboard: Web) -> None:
    key = dashboard.key("read")
    proxied = {
        "X-Forwarded-For": "203.0.113.5",
        "X-Forwarded-Proto": "https",
        "Host": "counters.example.com",
    }
    answer = log_in(dashboard, key, **proxied, Origin="https://counters.example.com")
    set_cookie = answer.headers["Set-Cookie"]
    assert set_cookie.startswith("__Host-countersink-")
    assert "; Secure" in set_cookie
    assert status(dashboard, "GET", "/read", {**cookie(answer), **proxied}) == 200
    assert status(dashboard, "GET", "/read", cookie(answer)) == 401  # by http


def test_changes_by_cookie_come_from_our_own_pages(dashboard: Web) -> None:
    held = cookie(log_in(dashboard, dashboard.key("admin")))
    for own in (OWN, {"Origin": dashboard.url}, {"Referer": f"{dashboard.url}/x"}):
        assert status(dashboard, "POST", "/admin", {**held, **own}) == 200
    for other in (
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Referer": "https://evil.example/"},
    ):
        assert status(dashboard, "POST", "/admin", {**held, **other}) == 403, other
        public = dashboard.ask("POST", "/hit/a", headers={**held, **other})
        assert public.json()["public"] is True


def test_nobody_is_logged_in_or_out_by_a_page_of_somebody_else(dashboard: Web) -> None:
    key = dashboard.key("read")
    cross = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
    assert log_in(dashboard, key, **cross).status_code == 403
    shown = log_in(dashboard, key, **cross, Accept="text/html")
    assert (shown.status_code, shown.headers["Location"]) == (303, "/login?wrong=403")
    assert "Set-Cookie" not in shown.headers
    held = cookie(log_in(dashboard, key))
    assert status(dashboard, "POST", "/logout", {**held, **cross}) == 403
    assert status(dashboard, "GET", "/read", held) == 200


def test_out_is_out(dashboard: Web) -> None:
    held = cookie(log_in(dashboard, dashboard.key("read")))
    answer = log_out(dashboard, held)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    name = held["Cookie"].partition("=")[0]
    assert answer.headers["Set-Cookie"].startswith(f'{name}=""; ')
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert status(dashboard, "GET", "/read", held) == 401
    dashboard.look_again()
    assert status(dashboard, "GET", "/read", held) == 401
    assert status(dashboard, "POST", "/logout", OWN) == 303  # nobody was in


def test_two_installations_on_one_host_leave_each_other_logged_in(
    dashboard: Web, redis_url: str, mysql_url: str
) -> None:
    with (
        serving(redis_url, mysql_url, routes=DOORS_AND_LOGIN, without_keys=False) as other,
        requests.Session() as browser,  # as all of them it sends a cookie to every port of a host
    ):
        both = (dashboard, other)
        for web in both:
            form = {"key": web.key("read")}
            browser.post(f"{web.url}/login", data=form, headers=OWN, allow_redirects=False)
        assert [browser.get(f"{web.url}/read").status_code for web in both] == [200, 200]
        browser.post(f"{other.url}/logout", headers=OWN, allow_redirects=False)
        assert [browser.get(f"{web.url}/read").status_code for web in both] == [200, 401]


def test_a_login_ends_with_its_key(dashboard: Web) -> None:
    key = dashboard.key("read", name="ends")
    held = cookie(log_in(dashboard, key))
    with open_tables(dashboard.options.mysql_url) as session:
        api_keys.revoke(session, "ends")
    dashboard.look_again()
    assert status(dashboard, "GET", "/read", held) == 401


def test_a_login_ends_with_its_time(dashboard: Web) -> None:
    held = cookie(log_in(dashboard, dashboard.key("read")))
    with open_tables(dashboard.options.mysql_url) as session:
        session.execute("UPDATE web_session SET expires = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND")
    dashboard.look_again()
    assert status(dashboard, "GET", "/read", held) == 401


def test_a_wrong_key_is_told_to_programs_and_shown_to_people(dashboard: Web) -> None:
    nobodys = f"ck_aaaaaaaaaa_{'A' * 43}"
    assert log_in(dashboard, "ck_wrong").status_code == 403
    assert log_in(dashboard, dashboard.key("ingest")).status_code == 403
    shown = log_in(dashboard, nobodys, Accept="text/html")
    assert (shown.status_code, shown.headers["Location"]) == (303, "/login?wrong=1")
    assert [log_in(dashboard, nobodys).status_code for _ in range(3)] == [403, 429, 429]
    shown = log_in(dashboard, nobodys, Accept="text/html")
    assert (shown.status_code, shown.headers["Location"]) == (303, "/login?wrong=429")
    assert log_in(dashboard, dashboard.key("read")).status_code == 303


def test_what_is_no_login_form(dashboard: Web) -> None:
    form = "application/x-www-form-urlencoded"
    for body, kind, expected in (
        (b'{"key": "x"}', "application/json", 415),
        (b"key=" + b"x" * 5_000, form, 413),
        (b"key=a&key=b", form, 422),
        (b"other=x", form, 422),
        (b"", form, 422),
        (b"\xff\xfe", form, 400),
        (b"a=1&b=2&c=3&d=4&e=5&f=6", form, 400),
    ):
        headers = {**OWN, "Content-Type": kind}
        answer = dashboard.ask("POST", "/login", data=body, headers=headers)
        assert answer.status_code == expected, body


def test_the_oldest_logins_of_a_key_make_room(mysql_url: str) -> None:
    with open_tables(mysql_url) as session:
        tokens = [
            api_keys.begin_login(session, "k", 1_000.0) for _ in range(api_keys.LOGINS_PER_KEY + 1)
        ]
        live = {each.token_hash for each in api_keys.live_logins(session)}
        assert len(live) == api_keys.LOGINS_PER_KEY
        assert api_keys.hash_of(tokens[-1]) in live
        api_keys.begin_login(session, "other", 1_000.0)
        assert len(api_keys.live_logins(session)) == api_keys.LOGINS_PER_KEY + 1
