"""Attacks by single requests: each is refused or bounded, memory stays flat, and live traffic is
counted exactly.

Those here and in ``test_attacks_by_many.py`` are made on one ``countersink web`` process, by
sockets. After each, it still runs, its peak of memory is near what it was before, and neither a
stack trace nor a secret is in its log.
"""

import json
import re
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
import requests

from countersink.counting.apply.applier import Applier
from countersink.store import Store
from tests.support.entries import entry
from tests.support.examples import MANY
from tests.web.attacks.asking import ask, post, say
from tests.web.attacks.bodies import JSON, MEGABYTE, SQL, bomb
from tests.web.attacks.target import Target
from tests.web.attacks.wire import HEADS, PATHS, SMUGGLING, Wire
from tests.web.raw import status

pytestmark = pytest.mark.usefixtures("unharmed")


def attack(target: Target, wires: tuple[Wire, ...]) -> None:
    """Send them; each is answered as it may be."""
    wrong = []
    for name, request, statuses in wires:
        said = say(target, request.replace(b"KEY", target.key.encode()))
        got = status(said) if said else 0
        if got not in statuses:
            wrong.append((name, got, said[:300]))
    assert not wrong, "\n".join(map(str, wrong))


def test_two_servers_never_see_the_end_of_a_request_at_different_places(target: Target) -> None:
    attack(target, SMUGGLING)
    target.apply()
    assert ask(target, "GET", "/v1/counters/smuggled").status_code == 404


def test_heads(target: Target) -> None:
    attack(target, HEADS)


def test_paths(target: Target) -> None:
    attack(target, PATHS)


def test_json(target: Target) -> None:
    wrong = [
        (name, got, expected)
        for name, body, expected in JSON
        if (got := post(target, body, Content_Type="application/json")) != expected
    ]
    assert not wrong
    # Of two members with one name programs do not agree on which one holds.
    for body in (
        b'{"counter":"other","counter":"public_twice"}',
        b'[{"counter":"other"},{"counter":"public_twice","amount":1,"\\u0061mount":2}]',
    ):
        assert post(target, body) == 422
    target.apply()
    assert ask(target, "GET", "/v1/counters/public_twice").status_code == 404


@pytest.mark.random
def test_json_elsewhere(target: Target) -> None:
    """The reader is the same: large bodies are sent to one path, by `make test-long` to each."""
    for path in ("/v1/sequences/s/next", "/v1/dead/retry", "/v1/dead/drop"):
        for name, body, _ in JSON:
            if 0 < len(body) < 1_000 or (body and (MANY or path.endswith("next"))):
                status_code = ask(target, "POST", path, data=body).status_code
                assert status_code in (400, 413, 415, 422), (path, name)
    assert ask(target, "GET", "/v1/sequences/s").json()["value"] is None


@pytest.mark.random
def test_sql_is_a_text_as_any_other(target: Target) -> None:
    """Some of the texts stand at each place; by `make test-long` all of them."""
    some = SQL if MANY else SQL[6:9]
    document = requests.get(f"{target.url}/openapi.json", timeout=20).json()
    increments = [{"counter": "public_sql", "key": text} for text in SQL]
    assert post(target, json.dumps(increments).encode()) == 202
    for text in some:
        assert post(target, json.dumps({"counter": text}).encode()) == (
            202 if text.isidentifier() else 422
        ), text
        assert post(target, json.dumps({"counter": "public", "id": text}).encode()) == 202
        named = quote(text, safe="")
        taken = ask(target, "POST", f"/v1/sequences/{named}/next")
        assert taken.json() == {"name": text, "value": 1}, text
        assert ask(target, "GET", f"/v1/counters/{named}/daily").status_code in (400, 404), text
    for path, methods in document["paths"].items():
        if "get" not in methods or path.startswith(("/hit/", "/v1/live")):
            continue
        place = re.sub(r"\{\w+\}", "public_sql", path)
        names = [each["name"] for each in methods["get"]["parameters"] if each["in"] == "query"]
        for name in (*names, "'"):
            given = ask(target, "GET", place, params=[(name, text) for text in SQL])
            assert given.status_code in (200, 404, 422), (path, name)
            for text in SQL[6:8] if MANY else some[:1]:
                given = ask(target, "GET", place, params={name: text})
                assert given.status_code in (200, 404, 422), (path, name, text)
    target.apply()
    totals = ask(target, "GET", "/v1/counters/public_sql/top", params={"n": 100}).json()["rows"]
    assert {row["key"]: row["total"] for row in totals} == dict.fromkeys(SQL, 1)


