"""Links that show one counter: what they open, and all that they do not."""

import base64
import hashlib
import hmac
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
import requests

from countersink.store import links
from countersink.store.sessions import open_tables
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
    "/v1/counters/views%20/daily",
    "/v1/counters/views%00/daily",
    "/v1/counters/view*/daily",
    "/v1/counters/*/daily",
    "/v1//counters/views.secret/daily",
    "/shared/../v1/counters/views.secret/daily",
    "/v1/counters?search=views",
    "/v1/totals",
    "/v1/live?counter=views",
    "/v1/export/openmetrics?counter=views",
    "/v1/system",
    "/v1/dead",
    "/v1/links",
    "/v1/notes",
    "/v1/sequences/views",
)


@pytest.fixture(scope="module")
def web(shared_urls: tuple[str, str]) -> Iterator[Web]:
    """A server that takes keys, with two counters."""
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(*shared_urls, public_counters=("public",), failures_per_minute=10_000) as served,
    ):
        patch.setattr(register, "REFRESH_S", 0.2)
        for counter in ("views", "views.secret", "public", "deleted"):
            served.producer.increment(counter, "/a", 3, at=DAY)
        served.apply()
        yield served


@pytest.fixture(scope="module")
def reader(web: Web) -> str:
    """A key that may read."""
    return web.key("read", name="reader")


def make(web: Web, key: str, counter: str = "views", **more: Any) -> dict[str, Any]:
    answer = web.ask("POST", "/v1/links", key, json={"counter": counter, **more})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def forged(web: Web, link: str, **changes: Any) -> str:
    """A token that is rightly signed by whoever can read the table."""
    with open_tables(web.options.mysql_url) as session:
        ((secret, counter, expires),) = session.query(
            "SELECT secret, counter, expires FROM share_link WHERE id = %s", (link,)
        )
    ends = int(expires.replace(tzinfo=UTC).timestamp())
    said = {"id": link, "ends": ends, "counter": counter, **changes}
    content = encoded(f"{said['id']}.{said['ends']}.{said['counter']}".encode())
    return f"cl_{content}.{signed(bytes(secret), content)}"


def signed(secret: bytes, content: str) -> str:
    return encoded(hmac.digest(secret, content.encode(), "sha256"))


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_a_link_shows_its_counter_until_it_ends(web: Web, reader: str) -> None:
    made = make(web, reader, days=2)
    assert made["path"] == f"/shared#/counter/views?link={made['token']}"
    ends = datetime.fromisoformat(made["expires"])
    assert timedelta(days=1, hours=23) < ends - datetime.now(UTC) <= timedelta(days=2)
    assert forged(web, made["id"]) == made["token"]  # the form, byte by byte
    token = made["token"]
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
            assert "nothing else" in answer.json()["detail"]
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
    token = made["token"]
    content, signature = token.removeprefix("cl_").split(".")
    said = base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)).decode()
    id, ends, _ = said.split(".", 2)
    later = encoded(f"{id}.{int(ends) + 86_400}.views".encode())
    elsewhere = encoded(f"{id}.{ends}.views.secret".encode())
    plain = encoded(hashlib.sha256(content.encode()).digest())
    last = signature[:-1] + ("A" if signature[-1] != "A" else "B")
    tokens = {
        "a later end": f"cl_{later}.{signature}",
        "another counter": f"cl_{elsewhere}.{signature}",
        "the signature of another": f"cl_{content}.{other['token'].split('.')[-1]}",
        "no signature": f"cl_{content}.",
        "an empty secret's": f"cl_{content}.{signed(b'', content)}",
        "a hash": f"cl_{content}.{plain}",
        "zeros": f"cl_{content}.{encoded(bytes(32))}",
        "another last letter": f"cl_{content}.{last}",
        "padding": f"cl_{content}=.{signature}",
        "upper case": token.upper(),
        "an unknown id": forged(web, made["id"], id="nnnnnnnnnnnn"),
        "the secret of an unknown one": "cl_"
        + (content := encoded(f"zzzzzzzzzzzz.{ends}.views".encode()))
        + f".{signed(bytes(32), content)}",
        # Rightly signed, which nobody else can: what is signed counts, and what the table has.
        "an end in the past": forged(web, made["id"], ends=int(time.time()) - 1),
        "a counter of its own": forged(web, made["id"], counter="views.secret"),
        "a pattern": forged(web, made["id"], counter="*"),
    }
    for what, wrong in tokens.items():
        for path in ("/v1/counters/views/daily", "/v1/counters/views.secret/daily"):
            assert web.ask("GET", path, wrong).status_code in (401, 429), (what, path)
    web.look_again()
    assert web.ask("GET", "/v1/counters/views/daily", token).status_code == 200


