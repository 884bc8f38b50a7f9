"""Group Replication with a single primary, which dies, hangs or is cut off while everything counts
on a URL that names all members: nothing is lost, nothing counts twice.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis

from countersink.cli.commands.repair import doctor_mysql
from countersink.store.apply.amounts import Incoming
from countersink.store.apply.apply import Applier
from countersink.store.connection import connect
from countersink.store.errors import Refused, StoreError, Unavailable
from countersink.store.migrate import migrate
from countersink.store.verify import open_session, verify
from tests.faults.conftest import Start
from tests.reads.support import queue
from tests.support import group_replication, mysql_router
from tests.support.failover_load import WORKER, report
from tests.support.group_replication import GroupMember, ReplicationGroup
from tests.support.mysql_router import MySQLRouter
from tests.support.processes import Children
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.replication import ask, port_of, run
from tests.support.servers import Kind
from tests.support.traffic import backlog
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.servers("mysql"),
    pytest.mark.skipif(not group_replication.installed(), reason="MySQL 9 is not there"),
    pytest.mark.timeout(300),
]
needs_networks = pytest.mark.skipif(
    not group_replication.can_be_cut(), reason="only root may cut a network"
)
needs_router = pytest.mark.skipif(not mysql_router.installed(), reason="MySQL Router is not there")
OPTIONS = ("--log-bin-trust-function-creators=1",)


@pytest.fixture
def group(servers_directory: Path) -> Iterator[ReplicationGroup]:
    """Three members, with the tables."""
    with ReplicationGroup(servers_directory, extra=OPTIONS) as made:
        migrate(made.url())
        yield made


@pytest.fixture
def networked(servers_directory: Path) -> Iterator[ReplicationGroup]:
    """The same, each in a network of its own."""
    with ReplicationGroup(servers_directory, networks=True, extra=OPTIONS) as made:
        migrate(made.url())
        yield made


def until_it_serves(group: ReplicationGroup, *gone: GroupMember) -> tuple[GroupMember, float]:
    """The new primary, and when it took writes."""
    primary = group.next_primary(*gone)
    eventually(lambda: ask(primary, "SELECT @@super_read_only") == [(0,)], 60.0)
    return primary, time.monotonic()


@pytest.fixture
def on_mysql(server_kind: Kind) -> None:
    """Not once more where the tests run on MariaDB."""
    if server_kind != "mysql":
        pytest.skip("is a test on MySQL")


@pytest.mark.usefixtures("on_mysql")
def test_the_primary_is_changed(group: ReplicationGroup, start: Start) -> None:
    """A planned switchover; and what `doctor` says of the group."""
    load = start(group.url())
    second = group.members[1]
    make_primary(second)
    load.wait_for_more()
    assert group.primary() is second
    load.finish()
    lines = doctor(group)
    assert lines["mysql group"][0] == "ok"
    assert lines["mysql group consistency"] == (
        "ok",
        "group_replication_consistency BEFORE_ON_PRIMARY_FAILOVER",
    )


def doctor(group: ReplicationGroup) -> dict[str, tuple[str, str]]:
    """Its lines about the database: status and what it found."""
    found = doctor_mysql.lines(group.url())
    return {line.check: (line.status, line.found) for line in found}


@pytest.mark.clusters
def test_no_member_is_left_that_may_write(
    group: ReplicationGroup, redis_client: redis.Redis
) -> None:
    """One member of three alone: each command says so in a line, and nothing is counted."""
    first, second, third = group.members
    second.kill()
    third.kill()
    # Both: with one of them it would have the majority.
    eventually(lambda: str(group_replication.seen(first)).count("UNREACHABLE") == 2, 60.0)
    with pytest.raises(Unavailable) as caught:
        connect(group.url())
    assert str(caught.value) == (
        f"no host takes writes: {first.address}: a group member that does not reach the majority;"
        f" {second.address}: refused the connection; {third.address}: refused the connection"
    )
    eventually(lambda: ask(first, "SELECT @@super_read_only") == [(1,)], 60.0)
    with pytest.raises(Unavailable, match=f"{first.address}: read only"):
        connect(group.url())


@pytest.mark.clusters
def test_a_demoted_primary_takes_no_write_of_an_open_session(group: ReplicationGroup) -> None:
    """It was frozen in the middle of a transaction, and wakes up when another one is primary."""
    first = group.primary()
    with connect(group.url(first)) as session:
        session.begin()
        session.execute(
            "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
            " VALUES ('late', '2026-11-01', '', 1, 1)"
        )
        first.freeze()
        second = group.next_primary(first)
        first.thaw()
        with pytest.raises(StoreError):
            session.commit()
    group.wait()
    for member in group.members:
        assert ask(member, "SELECT COUNT(*) FROM counts.counter_slot") == [(0,)]
    assert group.primary() is second


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
        until_it_serves(group, first)
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
def test_the_primary_is_killed(group: ReplicationGroup, start: Start) -> None:
    load = start(group.url())
    first, began = group.primary(), time.monotonic()
    first.kill()
    _, at = until_it_serves(group, first)
    load.wait_for_more()
    status, said = doctor(group)["mysql group"]
    assert status == "warn"
    assert said.startswith("2 members are online; with fewer than 3 the next one that dies")
    group.come_back(first)
    print(report("primary killed", at - began, load.finish()))


@pytest.mark.clusters
def test_the_primary_is_frozen_and_thawed(group: ReplicationGroup, start: Start) -> None:
    load = start(group.url())
    first, began = group.primary(), time.monotonic()
    first.freeze()
    second, at = until_it_serves(group, first)
    load.wait_for_more()
    first.thaw()
    group.wait()
    assert group.primary() is second
    print(report("primary frozen", at - began, load.finish()))


@pytest.mark.clusters
@needs_networks
@pytest.mark.parametrize(
    ("clients", "deed"),
    [(False, "primary cut off from the group"), (True, "primary cut off")],
    ids=["from the others", "from everybody"],
)
def test_the_primary_is_cut_off(
    networked: ReplicationGroup, start: Start, clients: bool, deed: str
) -> None:
    """Its clients still reach it, or do not."""
    load = start(networked.url())
    first, began = networked.primary(), time.monotonic()
    with group_replication.cut_off(first, clients=clients):
        _, at = until_it_serves(networked, first)
        load.wait_for_more()
    networked.wait()
    print(report(deed, at - began, load.finish()))


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
    with routed(group, servers_directory) as router:
        load = start(router.url)
        began = time.monotonic()
        first.kill()
        primary, at = until_it_serves(group, first)
        assert primary is second
        load.wait_for_more()
        print(report("primary killed behind a router", at - began, load.seen))
        group.come_back(first)
        eventually(lambda: leads_to(router, first))
        ours = connect(router.url)
        with ours, pytest.raises(Unavailable, match="read-only"):
            ours.execute("INSERT INTO lease VALUES ('x', '', 0)")
        make_primary(first)
        load.wait_for_more()
        assert group.primary() is first
        load.finish()


@pytest.mark.clusters
@needs_router
def test_the_primary_is_frozen_behind_a_router(
    group: ReplicationGroup, start: Start, servers_directory: Path
) -> None:
    """A static route goes on leading to it, so that nothing is counted until an operator has it
    lead elsewhere; nothing is lost.
    """
    first = group.primary()
    with routed(group, servers_directory) as router:
        load = start(router.url)
        first.freeze()
        until_it_serves(group, first)
        with pytest.raises(Unavailable, match="timed out"):
            connect(router.url)
        first.thaw()
        group.wait()
        make_primary(first)
        load.wait_for_more()
        load.finish()


@contextmanager
def routed(group: ReplicationGroup, directory: Path) -> Iterator[MySQLRouter]:
    """A route to the members in their order, which is the one in which they become primaries."""
    for member, weight in zip(group.members, (90, 50, 10), strict=True):
        run(member, f"SET GLOBAL group_replication_member_weight = {weight}")
    addresses = [member.address for member in group.members]
    with MySQLRouter(directory / "router", *addresses, login="app:geheim") as router:
        yield router


def make_primary(member: GroupMember) -> None:
    (uuid,) = ask(member, "SELECT @@server_uuid")[0]
    ask(member, f"SELECT group_replication_set_as_primary('{uuid}')")


def leads_to(router: MySQLRouter, member: GroupMember) -> bool:
    with connect(router.url, database=False) as session:
        return port_of(session) == member.port


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
