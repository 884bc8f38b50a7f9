"""`/hit/…`: pixels, badges and beacons."""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
import requests

from countersink.counting.counters.all_counters import counter_names
from countersink.database.connection import connect
from countersink.database.migrate import migrate
from countersink.runtime.limits import cut_key
from countersink.web.badges import HitNumbers, badge
from countersink.web.endpoints import hits
from countersink.web.endpoints.hits import GIF
from countersink.web.services import Acknowledgements
from tests.support.factories import MySQLFactory, RedisFactory
from tests.support.waiting import eventually
from tests.web.serving import Web, serving

ELSEWHERE = {"Sec-Fetch-Site": "cross-site", "Origin": "https://blog.example"}


@pytest.fixture
def guarded(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server that takes keys alone, but for ``public`` and counters whose names begin so."""
    options: dict[str, Any] = {"public_counters": ("public", "public.*")}
    with serving(redis_url, mysql_url, without_keys=False, **options) as web:
        yield web


def get(url: str, headers: Mapping[str, str] | None = None, **more: Any) -> requests.Response:
    """The answer to a browser that opens the picture by its address."""
    said = {"Sec-Fetch-Site": "none", **(headers or {})}
    return requests.get(url, headers=said, timeout=20, **more)


def title(picture: bytes) -> str:
    """What a badge says."""
    found = ElementTree.fromstring(picture).findtext("{http://www.w3.org/2000/svg}title")
    assert found is not None
    return found


def counted(web: Web, counter: str) -> dict[str, int]:
    """Totals by key, once everything is applied."""
    web.apply()
    return dict(web.store.totals.by_key(counter))


def test_the_pixel_is_a_transparent_gif_of_one_pixel_that_is_never_kept(shared: Web) -> None:
    answer = get(f"{shared.url}/hit/views.pixel/home.gif")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "image/gif"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
    assert answer.content == GIF
    assert counted(shared, "views.pixel") == {"home": 1}


def test_keys_are_whatever_the_path_says(shared: Web) -> None:
    keys = ["", "/", "/a//b/", "a.gif", "a b", "ä", "日本", "%41", "?", "#", "a+b", ".."]
    for key in keys:
        path = quote(key, safe="/") if key != ".." else "%2e%2e"
        answer = get(f"{shared.url}/hit/views.keys/{path}.gif?x={len(path)}")
        assert answer.status_code == 200, key
    assert counted(shared, "views.keys") == dict.fromkeys(keys, 1)


def test_a_long_key_is_counted_in_the_form_of_all_interfaces_and_found_by_its_whole_text(
    shared: Web,
) -> None:
    key = "/" + "ü" * 150 + "/end"
    path = f"{shared.url}/hit/views.long/{quote(key)}"
    assert get(f"{path}.gif").status_code == 200
    assert requests.post(path, timeout=20).status_code == 204
    # The picture's ending is a part of a beacon's key, so it is cut with it.
    assert requests.post(f"{path}.gif", timeout=20).status_code == 204
    assert shared.ask("POST", "/v1/increments", json={"counter": "views.long", "key": key}).ok
    assert counted(shared, "views.long") == {cut_key(key): 3, cut_key(f"{key}.gif"): 1}
    assert title(get(f"{path}.svg?count=0").content) == "hits: 3"
    for question in ("totals?by=key&", "daily?", "totals?by=key&include_pending=true&"):
        answer = shared.ask("GET", f"/v1/counters/views.long/{question}key={quote(key)}")
        assert [row["total"] for row in answer.json()["rows"]] == [3], question
    prefix = shared.ask("GET", f"/v1/counters/views.long/totals?by=key&prefix={quote(key)}")
    assert prefix.status_code == 422  # in what was cut it cannot be told


def test_who_does_not_look_is_not_counted(shared: Web) -> None:
    accepted = shared.producer.stats().accepted
    for kind in ("gif", "svg"):
        url = f"{shared.url}/hit/views/home.{kind}"
        assert requests.head(url, headers={"Sec-Fetch-Site": "none"}, timeout=20).ok
        for headers in (
            {"Sec-Purpose": "prefetch"},
            {"Sec-Purpose": "prefetch;prerender"},
            {"Purpose": "prefetch"},
        ):
            assert get(url, headers=headers).status_code == 200
    assert shared.producer.stats().accepted == accepted


def test_the_badge_says_how_many_there_were_with_this_one(shared: Web) -> None:
    url = f"{shared.url}/hit/views.badge/home.svg"
    with ThreadPoolExecutor(8) as pool:
        first = title(get(url).content)
        assert first == "hits: 1"
        list(pool.map(lambda _: get(url), range(40)))
    assert title(get(url).content) == "hits: 42"
    shown = get(url, params={"count": "0", "label": "visits & more"})
    assert shown.headers["Content-Type"].startswith("image/svg+xml")
    assert shown.headers["Cache-Control"] == "no-store"
    assert title(shown.content) == "visits & more: 42"
    assert counted(shared, "views.badge") == {"home": 42}
    # Another server has not counted them, and knows of all the same.
    with shared.beside() as other:
        answer = get(f"{other.url}/hit/views.badge/home.svg")
        assert title(answer.content) == "hits: 43"


def test_visits_that_come_while_the_number_is_read_are_not_shown_twice(
    shared: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{shared.url}/hit/views.meanwhile/home.svg"
    more = 5
    accepted = shared.producer.stats().accepted
    others: list[Future[requests.Response]] = []
    read = HitNumbers._total

    def reading(numbers: HitNumbers, counter: str, key: str) -> tuple[int, bool] | None:
        if not others:
            others.extend(pool.submit(get, url) for _ in range(more))
            eventually(lambda: shared.producer.stats().accepted == accepted + 1 + more)
            shared.producer.flush(20)
        return read(numbers, counter, key)

    monkeypatch.setattr("countersink.web.badges.PATIENCE_S", 20.0)
    monkeypatch.setattr(HitNumbers, "_total", reading)
    with ThreadPoolExecutor(more) as pool:
        shown = [title(get(url).content)]
        shown += [title(other.result().content) for other in others]
    assert shown == [f"hits: {1 + more}"] * (1 + more)
    assert title(get(url).content) == f"hits: {2 + more}"


def test_a_badge_does_not_fall_because_visits_are_still_on_their_way(
    redis_url: str, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def in_vain(acknowledgements: Acknowledgements, seconds: float) -> bool:
        return False

    monkeypatch.setattr("countersink.web.badges.FRESH_S", 0.0)
    with serving(redis_url, mysql_url, producer={"flush_interval": 60}) as web:
        url = f"{web.url}/hit/views/home.svg"
        assert title(get(url).content) == "hits: 1"
        with monkeypatch.context() as patch:
            patch.setattr(Acknowledgements, "stored", in_vain)
            for number in (2, 3):
                assert title(get(url).content) == f"hits: {number}"
        assert title(get(url).content) == "hits: 4"
        # The queue may be too long to be read.
        monkeypatch.setattr("countersink.web.badges.MAX_QUEUE", 0)
        assert title(get(url).content) == "hits: 5"


def test_a_badge_falls_when_the_total_does(shared: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("countersink.web.badges.FRESH_S", 0.0)
    url = f"{shared.url}/hit/views.falls/home.svg"
    assert title(get(url).content) == "hits: 1"
    shared.producer.increment("views.falls", "home", -9)
    assert title(get(url).content) == "hits: -7"
    shared.apply()
    assert title(get(url).content) == "hits: -6"


def test_a_badge_of_what_was_never_counted_says_0(shared: Web) -> None:
    url = f"{shared.url}/hit/views.never/home.svg"
    assert title(get(url, params={"count": "0"}).content) == "hits: 0"
    for query in ("count=2", "label=" + "x" * 65, "colour=red"):
        assert get(f"{url}?{query}").status_code == 422, query


def test_a_badge_without_its_number_is_still_a_badge_and_counts(
    own_redis_server: RedisFactory, mysql_url: str
) -> None:
    server = own_redis_server()
    with serving(server.url, mysql_url) as web:
        server.freeze()
        answer = get(f"{web.url}/hit/views/home.svg")
        assert title(answer.content) == "hits: unknown"
        server.thaw()
        assert counted(web, "views") == {"home": 1}


def test_labels_are_text_and_nothing_else() -> None:
    for label in (
        "<script>alert(1)</script>",
        "\"&'",
        "\x00\x1b\ud800\ufffe",
        "",
        "日本語",
        "i" * 64,
    ):
        for number in (None, 0, -5, 1_234_567, 2**63):
            root = ElementTree.fromstring(badge(label, number))
            assert not root.findall(".//{*}script")
            assert int(root.attrib["width"]) > 0
    assert "1\u202f234\u202f567" in badge("hits", 1_234_567).decode()
    assert re.search(r"\bstyle\b", badge("hits", 1).decode()) is None


def test_a_public_pattern_is_of_counters_that_there_are(
    guarded: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else anybody could make as many as they like, a row of each for ever."""
    monkeypatch.setattr(hits, "FRESH_S", 0.1)

    def hit(counter: str) -> int:
        return guarded.ask("GET", f"/hit/{counter}/home.gif", headers=ELSEWHERE).status_code

    assert [hit(f"public.{number}") for number in range(20)] == [403] * 20
    guarded.store.counters.set("public.made", resolution="hour")
    eventually(lambda: hit("public.made") == 200)
    guarded.count("public.counted", "home")
    eventually(lambda: hit("public.counted") == 200)
    assert hit("sales") == 403
    guarded.apply()
    with connect(guarded.options.mysql_url) as session:
        assert counter_names(session) == ["public.counted", "public.made"]


def test_a_public_pattern_while_mysql_is_away(
    redis_url: str, own_mysql_server: MySQLFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hits, "FRESH_S", 0.1)
    server = own_mysql_server(fast=True)
    mysql_url = server.url_for("counts")
    migrate(mysql_url)
    options: dict[str, Any] = {"public_counters": ("named", "public*")}
    with serving(redis_url, mysql_url, without_keys=False, **options) as web:
        web.store.counters.set("public", resolution="hour")

        def hit(counter: str) -> int:
            return get(f"{web.url}/hit/{counter}/home.gif").status_code

        assert hit("public") == 200
        server.stop()
        eventually(lambda: hit("public.new") == 503)  # once what was read is old
        assert (hit("public"), hit("named"), hit("other")) == (200, 200, 403)
        server.start()
        web.store.counters.set("public.new", resolution="hour")
        eventually(lambda: hit("public.new") == 200)


def test_the_public_may_add_1_to_what_is_public_and_to_nothing_else(guarded: Web) -> None:
    guarded.store.counters.set("public.blog", resolution="hour")
    for counter, allowed in (("public", True), ("public.blog", True), ("sales", False)):
        for method, path in (("GET", "home.gif"), ("GET", "home.svg"), ("POST", "home")):
            answer = guarded.ask(method, f"/hit/{counter}/{path}", headers=ELSEWHERE)
            assert answer.ok is allowed, (counter, path, answer.text)
            assert allowed or answer.status_code == 403
    assert counted(guarded, "public") == {"home": 3}
    assert counted(guarded, "public.blog") == {"home": 3}
    assert guarded.producer.stats().accepted == 6


def test_beacons_are_counted_whatever_they_carry(shared: Web) -> None:
    url = f"{shared.url}/hit/views.beacons/a/b"
    for body in (b"", b"\xff\x00", b"x" * 65_536):
        answer = requests.post(url, data=body, timeout=20)
        assert (answer.status_code, answer.content) == (204, b"")
    assert requests.post(url, data=b"x" * 65_537, timeout=20).status_code == 413
    assert counted(shared, "views.beacons") == {"a/b": 3}
