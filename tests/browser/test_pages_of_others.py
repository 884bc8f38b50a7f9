"""A page of another origin counts its visitors by beacons and by pixels: each once."""

import pytest
from playwright.sync_api import Browser

from tests.browser.visits import counted_once
from tests.support.examples import MANY

EACH = 200 if MANY else 50
"""`make soak` has more."""


@pytest.mark.random
def test_some_of_each(browser: Browser, redis_url: str, mysql_url: str) -> None:
    counted_once(browser, redis_url, mysql_url, EACH)
