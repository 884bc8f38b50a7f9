"""``POST /v1/increments``: what is accepted, what is refused, and when it answers."""

from __future__ import annotations

import requests

from tests.web.serving import Web


def test_one_increment_and_a_batch_are_counted(web: Web) -> None:
    url = f"{web.url}/v1/increments"
    answer = requests.post(url, json={"counter": "page_views", "key": "/home"}, timeout=20)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 1})
    batch = [{"counter": "page_views", "key": "/home", "amount": n} for n in range(1_000)]
    answer = requests.post(url, json=batch, timeout=20)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 1_000})
    web.apply()
    assert web.store.totals.total("page_views", key="/home") == 1 + 499_500
