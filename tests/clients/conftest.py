"""The real server, for clients that are not ours."""

from collections.abc import Iterator

import pytest

from tests.web.serving import Web, serving


@pytest.fixture
def web(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """At loopback, no key made; anybody may add to page_views."""
    with serving(redis_url, mysql_url, public_counters=("page_views",)) as served:
        yield served
