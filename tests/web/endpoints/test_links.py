"""Links that show one counter: what they open, and all that they do not."""

import asyncio
import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
import requests

from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.store import api_keys, links
from countersink.store.errors import NoSuchKey, NoSuchLink, TooManyLinks
from countersink.web.app import ROUTES
from countersink.web.auth import register
from tests.support.waiting import eventually
from tests.web.serving import Web, serving

DAY = datetime(2026, 10, 20, 12, tzinfo=UTC)
TRICKS = (
    "/v1/counters/views.secret/daily",
    "/v1/counters/public/daily",
    "/v1/counters/views%2Esecret/daily",
    "/v1/counters/views/../views.secret/daily",
    "/v1/counters/views/%2e%2e/views.secret/daily",
    "/v1/counters/views%2F..%2Fviews.secret/daily",
    "/v1/counters/~views.secret/daily",
    "/v1/counters/VIEWS/daily",
    "/v1/counters/view*/daily",
    "/v1/counters/*/daily",
    "/v1//counters/views.secret/daily",
    "/shared/../v1/counters/views.secret/daily",
    "/v1/counters?search=views",
)


@pytest.fixture(scope="module")
def web(shared_urls: tuple[str, str]) -> Iterator[Web]:
    """A server that takes keys, with two counters."""
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(
            *shared_urls,
            without_keys=False,
            public_counters=("public",),
            failures_per_minute=10_000,
        ) as served,
    ):
        patch.setattr(register, "REFRESH_S", 0.2)
        for counter in ("views", "views.secret", "public", "deleted", "Deleted"):
            served.producer.increment(counter, "/a", 3, at=DAY)
        served.apply()
        yield served


@pytest.fixture(scope="module")
def reader(web: Web) -> str:
    """A key that may read."""
    return web.key("read", name="reader")


def sql(web: Web, statement: str, *values: str) -> None:
    """Change rows as nobody does but by hand."""
    with open_tables(web.options.mysql_url) as session:
        session.execute(statement, values)


def daily(web: Web, token: str, counter: str = "views") -> int:
    """The status of a question for the days of a counter."""
    return web.ask("GET", f"/v1/counters/{counter}/daily", token).status_code


def make(web: Web, key: str, counter: str = "views", **more: Any) -> dict[str, Any]:
    answer = web.ask("POST", "/v1/links", key, json={"counter": counter, **more})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_a_link_shows_its_counter_until_it_ends(web: Web, reader: str) -> None:
    made = make(web, reader, days=2)
    assert made["path"] == f"/shared#/counter/views?link={made['token']}"
    ends = datetime.fromisoformat(made["expires"])
    assert timedelta(days=1, hours=23) < ends - datetime.now(UTC) <= timedelta(days=2)
    token = made["token"]
    assert re.fullmatch(rf"cl_{made['id']}_[A-Za-z0-9_-]{{43}}", token)
    for question in ("", "/totals?by=key", "/daily", "/top", "/notes", "/daily?format=csv"):
        assert web.ask("GET", f"/v1/counters/views{question}", token).status_code == 200, question
    assert web.ask("GET", "/v1/counters/views/daily", token).json()["rows"][0]["total"] == 3
    assert web.ask("HEAD", "/v1/counters/views/daily", token).status_code == 200
    who = web.ask("GET", "/v1/whoami", token).json()
    assert (who["scopes"], who["counters"], who["link"]) == (["read"], ["views"], made["id"])
    assert who["key"] is None
    page = requests.get(f"{web.url}/shared", timeout=20)  # without a key
    assert page.status_code == 200
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert page.headers["X-Robots-Tag"] == "noindex"


