"""The sightings that `seen` and PFADD count are the same, and what is checked is what they are;
a measurement that lost some, or has too many, is an error."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks.command import service
from benchmarks.measuring import Wrong
from benchmarks.pipeline import apply_all, until_salted
from benchmarks.sightings import check_tables
from benchmarks.site import Site, open_site
from benchmarks.workload import (
    COUNTER,
    VISITORS,
    Members,
    members_by_key,
    pages_of,
    sightings,
)
from countersink.database.migrate import migrate
from countersink.producers import Producer
from countersink.store import Store
from tests.support.servers import Kind

COUNT: Final = 3_000
SERVER: Kind = "mysql" if os.environ.get("COUNTERSINK_TEST_SERVER") == "mysql" else "mariadb"
PASSES: Final = 2


@pytest.mark.parametrize("members", ["repeated", "new"])
def test_each_key_has_as_many_members_as_it_says(members: Members) -> None:
    keys, seen = sightings(members, COUNT)
    assert len(keys) == len(seen) == COUNT
    pairs = set(zip(keys, seen, strict=True))
    assert members_by_key(members, COUNT) == {
        name: sum(1 for key, _ in pairs if key == name) for name in set(keys)
    }
    assert (len(pairs) == len(set(seen)) == COUNT) is (members == "new")
    if members == "repeated":
        assert len(set(seen)) <= VISITORS
        assert len(pairs) < COUNT


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, SERVER) as found:
        yield found


@pytest.mark.long("servers of their own")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("fault", ["twice", "member", "key"])
def test_a_sighting_too_many_in_the_tables_is_wrong(site: Site, fault: str) -> None:
    keys, members = sightings("repeated", COUNT)
    with site.database() as url, Store(url) as store:
        migrate(url)
        store.counters.set(COUNTER, salt_days=0)
        with Producer(site.redis_url) as producer:
            with service("worker", site.redis_url, url):
                until_salted(producer)
                for number in range(PASSES):
                    for key, member in zip(pages_of(number, keys, ""), members, strict=True):
                        producer.seen(COUNTER, key, member)
                assert producer.flush(60.0, applied=True)
            check_tables(url, "repeated", passes=PASSES, count=COUNT)
            if fault == "twice":
                producer.seen(COUNTER, f"/0{keys[0]}", members[0])
            elif fault == "key":
                producer.seen(COUNTER, "/another", members[0])
            else:  # a member more, though the sum of sightings is right
                producer.seen(COUNTER, f"/0{keys[0]}", "nobody")
                producer.increment(COUNTER, f"/0{keys[0]}", -1)
            assert producer.flush(60.0)
        apply_all(site, url)
        with pytest.raises(Wrong, match="members of" if fault == "member" else "sightings of"):
            check_tables(url, "repeated", passes=PASSES, count=COUNT)
