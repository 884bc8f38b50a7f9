"""Keys: who is let in, who is not, and from when on."""

import asyncio
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
import requests

from countersink.database.migrate import migrate
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.store import Store, api_keys
from countersink.web.auth import register
from countersink.web.auth.register import Register
from tests.support.factories import MySQLFactory
from tests.support.processes import Children
from tests.support.waiting import eventually
from tests.web.process import WebProcess
from tests.web.routes import ROUTES
from tests.web.serving import Web, serving

T = TypeVar("T")


def status(web: Web, method: str, path: str, key: str = "") -> int:
    return web.ask(method, path, key).status_code


def revoke(web: Web, which: str) -> None:
    with open_tables(web.options.mysql_url) as session:
        api_keys.revoke(session, which)
    web.look_again()


def test_only_where_that_was_said_everybody_may_do_everything(opened: Web, guarded: Web) -> None:
    answer = requests.post(f"{opened.url}/admin", timeout=20)
    assert answer.json()["name"] == "everybody"
    key = opened.key("read")
    assert status(opened, "POST", "/admin") == 200
    assert status(opened, "POST", "/admin", key) == 403
    assert status(guarded, "GET", "/read") == 401


def test_a_key_is_shown_in_either_header_and_says_who_asks(guarded: Web) -> None:
    key = guarded.key("read", name="the page")
    both = {"Authorization": "Basic dXNlcjpwYXNz", "X-API-Key": key}  # one scheme is ours
    bearer = {"Authorization": f"Bearer {key}"}
    for headers in (bearer, {"Authorization": f"bearer  {key} "}, {"X-API-Key": key}, both):
        answer = guarded.ask("GET", "/read", headers=headers)
        assert answer.json()["name"] == "the page"


def test_a_wrong_key_is_refused(guarded: Web) -> None:
    key = guarded.key("admin")
    other = "A" if key[-1] != "A" else "B"
    for shown in (
        key[:-1] + other,
        re.sub("^ck_[a-z0-9]+", "ck_zzzzzzzzzz", key),
        key + "A",
        key[:-1],
        key.upper(),
        f"{key} {key}",
        "",
        "ck__",
        "A" * 8_000,
        "ck_\u00e9_x",
        "' OR 1=1 -- ",
        f"ck_aaaaaaaaaa_{'A' * 43}",
        "0" * 32,
    ):
        headers = {"Authorization": f"Bearer {shown}".encode("latin-1")}
        answer = requests.get(f"{guarded.url}/read", headers=headers, timeout=20)
        assert answer.status_code == 401, shown
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert key not in answer.text


def test_a_key_made_just_now_is_known_at_once(guarded: Web) -> None:
    with open_tables(guarded.options.mysql_url) as session:
        _, key = api_keys.create(session, "new", ["read"])
    assert status(guarded, "GET", "/read", key) == 200


def test_an_expired_key_is_refused_without_asking_mysql(guarded: Web) -> None:
    now = [0.0]
    register = Register(guarded.store, guarded.options.mysql_url, clock=lambda: now[0])
    soon = datetime.now(UTC) + timedelta(seconds=90)
    with open_tables(guarded.options.mysql_url) as session:
        made, _ = api_keys.create(session, "short", ["read"], expires=soon)
        forever, _ = api_keys.create(session, "long", ["read"])
    asyncio.run(register.read())
    assert register.key(made.id) is not None
    now[0] = 91.0
    assert register.key(made.id) is None
    assert register.key(forever.id) is not None


def test_keys_outlive_mysql_and_increments_are_accepted(
    redis_url: str, own_mysql_server: MySQLFactory
) -> None:
    server = own_mysql_server()
    url = server.url_for("countersink")
    migrate(url)
    with serving(redis_url, url, routes=ROUTES, without_keys=False) as web:
        key = web.key("ingest")
        server.stop()
        assert status(web, "POST", "/ingest", key) == 200
        assert status(web, "POST", "/ingest") == 401
        assert status(web, "POST", "/ingest", f"{key[:-1]}~") == 401


