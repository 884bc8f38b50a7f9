"""`countersink increment`: one increment, stored and then counted."""

from datetime import UTC, datetime, timedelta

from tests.cli.command import Servers, call, one_sentence
from tests.support.proxies.redis_proxy import RedisProxy
from tests.support.proxies.rules import Deed, Phase


def test_it_is_stored_then_counted(module_servers: Servers) -> None:
    before = datetime.now(UTC).date()
    done = module_servers.call("increment", "votes", "/home", "--amount", "3")
    assert (done.status, done.err) == (0, "")
    assert done.out == "votes /home +3 is in the queue\n"
    assert module_servers.call("increment", "votes").out == "votes +1 is in the queue\n"
    module_servers.apply()
    rows = module_servers.rows("votes", "--by", "key")
    assert rows == [{"key": "/home", "total": 3}, {"key": "", "total": 1}]
    days = [datetime.fromisoformat(str(row["day"])).date() for row in module_servers.rows("votes")]
    assert before <= days[0] <= before + timedelta(days=1)


def test_its_time_decides_the_day(module_servers: Servers) -> None:
    for at in ("2026-11-21T00:30:00+01:00", "2026-11-21T08:00Z", "2026-11-21 23:59:59.999+00:00"):
        assert module_servers.call("increment", "timed", "--at", at).status == 0
    module_servers.apply()
    assert module_servers.rows("timed") == [
        {"day": "2026-11-20", "total": 1},
        {"day": "2026-11-21", "total": 2},
    ]


def test_amounts_and_keys_are_what_they_are(module_servers: Servers) -> None:
    amounts = (-7, 0, 2, 2**63 - 1, -(2**63))
    keys = ("", "x" * 255, "a\nb", "a ", "A", "a", "á", "a\u0301", "😀", "-", "=1+1", "%00")
    expected = {f"amount {amount}": amount for amount in amounts} | dict.fromkeys(keys, 1)
    for key, amount in expected.items():
        done = module_servers.call("increment", "amounts", "--amount", str(amount), "--", key)
        assert done.status == 0, done.err
    module_servers.apply()
    assert {
        row["key"]: row["total"] for row in module_servers.rows("amounts", "--by", "key")
    } == expected


def test_the_far_future_is_refused(module_servers: Servers) -> None:
    refused = module_servers.call("increment", "far", "--at", "9999-12-25T23:59Z")
    assert (refused.status, "at most 366 days ahead" in refused.err) == (2, True)


def test_a_lost_reply_does_not_count_twice(servers: Servers) -> None:
    with RedisProxy.to(servers.redis_url) as proxy:
        rule = proxy.when("XADD", Phase.AFTER, Deed.CUT)
        done = call("increment", "c", COUNTERSINK_REDIS_URL=proxy.url(servers.redis_url))
        assert rule.acted == 1
    assert done.status == 0, done.err
    servers.apply()
    assert [row["total"] for row in servers.rows("c")] == [1]


def test_an_unknown_outcome_is_said_to_be_unknown(servers: Servers) -> None:
    with RedisProxy.to(servers.redis_url) as proxy:
        proxy.when("XADD", Phase.AFTER, Deed.CUT, times=0)
        done = call("increment", "c", COUNTERSINK_REDIS_URL=proxy.url(servers.redis_url))
    assert "may or may not be stored" in one_sentence(done, 1)