def test_a_link_opens_nothing_else(web: Web, reader: str) -> None:
    token = make(web, reader)["token"]
    routes = [(route.method, route.path) for route in ROUTES if not route.hidden]
    assert len(routes) > 25
    shown = set()
    for method, path in routes:
        if method == "GET" and path in ("/openapi.json", "/healthz", "/readyz", "/livez"):
            continue
        place = path.replace("{counter}", "views").replace("{day}", "2026-10-20")
        place = place.replace("{key:path}", "k").replace("{name:path}", "n").replace("{id}", "i")
        answer = web.ask(method, place, token, json={"counter": "views"})
        if answer.status_code != 403:
            shown.add((method, path))
        else:
            assert "its counter only" in answer.json()["detail"]
    one = "/v1/counters/{counter}"
    assert shown == {
        *(("GET", f"{one}{question}") for question in ("", "/totals", "/daily", "/hourly")),
        *(("GET", f"{one}{question}") for question in ("/minutely", "/top", "/notes")),
        ("GET", "/v1/whoami"),
    }
    # Not even what needs no key: whoever wants that shows none.
    assert web.ask("POST", "/hit/public/k", token).status_code == 403
    assert requests.post(f"{web.url}/hit/public/k", timeout=20).status_code == 204
    with requests.get(f"{web.url}/", timeout=20, headers={"Accept": "text/html"}) as page:
        assert page.url.endswith("/login")


def test_tricks_with_paths_lead_to_nothing_of_others(web: Web, reader: str) -> None:
    token = make(web, reader)["token"]
    session = requests.Session()
    for method, path in product(("GET", "HEAD"), TRICKS):
        prepared = session.prepare_request(requests.Request(method, web.url))
        prepared.url = f"{web.url}{path}"  # as it is, with its dots
        prepared.headers["Authorization"] = f"Bearer {token}"
        prepared.headers["Accept"] = "application/json"
        answer = session.send(prepared, timeout=20)
        assert answer.status_code in (400, 403, 404), (method, path, answer.text)


def test_a_token_that_was_changed_is_none(web: Web, reader: str) -> None:
    made, other = make(web, reader), make(web, reader, "views.secret")
    token, id = made["token"], made["id"]
    secret = token.removeprefix(f"cl_{id}_")
    last = "A" if secret[-1] != "A" else "B"
    tokens = {
        "the secret of another": f"cl_{id}_{other['token'].split('_', 2)[2]}",
        "another id": f"cl_{other['id']}_{secret}",
        "the id of a key": f"cl_{reader.split('_')[1]}_{secret}",
        "an unknown id": f"cl_zzzzzzzzzz_{secret}",
        "another last letter": f"{token[:-1]}{last}",
        "no secret": f"cl_{id}_",
        "zeros": f"cl_{id}_{encoded(bytes(32))}",
        "padding": f"{token}=",
        "a letter more": f"{token}A",
        "upper case": token.upper(),
        "no prefix": f"{id}_{secret}",
    }
    for what, wrong in tokens.items():
        for counter in ("views", "views.secret"):
            assert daily(web, wrong, counter) in (401, 429), (what, counter)
    web.look_again()
    assert daily(web, token) == 200


def test_the_table_has_nothing_from_which_a_token_could_be_made(web: Web, reader: str) -> None:
    made = make(web, reader)
    secret = made["token"].removeprefix(f"cl_{made['id']}_")
    with open_tables(web.options.mysql_url) as session:
        (row,) = session.query("SELECT * FROM api_key WHERE id = %s", (made["id"],))
    assert len(base64.urlsafe_b64decode(f"{secret}=")) == 32
    (digest,) = (value for value in row if isinstance(value, bytes))
    assert digest == hashlib.sha256(secret.encode()).digest()
    for value in row:
        assert secret not in str(value)


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_a_link_whose_row_was_edited_opens_nothing(web: Web, reader: str) -> None:
    tokens = {}
    for counters in ("[]", '["*"]', '["view?"]', '["views", "views.secret"]', "null", "{}"):
        made = make(web, reader)
        tokens[counters] = made["token"]
        sql(web, "UPDATE api_key SET counters = %s WHERE id = %s", counters, made["id"])
    web.look_again()
    for counters, token in tokens.items():
        for counter in ("views", "views.secret"):
            assert daily(web, token, counter) == 401, (counters, counter)
    assert web.ask("GET", "/v1/links", reader).status_code == 200
    with open_tables(web.options.mysql_url) as session:
        for one in links.list_links(session):
            links.revoke(session, one.id)