def test_a_process_that_starts_while_mysql_is_away_serves_once_it_is_back(
    redis_url: str, own_mysql_server: MySQLFactory, children: Children
) -> None:
    server = own_mysql_server()
    url = server.url_for("countersink")
    migrate(url)
    with open_tables(url) as session:
        _, key = api_keys.create(session, "reader", ["read"])
    server.stop()
    web = WebProcess.start(children, redis_url, url)

    def status(path: str, **headers: str) -> int:
        return requests.get(f"{web.url}{path}", headers=headers, timeout=20).status_code

    shown = {"Authorization": f"Bearer {key}"}
    assert status("/livez") == status("/login") == 200
    assert status("/v1/whoami", **shown) == status("/v1/whoami", Cookie="countersink-0=1") == 503
    server.start()
    eventually(lambda: status("/v1/whoami", **shown) == 200)
    assert status("/v1/whoami", Cookie="countersink-0=1") == 401


def test_a_row_that_somebody_has_edited_is_no_key_and_keeps_no_other_from_being_revoked(
    guarded: Web,
) -> None:
    good = guarded.key("read")
    edited = {}
    with open_tables(guarded.options.mysql_url) as session:
        for counters in ("null", "{}", '"shop.*"', "[1]", '[["a"]]'):
            made, text = api_keys.create(session, counters, ["read"], counters=["shop.*"])
            edited[made.id] = text
            session.execute("UPDATE api_key SET counters = %s WHERE id = %s", (counters, made.id))
    guarded.look_again()
    assert status(guarded, "GET", "/read", good) == 200
    for key in edited.values():
        assert status(guarded, "GET", "/read", key) == 401
    revoke(guarded, good.split("_")[1])
    assert status(guarded, "GET", "/read", good) == 401
    with open_tables(guarded.options.mysql_url) as session:
        for listed in api_keys.list_keys(session):
            if listed.id in edited:
                assert listed.scopes == ()
                assert api_keys.revoke(session, listed.id).revoked is not None


class Faulty(Store):
    """A store that has a bug, for a while."""

    bug = False

    def snapshot(self, work: Callable[[Session], T]) -> T:
        if self.bug:
            raise TypeError("a bug")
        return super().snapshot(work)


def test_whatever_breaks_a_reading_the_next_one_is_done(
    guarded: Web, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(register, "REFRESH_S", 0.01)
    url = guarded.options.mysql_url
    id = guarded.key("read").split("_")[1]

    async def until(check: Callable[[], bool]) -> None:
        while not check():
            await asyncio.sleep(0.01)

    async def keep(store: Faulty) -> None:
        kept = Register(store, url)
        await kept.read()
        assert kept.key(id) is not None
        keeping = asyncio.create_task(kept.keep_fresh())
        store.bug = True
        await until(lambda: any("cannot read keys" in each.getMessage() for each in caplog.records))
        store.bug = False
        with open_tables(url) as session:
            api_keys.revoke(session, id)
        await until(lambda: kept.key(id) is None)
        keeping.cancel()

    store = Faulty(url)
    with store:
        asyncio.run(asyncio.wait_for(keep(store), 20))


def test_the_use_of_a_key_is_written_down_at_the_end(redis_url: str, mysql_url: str) -> None:
    with serving(redis_url, mysql_url, routes=ROUTES, without_keys=False) as web:
        used = web.key("read", name="used")
        web.key("read", name="idle")
        assert status(web, "GET", "/read", used) == 200
    with open_tables(mysql_url) as session:
        seen = {key.name: key.last_used for key in api_keys.list_keys(session)}
    assert seen["used"] is not None
    assert seen["idle"] is None


def test_no_key_is_in_the_log_or_in_any_repr(
    guarded: Web, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = guarded.key("admin")
    secret = key.split("_", 2)[2]
    for path in (f"/read?key={key}", "/broken", "/away"):
        guarded.ask("GET", path, key)
    known = guarded.services.register.key(key.split("_")[1])
    with open_tables(guarded.options.mysql_url) as session:
        shown = [repr(known), repr(api_keys.live_keys(session)), repr(guarded.services.register)]
        assert guarded.options.mysql_url not in repr(guarded.options)
        hashes = [bytes(each) for (each,) in session.query("SELECT hash FROM api_key")]
    said = [r.getMessage() for r in caplog.records if not r.name.startswith("urllib3")]
    assert said
    assert all(secret not in line for line in said)
    assert all(secret not in text for text in shown)
    assert hashes
    for each in hashes:
        assert all(repr(each) not in text and each.hex() not in text for text in shown)
    assert all("hash=" not in text for text in shown)
