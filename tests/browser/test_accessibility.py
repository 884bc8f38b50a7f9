"""axe-core finds nothing on any view. `make soak` looks at them in dark colours, too."""

import pytest
from playwright.sync_api import Browser

from tests.browser.axe import every_view, nothing_yet_and_dead_letters
from tests.web.serving import Web


@pytest.mark.random
def test_every_view(browser: Browser, filled: Web) -> None:
    every_view(browser, filled, "light")


@pytest.mark.long("axe looks at three more states of two views")
def test_nothing_yet_and_dead_letters(browser: Browser, web: Web) -> None:
    nothing_yet_and_dead_letters(browser, web, "light")
