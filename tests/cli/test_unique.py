"""`counter set --unique`, `totals --unique` and its refusals on the command line."""

from contextlib import closing
from datetime import UTC, datetime

import pytest

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.store import Store
from tests.cli.command import Servers, one_sentence
from tests.counting.visitors.sightings import seen_entry
from tests.support.entries import applier
from tests.support.traffic import now_minute


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def see(servers: Servers) -> Servers:
    """A counter with sightings, few of one key and many of another."""
    assert servers.call("counter", "set", "visitors", "--unique").status == 0
    now = now_minute()
    made = [("visitors", "/", now, f"v{n % 5}") for n in range(12)]
    made += [("visitors", "/many", now, f"v{n}") for n in range(1000)]
    with closing(applier(servers.mysql_url)) as one, connect(servers.mysql_url) as session:
        one.apply([seen_entry(session, made)])
    return servers


@pytest.fixture(scope="module")
def seen(module_servers: Servers) -> Servers:
    """For tests that only ask."""
    return see(module_servers)


def test_members_are_told_with_their_bounds(seen: Servers) -> None:
    exact = {"total": 5, "estimate": False, "low": 5, "high": 5}
    assert seen.rows("visitors", "--unique", "--by", "total", "--key", "/") == [exact]
    assert seen.rows("visitors", "--unique", "--key", "/") == [{"day": today(), **exact}]
    many, few = seen.rows("visitors", "--unique", "--by", "key")
    assert few == {"key": "/", **exact}
    assert many["key"] == "/many"
    assert many["estimate"]
    assert many["low"] <= 1000 <= many["high"]
    assert many["low"] < many["total"] < many["high"]
    (month,) = seen.rows("visitors", "--unique", "--by", "month")
    assert month == {
        "month": today()[:7],
        **{k: many[k] for k in ("total", "estimate", "low", "high")},
    }
    assert seen.rows("visitors", "--unique", "--by", "key", "--top", "1") == [many]


def test_the_table_says_what_is_an_estimate_and_adds_nothing_up(seen: Servers) -> None:
    shown = seen.call("totals", "visitors", "--unique", "--by", "key")
    assert shown.status == 0, shown.err
    header, many, few, *rest = shown.out.splitlines()
    assert header.split() == ["key", "total", "low", "high"]
    assert "≈" in many
    assert "≈" not in few
    assert few.split()[:4] == ["/", "5", "5", "5"]
    assert not any(line.startswith("all") for line in rest)
    top = seen.call("top", "visitors", "--unique", "--format", "csv")
    assert top.out.splitlines()[0] == "key,total,estimate,low,high"
    refused = seen.call("totals", "--all", "--unique")
    assert "different members cannot be counted for several counters" in one_sentence(refused)


def test_days_of_several_salts_are_told_one_by_one(
    servers: Servers, session: Session, mysql_url: str
) -> None:
    with Store(mysql_url) as store:
        store.counters.set("v", salt_days=1)
    session.execute("UPDATE visitor_salt SET ends = ends - 1440, begins = begins - 1440")
    session.execute("UPDATE visitor_salt SET begins = -2147483648 ORDER BY begins LIMIT 1")
    made = [("v", "/", now_minute() - ago, "a") for ago in (0, 1440)]
    with closing(applier(mysql_url)) as one:
        one.apply([seen_entry(session, made)])
    refused = servers.call("totals", "v", "--unique", "--by", "total")
    assert "salts are renewed each day: ask by day, in its own time zone" in one_sentence(refused)
    assert [row["total"] for row in servers.rows("v", "--unique")] == [1, 1]
    assert servers.call("totals", "v", "--unique", "--by", "total", "--last", "1d").status == 0


def test_a_damaged_sketch_is_named_and_found(servers: Servers, session: Session) -> None:
    seen = see(servers)
    session.execute("UPDATE visitor_slot SET sketch = X'0100' WHERE counter_key = '/'")
    refused = seen.call("totals", "visitors", "--unique", "--by", "total")
    said = one_sentence(refused)
    assert "'visitors', '/' in the bucket" in said
    assert "`countersink verify`" in said
    found = seen.call("verify", "--counter", "visitors", "--format", "json")
    assert found.status == 3
    (wrong,) = found.json["differences"]
    assert (wrong["problem"], wrong["in_tables"], wrong["day"]) == ("sketch", 1, today())
    assert seen.call("totals", "visitors", "--by", "total").status == 0
