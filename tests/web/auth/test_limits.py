"""Token buckets: what passes, what waits, what is remembered."""

import resource
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from countersink.web.auth.credentials import TokenBuckets
from countersink.web.auth.origins import UNKNOWN, Addresses
from countersink.web.server import OTHER_FILES, allow_files
from tests.web.routes import ROUTES
from tests.web.serving import serving


class Clock:
    """Time that stands still unless told."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_full_bucket_holds_the_burst_and_then_one_must_wait() -> None:
    clock = Clock()
    buckets = TokenBuckets(10.0, 3, clock=clock)
    assert [buckets.wait("a") for _ in range(9)] == [0.0] * 9  # looking takes nothing
    assert [buckets.take("a") for _ in range(3)] == [0.0] * 3
    # Nor does who is refused.
    assert {round(buckets.take("a"), 9) for _ in range(100)} == {0.1}
    clock.now += buckets.wait("a") + 1e-9
    assert buckets.take("a") == 0.0
    assert buckets.take("a") > 0


@given(
    rate=st.floats(0.1, 1_000),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 5), max_size=200),
)
def test_never_more_passes_than_the_burst_and_what_flowed_in(
    rate: float, burst: int, pauses: list[float]
) -> None:
    clock = Clock()
    buckets = TokenBuckets(rate, burst, clock=clock)
    passed, began = 0, clock.now
    for pause in pauses:
        clock.now += pause
        passed += buckets.take("a") == 0.0
        assert passed <= burst + rate * (clock.now - began) + 1e-2


def test_a_million_names_take_bounded_memory_and_the_busy_one_stays_limited() -> None:
    clock = Clock()
    buckets = TokenBuckets(1e-6, 1, kept=1_000, clock=clock)
    assert buckets.take("busy") == 0.0
    for number in range(20_000):
        assert buckets.take(f"10.0.{number}") == 0.0
        if number % 500 == 0:
            assert buckets.take("busy") > 0
    assert len(buckets) <= 2_000


def test_an_address_and_a_key_are_told_when_to_come_again_each_by_itself(
    redis_url: str, mysql_url: str
) -> None:
    rates: dict[str, Any] = {"rate_per_address": 0.01, "rate_per_key": 0.01}
    with serving(redis_url, mysql_url, routes=ROUTES, without_keys=False, **rates) as web:
        for key, first in ((web.key("read"), 200), (web.key("read"), 200), ("", 401)):
            answers = [web.ask("GET", "/read", key) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [first, 429]
        assert int(answers[1].headers["Retry-After"]) >= 1


def test_an_address_is_known_by_what_trusted_proxies_say_alone() -> None:
    addresses = Addresses(["10.0.0.0/8", "::1"])
    assert addresses.find("203.0.113.9", "1.1.1.1") == "203.0.113.9"
    assert addresses.find("10.1.1.1", "1.1.1.1") == "1.1.1.1"
    assert addresses.find("10.1.1.1", "1.1.1.1, 2.2.2.2, 10.9.9.9") == "2.2.2.2"
    assert addresses.find("10.1.1.1", "10.2.2.2") == "10.2.2.2"
    # With the port, as some proxies write it.
    assert addresses.find("10.1.1.1", "1.1.1.1:4711, 2.2.2.2:4712, 10.9.9.9:80") == "2.2.2.2"
    assert addresses.find("::1", "[2001:db8::7]:4711") == "2001:db8::/64"
    assert addresses.find("::1", "[2001:db8::7]") == "2001:db8::/64"
    assert (
        addresses.find("10.1.1.1", "2001:db8::7, [::1]:9, [::ffff:10.1.1.2]:1") == "2001:db8::/64"
    )
    for junk in ("1.1.1.1:x", "[1.1.1.1", "1.1.1:80", "[x]:1", "1.1.1.1:1:1", "[]:1", ":80"):
        assert addresses.find("10.1.1.1", junk) == UNKNOWN, junk
    assert addresses.find("10.1.1.1", "junk") == UNKNOWN
    assert addresses.find("10.1.1.1", "") == UNKNOWN
    assert addresses.find(None, None) == UNKNOWN
    assert addresses.find("::ffff:9.9.9.9", None) == "9.9.9.9"
    assert addresses.find("2001:db8:1:2:3::4", None) == "2001:db8:1:2::/64"
    assert Addresses().find("10.1.1.1", "1.1.1.1") == "10.1.1.1"


def test_there_are_descriptors_for_all_connections_and_some_to_spare() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, before[1]))
        assert allow_files(100) == 100
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1_024, before[1])
        assert allow_files(1_000) == 1_000
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1_000 + OTHER_FILES, before[1])
        assert allow_files(before[1] * 2) == before[1] - OTHER_FILES  # the hard limit is one
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