def test_questions_whose_answers_would_have_no_end(target: Target) -> None:
    with Store(target.mysql_url) as store:
        store.counters.set("public_hours", resolution="hour")
    assert post(target, b'{"counter":"public_hours","at":0}') == 422
    applier = Applier(target.mysql_url, 9)  # through the queue nobody gets that far
    for year in (1970, 9999):
        at = round(datetime(year, 12, 1, tzinfo=UTC).timestamp()) // 60
        applier.apply([entry([(0, "public_hours", "", at, 1)])])
    applier.close()
    counter = "/v1/counters/public_hours"
    for path in ("hourly", "daily", "totals?by=hour", "hourly?include_pending=true"):
        for days in ("&from=0001-01-01&to=9999-12-31", "&from=1970-01-01&to=9999-12-01"):
            asked = f"{counter}/{path}{'' if '?' in path or not days else '?'}{days}"
            told = ask(target, "GET", asked.replace("?&", "?"))
            assert told.status_code == 422, asked
            assert "100,000" in told.text, asked
    told = ask(target, "GET", f"{counter}/hourly").json()
    assert (told["truncated"], sum(row["total"] for row in told["rows"])) == (True, 1)
    assert len(told["rows"]) <= 24
    for query in ("top?n=10001", f"top?search={'%25' * 256}", f"daily?time_zone={'A' * 10_000}"):
        assert ask(target, "GET", f"{counter}/{query}").status_code == 422, query
    for query in ("limit=1001", "days=100000", "after=" + "a" * 65):
        assert ask(target, "GET", f"/v1/counters?{query}").status_code == 422, query
    many = "&".join(f"counter=public_{number}" for number in range(101))
    for path in ("/v1/export/openmetrics", "/v1/live"):
        assert ask(target, "GET", f"{path}?{many}").status_code == 422, path


def test_ten_megabytes(target: Target) -> None:
    body = bytes(10 * MEGABYTE)
    key = target.key.encode()
    head = b"POST /v1/increments HTTP/1.1\r\nHost: localhost\r\nX-API-Key: " + key + b"\r\n"
    length = b"Content-Length: %d\r\n" % len(body)
    chunks = b"Transfer-Encoding: chunked\r\n\r\n"
    assert status(say(target, head, length, b"\r\n", body)) == 413
    # Not a byte of it is sent.
    assert status(say(target, head, length, b"Expect: 100-continue\r\n\r\n")) == 413
    assert status(say(target, head, chunks, b"%x\r\n" % len(body), body)) == 413
    assert status(say(target, head, chunks, b"1\r\n \r\n" * 2_000_000)) in (408, 413)
    # Whoever has no key is told so before anything is read.
    assert status(say(target, head.replace(key, b"ck_no"), length, b"\r\n", body)) in (401, 429)
    public = head.replace(b"/v1/increments", b"/hit/public/x").replace(key, b"")
    assert (
        status(say(target, public.replace(b"X-API-Key: \r\n", b""), length, b"\r\n", body)) == 413
    )


def test_bombs(target: Target) -> None:
    for coding in ("gzip", "deflate"):
        packed = bomb(1_024, gzip=coding == "gzip")
        assert len(packed) < 1.1 * MEGABYTE
        small = bomb(512, gzip=coding == "gzip")
        assert post(target, packed, Content_Encoding=coding) == 413
        assert post(target, small, Content_Encoding=coding) == 413
    assert post(target, small, Content_Encoding="gzip, gzip") == 415
    assert post(target, small, Content_Encoding="br") == 415