def test_a_link_ends_by_its_end_its_revocation_and_its_key(web: Web) -> None:
    admin, reader = web.key("admin", name="admin"), web.key("read", name="brief")
    first, second, third = (make(web, reader) for _ in range(3))
    stranger = web.key("read", name="stranger")
    listed = web.ask("GET", "/v1/links", reader).json()["rows"]
    assert {one["id"] for one in listed} == {one["id"] for one in (first, second, third)}
    assert "token" not in listed[0]
    assert web.ask("GET", "/v1/links", stranger).json()["rows"] == []
    assert web.ask("DELETE", f"/v1/links/{first['id']}", stranger).status_code == 404
    everybodys = web.ask("GET", "/v1/links", admin).json()["rows"]
    assert {one["id"] for one in everybodys} >= {one["id"] for one in listed}

    def works(link: dict[str, Any]) -> bool:
        return web.ask("GET", "/v1/counters/views/daily", link["token"]).status_code == 200

    assert all(map(works, (first, second, third)))
    assert web.ask("DELETE", f"/v1/links/{first['id']}", reader).status_code == 204
    assert not works(first)  # at once, where it was revoked
    assert web.ask("DELETE", f"/v1/links/{first['id']}", reader).status_code == 404
    with open_tables(web.options.mysql_url) as session:
        session.execute(
            "UPDATE share_link SET expires = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE id = %s",
            (second["id"],),
        )
    eventually(lambda: not works(second))
    assert works(third)
    with open_tables(web.options.mysql_url) as session:
        session.execute("UPDATE api_key SET revoked = UTC_TIMESTAMP(3) WHERE name = 'brief'")
    eventually(lambda: not works(third))


def test_links_of_the_command_line_end_all_at_once(web: Web, reader: str) -> None:
    with open_tables(web.options.mysql_url) as session:
        _, token = links.create(session, "views", datetime.now(UTC) + timedelta(days=1))
        assert web.ask("GET", "/v1/counters/views/daily", token).status_code == 200
        assert links.revoke_all(session) >= 1
        assert links.revoke_all(session) == 0
    path = "/v1/counters/views/daily"
    eventually(lambda: web.ask("GET", path, token).status_code == 401)


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
        ({"counter": "a b"}, 422),
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
    note = "/v1/counters/deleted/notes/2026-10-20"
    assert web.ask("PUT", note, admin, json={"note": "x"}).status_code == 200
    web.store.counters.delete("deleted")
    with open_tables(web.options.mysql_url) as session:
        for table in ("share_link", "day_note"):
            counted = f"SELECT COUNT(*) FROM {table} WHERE counter = 'deleted'"
            assert session.query(counted) == [(0,)]
    web.count("deleted", "/a")
    path = "/v1/counters/deleted/daily"
    eventually(lambda: web.ask("GET", path, token).status_code == 401)
    assert web.ask("GET", "/v1/counters/deleted/notes", admin).json()["rows"] == []


def test_a_link_is_told_nowhere_but_to_who_made_it(
    web: Web, reader: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = make(web, reader)
    signature = made["token"].split(".")[-1]
    web.ask("GET", "/v1/counters/views/daily", made["token"])
    web.ask("GET", "/v1/totals", made["token"])
    assert signature not in caplog.text
    claim = links.claim_of(made["token"])
    known = web.services.register.link(made["id"])
    assert known is not None
    assert signature not in repr(claim)
    assert repr(known.hash) not in repr(known)


def test_a_link_is_no_key_to_log_in_with(web: Web, reader: str) -> None:
    token = make(web, reader)["token"]
    own = {"Sec-Fetch-Site": "same-origin"}
    answer = web.ask("POST", "/login", data={"key": token}, headers=own)
    assert answer.status_code == 403
    assert "Set-Cookie" not in answer.headers
    for shown in ({"X-API-Key": token}, {"Authorization": f"Bearer {token}"}):
        for path, status in (("/v1/counters/views/daily", 200), ("/v1/totals", 403)):
            assert web.ask("GET", path, headers=shown).status_code == status