def test_a_link_ends_by_its_end_its_revocation_and_its_key(web: Web) -> None:
    admin, reader = web.key("admin", name="admin"), web.key("read", name="brief")
    first, second, third = (make(web, reader) for _ in range(3))
    expiring = web.key("read", name="expiring", expires=datetime.now(UTC) + timedelta(hours=1))
    fourth = make(web, expiring)
    stranger = web.key("read", name="stranger")
    listed = web.ask("GET", "/v1/links", reader).json()["rows"]
    assert {one["id"] for one in listed} == {one["id"] for one in (first, second, third)}
    assert "token" not in listed[0]
    assert web.ask("GET", "/v1/links", stranger).json()["rows"] == []
    assert web.ask("DELETE", f"/v1/links/{first['id']}", stranger).status_code == 404
    everybodys = web.ask("GET", "/v1/links", admin).json()["rows"]
    assert {one["id"] for one in everybodys} >= {one["id"] for one in listed}

    def works(link: dict[str, Any]) -> bool:
        return daily(web, link["token"]) == 200

    end = "UPDATE api_key SET expires = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND"
    assert all(map(works, (first, second, third, fourth)))
    assert web.ask("DELETE", f"/v1/links/{first['id']}", reader).status_code == 204
    assert not works(first)  # at once, where it was revoked
    assert web.ask("DELETE", f"/v1/links/{first['id']}", reader).status_code == 404
    sql(web, f"{end} WHERE id = %s", second["id"])
    eventually(lambda: not works(second))
    assert works(third)
    sql(web, "UPDATE api_key SET revoked = UTC_TIMESTAMP(3) WHERE name = 'brief'")
    eventually(lambda: not works(third))
    assert works(fourth)
    sql(web, f"{end} WHERE name = 'expiring'")
    eventually(lambda: not works(fourth))
    with open_tables(web.options.mysql_url) as session:
        ours = {one["id"] for one in (first, second, third, fourth)}
        assert ours.isdisjoint(one.id for one in links.list_links(session))
        # Those of the command line end all at once.
        _, token = links.create(session, "views", datetime.now(UTC) + timedelta(days=1))
        assert daily(web, token) == 200
        assert links.revoke_all(session) >= 1
        assert links.revoke_all(session) == 0
    eventually(lambda: daily(web, token) == 401)


def test_who_may_not_see_a_counter_makes_no_link_to_it(web: Web, reader: str) -> None:
    bound = web.key("read", name="bound", counters=("views",))
    assert web.ask("POST", "/v1/links", bound, json={"counter": "public"}).status_code == 403
    ingest = web.key("ingest", name="sender")
    assert web.ask("POST", "/v1/links", ingest, json={"counter": "views"}).status_code == 403
    token = make(web, bound)["token"]
    assert web.ask("POST", "/v1/links", token, json={"counter": "views"}).status_code == 403
    assert web.ask("POST", "/v1/links", json={"counter": "views"}).status_code == 401
    for body, status in (
        ({"counter": "nothing"}, 404),
        ({"counter": "a b"}, 404),
        ({"counter": "views", "days": 0}, 422),
        ({"counter": "views", "days": 367}, 422),
        ({"counter": "views", "days": "7"}, 422),
        ({"counter": "views", "until": 7}, 422),
        ({}, 422),
    ):
        assert web.ask("POST", "/v1/links", reader, json=body).status_code == status, body


def test_a_deleted_counter_takes_its_links_and_notes_along(web: Web, reader: str) -> None:
    admin = web.key("admin", name="another admin")
    token = make(web, reader, "deleted")["token"]
    others = [make(web, reader, counter)["id"] for counter in ("views", "Deleted")]
    note = "/v1/counters/deleted/notes/2026-10-20"
    assert web.ask("PUT", note, admin, json={"note": "x"}).status_code == 200
    web.store.counters.delete("deleted")
    with open_tables(web.options.mysql_url) as session:
        assert session.query("SELECT COUNT(*) FROM day_note WHERE counter = 'deleted'") == [(0,)]
        left = {one.id: one.counter for one in links.list_links(session)}
        assert "deleted" not in left.values()
        assert left.keys() >= set(others)
        assert session.query(
            "SELECT COUNT(*) FROM api_key WHERE counters LIKE '%\"deleted\"%'"
        ) == [(0,)]
    web.count("deleted", "/a")
    eventually(lambda: daily(web, token, "deleted") == 401)
    assert web.ask("GET", "/v1/counters/deleted/notes", admin).json()["rows"] == []


