"""Answers are packed where the client accepts it, it pays, and nobody learns anything by it."""

import gzip
import json
from datetime import UTC, datetime, timedelta

import pytest
import requests

from tests.web.serving import Web

DAILY = "/v1/counters/views/daily"


@pytest.fixture(scope="module")
def filled(shared: Web) -> Web:
    now = datetime.now(UTC)
    for days in (0, 3_000):
        shared.producer.increment("views", "/home", at=now - timedelta(days=days))
    shared.apply()
    return shared


def ask(web: Web, path: str, **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.get(f"{web.url}{path}", headers=named, timeout=20, stream=True)


def test_what_is_long_is_packed_where_it_is_accepted(filled: Web) -> None:
    plain = ask(filled, DAILY, Accept_Encoding="identity")
    assert "Content-Encoding" not in plain.headers
    whole = plain.content
    for accepted in ("gzip", "br, gzip;q=0.5", "deflate, x-gzip", "GZIP ; q=1"):
        packed = ask(filled, DAILY, Accept_Encoding=accepted)
        assert packed.headers["Content-Encoding"] == "gzip", accepted
        body = packed.raw.read(decode_content=False)
        assert int(packed.headers["Content-Length"]) == len(body) < len(whole) / 5
        assert json.loads(gzip.decompress(body))["rows"] == json.loads(whole)["rows"]
    for refused in ("", "br", "gzip;q=0", "gzip; q=0.000", "gzipped"):
        assert "Content-Encoding" not in ask(filled, DAILY, Accept_Encoding=refused).headers
    # The numbers are the same, so the tag is; a copy is asked for by how it was packed.
    assert plain.headers["ETag"] == packed.headers["ETag"]
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert "Accept-Encoding" in plain.headers["Vary"]
    again = ask(filled, DAILY, Accept_Encoding="gzip", If_None_Match=packed.headers["ETag"])
    assert (again.status_code, "Content-Encoding" in again.headers) == (304, False)


def test_other_long_answers_are_packed_too_and_short_ones_are_not(filled: Web) -> None:
    for path in (f"{DAILY}?format=csv", "/openapi.json"):
        packed = ask(filled, path, Accept_Encoding="gzip")
        assert packed.headers["Content-Encoding"] == "gzip", path
        assert packed.content == ask(filled, path, Accept_Encoding="identity").content
    short = ask(filled, "/v1/counters/views/totals?by=total", Accept_Encoding="gzip")
    assert "Content-Encoding" not in short.headers
    with ask(filled, "/v1/live", Accept_Encoding="gzip") as live:
        assert live.headers["Content-Type"].startswith("text/event-stream")
        assert "Content-Encoding" not in live.headers


def test_what_a_page_of_somebody_else_can_have_asked_for_is_not_packed(web: Web) -> None:
    def is_packed(**headers: str) -> bool:
        answer = ask(web, "/openapi.json", Accept_Encoding="gzip", **headers)
        assert answer.status_code == 200
        return "Content-Encoding" in answer.headers

    key = web.key("read")
    assert is_packed(X_API_Key=key)
    assert is_packed(X_API_Key=key, Sec_Fetch_Site="same-origin", Cookie="a=b")
    for site in ("cross-site", "same-site"):
        assert not is_packed(X_API_Key=key, Sec_Fetch_Site=site)
    assert not is_packed(X_API_Key=key, Cookie="a=b")
