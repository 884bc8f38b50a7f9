"""Group Replication with a single primary, which dies, hangs or is cut off while everything counts
on a URL that names all members: nothing is lost, nothing counts twice.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
import redis

from countersink.cli.commands.operate import doctor_mysql
from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.applier import Applier
from countersink.database.connection import connect
from countersink.database.errors import Refused, Unavailable
from countersink.database.migrate import migrate
from countersink.store.verify import open_session, verify
from tests.faults.conftest import Start
from tests.faults.grounds import GroupGround
from tests.reads.support import queue
from tests.support import group_replication, mysql_router
from tests.support.failover_load import WORKER
from tests.support.group_replication import ReplicationGroup
from tests.support.mysql_router import MySQLRouter
from tests.support.processes import Children
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.replication import ask, port_of, run
from tests.support.traffic import backlog
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.servers("mysql"),
    pytest.mark.skipif(not group_replication.installed(), reason="MySQL 9 is not there"),
    pytest.mark.timeout(300),
]
needs_router = pytest.mark.skipif(not mysql_router.installed(), reason="MySQL Router is not there")
OPTIONS = ("--log-bin-trust-function-creators=1",)


@pytest.fixture
def group(servers_directory: Path) -> Iterator[ReplicationGroup]:
    """Three members, with the tables."""
    with ReplicationGroup(servers_directory, extra=OPTIONS) as made:
        migrate(made.url())
        yield made


@pytest.fixture(scope="module")
def ground(servers_directory: Path) -> Iterator[GroupGround]:
    """A group for tests whose troubles end."""
    with GroupGround(servers_directory) as started:
        yield started


@pytest.mark.parametrize(
    "fault",
    [
        "changed",
        *(
            pytest.param(name, marks=pytest.mark.clusters)
            for name in ("killed", "frozen", "cut off", "cut off from clients, too")
        ),
    ],
)
def test_the_primary_fails_and_comes_back(
    ground: GroupGround, children: Children, tmp_path: Path, fault: str
) -> None:
    faults = ground.faults()
    if fault not in faults:
        pytest.skip("only root may cut a network")
    with ground.load(children, ground.fresh(), tmp_path) as load:
        faults[fault](Random(0), load.wait_for_more)
        load.finish()
    lines = doctor(ground.group)
    assert lines["mysql group"][0] == "ok"
    assert lines["mysql group consistency"][0] == "ok"


def doctor(group: ReplicationGroup) -> dict[str, tuple[str, str]]:
    """Its lines about the database: status and what it found."""
    found = doctor_mysql.lines(group.url())
    return {line.check: (line.status, line.found) for line in found}


@pytest.mark.clusters
def test_a_new_primary_that_has_not_applied_all(servers_directory: Path) -> None:
    """The guards of what was counted are missing there, with EVENTUAL for all who look; but it
    takes no writes until they are there, so that what is sent again counts once.
    """
    eventual = "SET SESSION group_replication_consistency = EVENTUAL"
    extra = ("--replica-parallel-workers=1", "--loose-group-replication-consistency=EVENTUAL")
    with ReplicationGroup(servers_directory, extra=(*OPTIONS, *extra)) as group:
        first, second, third = group.members
        migrate(group.url())
        with connect(group.url()) as session:  # ours do not look before all is there
            consistency = session.query("SELECT @@SESSION.group_replication_consistency")
            assert consistency == [("BEFORE_ON_PRIMARY_FAILOVER",)]
        run(first, "CREATE TABLE counts.held (id INT PRIMARY KEY)")
        for member, weight in ((second, 90), (third, 10)):
            run(member, f"SET GLOBAL group_replication_member_weight = {weight}")
        tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'held'"
        eventually(lambda: ask(second, tables) == ask(third, tables) == [(1,)])
        assert doctor(group)["mysql group consistency"][0] == "warn"
        entry = Incoming(bytes(16), int(time.time() * 1000), [(0, "views", "/", 29_000_000, 1)])
        guards = "SELECT COUNT(*) FROM counts.applied_entry"
        with (
            connect(second.url, database=False, idle_seconds=600) as holding,
            connect(second.url, database=False, idle_seconds=600) as other,
        ):
            holding.execute(eventual)
            other.execute(eventual)
            holding.execute("LOCK TABLES counts.held READ")  # what comes after that is not applied
            run(first, "INSERT INTO counts.held VALUES (1)")
            with closing(Applier(group.url(first), 1)) as applier:
                applier.apply([entry])
                first.kill()
                assert group.next_primary(first) is second
                assert other.query(guards) == [(0,)]
                with pytest.raises(Unavailable, match=f"{second.address}: read only"):
                    connect(group.url())
            holding.execute("UNLOCK TABLES")
        eventually(lambda: ask(second, "SELECT @@super_read_only") == [(0,)], 60.0)
        with closing(Applier(group.url(), 2)) as applier:
            applier.apply([entry])
        with open_session(group.url()) as session:
            assert session.query("SELECT SUM(amount) FROM counter_slot") == [(1,)]
            assert verify(session).differences == []


@pytest.mark.clusters
@pytest.mark.parametrize("phase", [Phase.BEFORE, Phase.AFTER])
def test_the_primary_is_killed_at_commit(
    group: ReplicationGroup,
    children: Children,
    redis_client: redis.Redis,
    redis_url: str,
    phase: Phase,
) -> None:
    """Before the server has seen it, and after it was done and before anybody knows."""
    first = group.primary()
    with MySQLProxy.to(first.url) as proxy:
        rule = proxy.when("commit", phase, Deed.CUT, call=lambda _: first.kill(), skip=2)
        hosts = ",".join([f"127.0.0.1:{proxy.port}", *(each.address for each in group.members[1:])])
        url = f"mysql://app:geheim@{hosts}/counts"
        worker = children.worker(redis_url, url, **WORKER)
        sent = 0
        while not rule.reached.is_set():
            queue(redis_client, ("views", "/", 0, 1))
            sent += 1
            rule.reached.wait(0.02)
        group.next_primary(first)
        eventually(lambda: backlog(redis_client) == 0, 90.0, message=worker.output)
        worker.terminate()
        assert worker.wait() == 0, worker.output()
    with open_session(group.url()) as session:
        assert session.query("SELECT SUM(amount) FROM counter_slot") == [(sent,)]
        assert verify(session).differences == []


@pytest.mark.clusters
@needs_router
def test_the_primary_is_killed_behind_a_router(
    group: ReplicationGroup, start: Start, servers_directory: Path
) -> None:
    """One host in the URL, MySQL Router, whose static route leads to the first member that is
    there, whether it is the primary or not. Where it leads to a secondary nothing is counted, and
    nothing lost; it goes on as soon as that one is the primary.
    """
    first, second, _ = group.members
    for member, weight in zip(group.members, (90, 50, 10), strict=True):
        run(member, f"SET GLOBAL group_replication_member_weight = {weight}")
    addresses = [member.address for member in group.members]
    with MySQLRouter(servers_directory / "router", *addresses, login="app:geheim") as router:
        load = start(router.url)
        first.kill()
        assert group.next_primary(first) is second
        load.wait_for_more()
        status, said = doctor(group)["mysql group"]
        assert status == "warn"
        assert said.startswith("2 members online; with fewer than 3, the death of one more")
        group.come_back(first)
        eventually(lambda: _port(router.url) == first.port)
        ours = connect(router.url)
        with ours, pytest.raises(Unavailable, match="read-only"):
            ours.execute("INSERT INTO lease VALUES ('x', '', 0)")
        first.lead()
        load.wait_for_more()
        assert group.primary() is first
        load.finish()


def _port(url: str) -> int:
    with connect(url, database=False) as session:
        return port_of(session)


@pytest.mark.clusters
def test_several_primaries_are_refused(group: ReplicationGroup) -> None:
    """By a URL of all members and by one of one, on each member; `doctor` says what to do."""
    ask(group.primary(), "SELECT group_replication_switch_to_multi_primary_mode()")
    said = r"several primaries: .*group_replication_switch_to_single_primary_mode\(\)"
    with pytest.raises(Unavailable, match=f"no host takes writes: .*{said}"):
        connect(group.url())
    for member in group.members:
        with pytest.raises(Refused, match=said):
            connect(group.url(member))
    for url in (group.url(), group.url(group.members[2])):
        *_, failed = doctor_mysql.lines(url)
        assert (failed.check, failed.status) == ("mysql", "fail")
        assert "several primaries" in failed.found
        assert failed.advice == "SELECT group_replication_switch_to_single_primary_mode()"
    ask(group.members[1], "SELECT group_replication_switch_to_single_primary_mode()")
    connect(group.url()).close()
    assert doctor(group)["mysql group"][0] == "ok"