def test_a_link_is_no_key_and_a_key_no_link(web: Web, reader: str) -> None:
    made = make(web, reader)
    token = made["token"]
    own = {"Sec-Fetch-Site": "same-origin"}
    login = web.ask("POST", "/login", data={"key": token}, headers=own)
    assert login.status_code == 403
    assert "Set-Cookie" not in login.headers
    for shown in ({"X-API-Key": token}, {"Authorization": f"Bearer {token}"}):
        for path, status in (("/v1/counters/views/daily", 200), ("/v1/totals", 403)):
            assert web.ask("GET", path, headers=shown).status_code == status
    register = web.services.register
    asyncio.run_coroutine_threadsafe(register.write_uses(), web.loop).result(20)
    with open_tables(web.options.mysql_url) as session:
        used = "SELECT last_used IS NOT NULL FROM api_key WHERE id = %s"
        assert session.query(used, (made["id"],)) == [(0,)]
        assert session.query(used, (reader.split("_")[1],)) == [(1,)]
        assert made["id"] not in {key.id for key in api_keys.list_keys(session)}
        for which in (made["id"], "a link"):
            with pytest.raises(NoSuchKey):
                api_keys.revoke(session, which)
        with pytest.raises(NoSuchLink):
            links.revoke(session, reader.split("_")[1])
    web.look_again()
    for key in (token, reader):
        assert daily(web, key) == 200


def test_where_no_key_is_needed_a_link_is_made_by_everybody_and_is_no_key(
    redis_url: str, mysql_url: str
) -> None:
    with serving(redis_url, mysql_url) as web:
        web.count("views", "/a", 3, at=DAY)
        made = make(web, "")
        web.look_again()
        assert web.ask("GET", "/v1/totals").status_code == 200
        assert daily(web, made["token"]) == 200
        assert web.ask("GET", "/v1/totals", made["token"]).status_code == 403
        (listed,) = web.ask("GET", "/v1/links").json()["rows"]
        assert (listed["id"], listed["key"]) == (made["id"], None)
    with open_tables(mysql_url) as session:
        assert not api_keys.any_valid(session)


@pytest.fixture
def tables(mysql_url: str) -> Iterator[Session]:
    """A session, and no server by HTTP."""
    with open_tables(mysql_url) as session:
        yield session


def link(session: Session, counter: str = "views", key: str = "") -> str:
    """The id of a new link that lasts a day."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    return links.create(session, counter, tomorrow, api_key=key)[0].id


def reading_key(session: Session, name: str) -> str:
    """The id of a new key that may read."""
    return api_keys.create(session, name, ["read"])[0].id


@pytest.mark.servers("mariadb", "mysql")
def test_links_are_few_and_forgotten_once_they_have_ended(
    tables: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_LINKS", 3)
    key = reading_key(tables, "old")
    old, revoked, kept = (link(tables) for _ in range(3))
    with pytest.raises(TooManyLinks, match=r"^there are 3 links in all"):
        link(tables)
    tables.execute(
        "UPDATE api_key SET expires = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE id IN (%s, %s)",
        (old, key),
    )
    links.revoke(tables, revoked)
    made = link(tables)
    assert {id for (id,) in tables.query("SELECT id FROM api_key")} == {key, kept, made}
    assert {one.id for one in links.list_links(tables)} == {kept, made}


@pytest.mark.servers("mariadb", "mysql")
def test_one_key_leaves_room_for_the_links_of_others(
    tables: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_LINKS_OF_KEY", 2)
    one, other = (reading_key(tables, name) for name in ("a", "b"))
    for key in (one, one, other, "", "", ""):
        link(tables, key=key)
    with pytest.raises(TooManyLinks, match="this key has 2 links"):
        link(tables, key=one)
    link(tables, key=other)


@pytest.mark.servers("mariadb", "mysql")
def test_a_link_that_another_revokes_as_it_is_made_is_made_before(
    tables: Session, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = api_keys.insert

    def inserted(*args: Any, **options: Any) -> tuple[str, str, bool]:
        made = insert(*args, **options)
        with suppress(Conflict):
            links.revoke_all(other)
        return made

    with open_tables(mysql_url, lock_wait=1) as other:
        monkeypatch.setattr(api_keys, "insert", inserted)
        made = link(tables)
        assert [one.id for one in links.list_links(other)] == [made]
        assert links.revoke_all(other) == 1
