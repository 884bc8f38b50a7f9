"""curl and Node.js: hundreds of increments each, exact, whatever happens on the way."""

import json
from pathlib import Path
from urllib.parse import urlsplit

from countersink.database.connection import connect
from countersink.store.api_keys import create
from tests.clients.programs import output
from tests.support.proxies.http_proxy import HttpProxy
from tests.support.proxies.rules import Deed, Phase
from tests.web.serving import Web, serving

COUNT = 1_000
REQUESTS = 200
"""One by one."""
SEND = "POST /v1/increments"


def proxy_to(web: Web) -> HttpProxy:
    port = urlsplit(web.url).port
    assert port
    return HttpProxy.to(port)


def test_each_way_of_curl_counts_exactly(web: Web, tmp_path: Path) -> None:
    for way in (one_by_one, by_pixels, from_a_file, sent_again):
        way(web, tmp_path)
    web.apply()
    totals = web.store.totals
    assert totals.total("votes") == REQUESTS
    keys = [f"home-{number}" for number in range(1, 11)]
    assert totals.many("page_views", keys) == dict.fromkeys(keys, REQUESTS // 10)
    assert totals.total("downloads") == COUNT
    assert totals.total("orders") == COUNT


def one_by_one(web: Web, directory: Path) -> None:
    # What follows # is for curl alone: so many requests, on one connection.
    url = f"{web.url}/v1/increments#[1-{REQUESTS}]"
    answers = output(["curl", "-sS", "--retry", "9", "--json", '{"counter": "votes"}', url])
    assert answers.count('{"accepted":1}') == REQUESTS


def by_pixels(web: Web, directory: Path) -> None:
    url = f"{web.url}/hit/page_views/home-[1-10].gif#[1-{REQUESTS // 10}]"
    output(["curl", "-sS", "--fail-early", "-f", "--retry", "9", "-o", "/dev/null", url])


def from_a_file(web: Web, directory: Path) -> None:
    batch = directory / "increments.json"
    rows = [{"counter": "downloads", "key": f"file-{n % 7}", "amount": 1} for n in range(COUNT)]
    batch.write_text(json.dumps(rows, indent=1), "utf-8")
    answer = output(["curl", "-sS", "--json", f"@{batch}", f"{web.url}/v1/increments?wait=stored"])
    assert json.loads(answer) == {"accepted": COUNT, "state": "stored"}


def sent_again(web: Web, directory: Path) -> None:
    rows = json.dumps([{"counter": "orders"}] * COUNT)
    with proxy_to(web) as proxy:
        cut = proxy.when(SEND, Phase.AFTER, Deed.CUT)
        answer = output(
            [
                *("curl", "-sS", "--retry", "5", "--retry-all-errors"),
                *("-H", "Idempotency-Key: order-4711", "--json", "@-"),
                f"{proxy.url}/v1/increments",
            ],
            said=rows,
        )
        assert cut.acted == 1
    assert json.loads(answer) == {"accepted": COUNT}


def test_node_sends_again_and_it_counts_once(web: Web) -> None:
    with proxy_to(web) as proxy:
        before = proxy.when(SEND, Phase.BEFORE, Deed.CUT)
        after = proxy.when(SEND, Phase.AFTER, Deed.CUT, skip=3, times=2)
        shown = output(["node", "docs/examples/count.mjs", proxy.url, str(COUNT)])
        assert (before.acted, after.acted) == (1, 2)
    assert shown == f"{COUNT} counted\n"
    web.apply()
    totals = web.store.totals.many("downloads", ["setup.zip", "manual.pdf"])
    assert totals == {"setup.zip": COUNT // 2, "manual.pdf": COUNT // 2}


def test_node_shows_its_key_and_waits_when_told_to(redis_url: str, mysql_url: str) -> None:
    with connect(mysql_url) as session:
        _, key = create(session, "node", ["ingest"], counters=["downloads"])
    # A burst of 2 s' worth passes: 2 of its 3 requests.
    with serving(redis_url, mysql_url, without_keys=False, rate_per_key=1.0) as web:
        command = ["node", "docs/examples/count.mjs", web.url, "300"]
        shown = output(command, environment={"COUNTERSINK_KEY": key})
        assert shown == "300 counted\n"
        output(command, status=1)  # without the key
        web.apply()
        assert web.store.totals.total("downloads") == 300
