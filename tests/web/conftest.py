"""Fixtures of the tests of the HTTP interface."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.web.serving import Web, serving


@pytest.fixture
def web(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """The server as it is for whoever begins: at loopback, no key made, an empty database."""
    with serving(redis_url, mysql_url) as served:
        yield served
