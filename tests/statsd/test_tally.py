"""From lines to increments: what is counted, what is said of the rest."""

import logging
import time
from collections.abc import Mapping
from typing import Any

import pytest

from countersink.runtime.limits import MAX_AMOUNT
from countersink.statsd import tally as tally_module
from countersink.statsd.options import MAX_AMOUNT_LIMIT, Rules, StatsdOptions, read
from countersink.statsd.sockets import BATCH, LARGEST
from countersink.statsd.tally import (
    DELIVER_LINES,
    OVERFLOW,
    REMAINDERS,
    REMEMBERED,
    StatsdTally,
)
from tests.support.producing import recorder


class Counting:
    """A tally into a producer that remembers."""

    def __init__(
        self,
        rules: Mapping[str, Any] | None = None,
        max_amount: int = 10**9,
        max_counters: int = 1_000,
        max_age_days: int = 0,
    ) -> None:
        self.producer = recorder()
        options = StatsdOptions(
            max_amount=max_amount, max_counters=max_counters, max_age_days=max_age_days
        )
        self.tally = StatsdTally(self.producer, read(rules or {}), options)
        self.figures = self.tally.figures

    def packets(self, *packets: bytes, more: bool = False) -> None:
        self.tally.packets(packets)
        if not more:
            self.tally.deliver()

    def totals(self) -> dict[tuple[str, str], int]:
        return self.producer.totals()


def test_equal_lines_are_added_up() -> None:
    counting = Counting()
    counting.packets(b"a:1|c", b"a:1|c\nb:2|c\n", b"a:3|c\r\n", b"", b"\n\n")
    assert counting.totals() == {("a", ""): 5, ("b", ""): 2}
    assert (counting.figures.packets, counting.figures.counted) == (5, 4)
    assert counting.figures.lines == 4


@pytest.mark.parametrize("end", [b" ", b"\0", b"\t", b"\r", b" \0\0", b"\r\0", b"\n\0", b" \n \n"])
def test_blanks_and_nuls_around_a_line_are_none_of_it(end: bytes) -> None:
    counting = Counting()
    counting.packets(
        b"a:1|c" + end, end + b"a:2|c|@0.1" + end, b"a:4|c|#x:y" + end, b"a:1|ms" + end
    )
    assert counting.totals() == {("a", ""): 25}
    assert (counting.figures.malformed, counting.figures.ignored) == (0, 1)


def test_tags_become_dimensions_beside_keys() -> None:
    rule = {
        "match": "shop.*",
        "counter": "orders",
        "dimensions": {"what": "$1", "country": "{tag:country}"},
    }
    counting = Counting({"rule": [rule, {"match": "o.*", "counter": "orders", "key": "$1"}]})
    counting.packets(
        b"shop.order:2|c|#country:DE\nshop.order;country=DE:1|c\no.x:5|c",
        b"shop.order:1|c|@0.1|#country:FR",
        b"shop.refund:1|c\nshop.refund:1|c|T60",
    )
    assert counting.totals() == {("orders", ""): 15, ("orders", "x"): 5}
    count = counting.producer.count
    assert count("orders", {"country": "DE", "what": "order"}) == 3
    assert count("orders", {"country": "FR"}) == 10
    assert count("orders", {"country": "", "what": "refund"}) == 2
    assert counting.producer.increments[-1].at is not None
    assert counting.figures.counted == 6


def test_every_line_is_in_one_figure() -> None:
    counting = Counting({"rule": [{"match": "x.*", "drop": True}]})
    counting.packets(b"a:1|c\nx.y:1|c\na:1|g\na:3|ms\n_sc|a|0\nbad\na:x|c", b"\xff:1|c", b"a:1|c")
    figures = counting.figures
    assert (figures.counted, figures.discarded, figures.ignored, figures.malformed) == (2, 1, 3, 3)
    assert counting.totals() == {("a", ""): 2}


@pytest.mark.parametrize("more", [[b"a:1|c"], []])
def test_lines_of_datagrams_wait_a_moment_and_go_together(more: list[bytes]) -> None:
    """Also when nothing more comes."""
    counting = Counting()
    assert counting.tally.packets([b"a:1|c"])
    calls = len(counting.producer.increments)
    deadline = time.monotonic() + 20
    while counting.tally.packets(more):
        assert len(counting.producer.increments) == calls
        assert time.monotonic() < deadline
    assert len(counting.producer.increments) == calls + 1
    assert counting.producer.count("a") == counting.figures.counted > 0


def test_no_more_wait_than_may_be_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DELIVER_LINES <= 100_000
    monkeypatch.setattr(tally_module, "DELIVER_LINES", 100)
    monkeypatch.setattr(tally_module, "DELIVER_SECONDS", 1_000)
    counting = Counting()
    counting.packets(b"\n".join(b"a.%d:1|c" % number for number in range(99)), more=True)
    assert counting.figures.counted == 0
    counting.packets(b"a.99:1|c", more=True)
    assert counting.figures.counted == 100


def test_the_largest_amounts_of_the_most_lines_fit() -> None:
    batch = BATCH * LARGEST // len(b"a:1|c\n")
    assert (DELIVER_LINES + batch) * MAX_AMOUNT_LIMIT <= MAX_AMOUNT


# --- sample rates ----------------------------------------------------------------------------


