"""A replica is promoted under workers and a producer whose URL names both servers.

Replication is semi-synchronous (AFTER_SYNC): the replica has received whatever was committed, so
that not one increment may be missing or count twice.
"""

import pytest

from countersink.database.connection import connect
from countersink.database.migrate import migrate
from tests.faults.conftest import Start
from tests.support.factories import MySQLFactory
from tests.support.failover_load import Load
from tests.support.replication import ReplicatedPair, ask, port_of, run
from tests.support.servers import Kind
from tests.support.waiting import eventually

FROZEN = pytest.mark.long("a server frozen for longer than a time-out")


@pytest.fixture
def pair(own_mysql_server: MySQLFactory, server_kind: Kind) -> ReplicatedPair:
    """The primary takes writes, and has the tables."""
    made = ReplicatedPair(own_mysql_server, server_kind)
    migrate(made.url)
    for server in (made.primary, made.replica):
        run(server, "SET GLOBAL log_bin_trust_function_creators = 1")
    return made


@pytest.fixture
def load(start: Start, pair: ReplicatedPair) -> Load:
    """All that counts, which goes on."""
    return start(pair.url)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("fault", ["kill", pytest.param("freeze", marks=FROZEN)])
def test_the_primary_dies_and_comes_back_as_a_replica(
    load: Load, pair: ReplicatedPair, fault: str
) -> None:
    getattr(pair.primary, fault)()
    pair.promote()
    if fault == "kill":
        pair.primary.extra += ("--read-only=1",)
        pair.primary.start()
    load.wait_for_more()
    load.finish()
    with connect(pair.url) as session:
        assert port_of(session) == pair.replica.port


def test_the_primary_is_made_read_only(load: Load, pair: ReplicatedPair) -> None:
    pair.read_only(pair.primary, True)
    told = f"{pair.primary.port}: read only; 127.0.0.1:{pair.replica.port}: read only"
    eventually(lambda: any(told in worker.output() for worker in load.workers))
    pair.promote()
    load.finish()
    total = "SELECT SUM(amount) FROM counts.counter_slot"
    assert ask(pair.primary, total)[0][0] < ask(pair.replica, total)[0][0]