def test_fractions_are_carried_by_key_and_sign() -> None:
    counting = Counting({"rule": [{"match": "k.*", "counter": "c", "key": "$1"}]})
    for _ in range(4):
        counting.packets(b"k.a:0.25|c\nk.b:-0.5|c\nk.c:1.5|c")
    assert counting.totals() == {("c", "a"): 1, ("c", "b"): -2, ("c", "c"): 6}


def test_a_total_is_never_further_off_than_a_half() -> None:
    counting = Counting()
    exact = 0.0
    for number in range(200):
        rate = (number % 89 + 5) / 100
        counting.packets(b"a:1|c|@%.2f" % rate)
        exact += 1 / float(f"{rate:.2f}")
        assert abs(counting.totals()[("a", "")] - exact) <= 0.5 + 1e-6


def test_remainders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REMAINDERS <= 100_000
    monkeypatch.setattr(tally_module, "REMAINDERS", 10)
    counting = Counting()
    counting.packets(b"\n".join(b"a%d:0.25|c" % number for number in range(100)))
    assert len(counting.tally._remainders) == 10


# --- limits ----------------------------------------------------------------------------------


def test_amounts_above_the_limit_are_malformed() -> None:
    counting = Counting(max_amount=100)
    counting.packets(b"a:100|c\na:101|c\na:-100|c\na:-101|c\na:11|c|@0.1\na:60:60|c\na:1e30|c")
    assert counting.totals() == {("a", ""): 0}
    assert (counting.figures.counted, counting.figures.malformed) == (2, 5)


def test_too_many_names_go_to_one_counter() -> None:
    counting = Counting(max_counters=2)
    counting.packets(b"a:1|c\nb:1|c")
    counting.packets(b"c:2|c\nd:3|c|#x:y")
    counting.packets(b"a:1|c\nc:2|c")
    assert counting.totals() == {("a", ""): 2, ("b", ""): 1, (OVERFLOW, ""): 7}
    assert (counting.figures.counted, counting.figures.overflown) == (6, 3)


def test_counters_that_the_map_names_are_not_among_the_names_that_clients_invent() -> None:
    fixed = {"match": "web.**", "counter": "page$$views", "key": "$1"}
    made = {"match": "app.*", "counter": "app.$1"}
    counting = Counting({"rule": [fixed, made]}, max_counters=1)
    counting.packets(b"x:1|c\ny:1|c\napp.z:1|c")
    counting.packets(b"web.a:2|c", b"web.b:3|c")
    fixed["counter"] = "views"
    counting.tally.use(read({"rule": [fixed]}))
    counting.packets(b"web.a:4|c")
    assert counting.totals() == {
        ("x", ""): 1,
        (OVERFLOW, ""): 2,
        ("page_views", "a"): 2,
        ("page_views", "b"): 3,
        ("views", "a"): 4,
    }
    assert counting.figures.overflown == 2


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REMEMBERED <= 100_000
    monkeypatch.setattr(tally_module, "REMEMBERED", 10)
    counting = Counting()
    for number in range(100):
        counting.packets(b"a:%d|c" % number)
        counting.packets(b"a:1|c|T%d" % (60 * number))
        counting.packets(b"x" * 600 + b":1|c")
    assert len(counting.tally._known) <= 10
    assert counting.producer.count("a") == sum(range(100)) + 100


def test_a_line_keeps_its_own_time() -> None:
    counting = Counting()
    counting.packets(b"a:1|c|T1764000000\na:2|c|T1764000001\na:4|c")
    found = {
        each.at and int(each.at.timestamp()): each.amount for each in counting.producer.increments
    }
    assert found == {1764000000: 3, None: 4}


def test_a_time_far_ahead_is_malformed() -> None:
    counting = Counting()
    now = int(time.time())
    counting.packets(b"a:1|c|T%d\na:1|c|T%d" % (now + 3600, now + 90_000))
    assert (counting.figures.counted, counting.figures.malformed) == (1, 1)


def test_a_time_far_back_is_malformed() -> None:
    now = int(time.time())
    counting = Counting(max_age_days=StatsdOptions().max_age_days)
    counting.packets(b"a:1|c|T0\na:1|c|T%d\na:1|c|T%d" % (now - 300_000_000, now - 320_000_000))
    assert (counting.figures.counted, counting.figures.malformed) == (1, 2)
    without = Counting(max_age_days=0)
    without.packets(b"a:1|c|T0")
    assert without.figures.counted == 1


def test_another_map_is_used_at_once() -> None:
    counting = Counting()
    counting.packets(b"a:1|c", more=True)
    counting.tally.use(read({"rule": [{"match": "a", "counter": "b"}]}))
    counting.packets(b"a:1|c")
    counting.tally.use(Rules(count_unmatched=False))
    counting.packets(b"a:1|c")
    assert counting.totals() == {("a", ""): 1, ("b", ""): 1}
    assert (counting.figures.discarded, counting.figures.rules) == (1, 0)


def test_malformed_lines_are_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    counting = Counting()
    for number in range(50):
        counting.packets(b"\x1b[31m%d\xff" % number + b"x" * 500)
    (record,) = caplog.records
    assert vars(record)["action"] == "malformed"
    shown = vars(record)["fields"]["line"]
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) < 400
    assert counting.figures.malformed == 50
