"""Galera: one node takes our writes; nothing is committed by locks of a node that does not."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pymysql
import pytest

from countersink.cli.commands.operate import doctor_mysql
from countersink.cli.commands.operate.findings import Finding
from countersink.counting.apply.applier import Applier
from countersink.counting.apply.guards import bump, exclusive
from countersink.database import connection, galera, hosts, sessions
from countersink.database.connection import connect
from countersink.database.errors import Conflict, OtherWriter, StoreError, Unavailable
from countersink.database.migrate import migrate
from countersink.database.session import Session
from countersink.database.sessions import require_schema
from countersink.database.url import Settings
from countersink.store import Store
from countersink.store.verify import open_session, verify
from tests.support.app_connection import Connection, open_app, run
from tests.support.entries import entry, keys, row, together
from tests.support.galera import GaleraCluster, GaleraNode, installed, lagging
from tests.support.replication import run as run_as_root
from tests.support.servers import FAST
from tests.support.waiting import eventually

T = TypeVar("T")
DOCUMENTED = Path("docs/transactions.md")

pytestmark = pytest.mark.skipif(not installed(), reason="galera-4 or rsync is not installed")


@pytest.fixture(scope="module")
def started(servers_directory: Path) -> Iterator[GaleraCluster]:
    """Three nodes, with the tables."""
    with GaleraCluster(servers_directory, extra=FAST) as cluster:
        migrate(cluster.url())
        cluster.level()
        yield cluster


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test learns of hosts and nodes is forgotten."""
    monkeypatch.setattr(hosts, "_silent", {})
    monkeypatch.setattr(galera, "_missed", {})


@pytest.fixture
def cluster(started: GaleraCluster) -> GaleraCluster:
    """Nodes of the module, of which the first is the writer."""
    hand_over(started, started.nodes[0])
    started.level()
    return started


def hand_over(cluster: GaleraCluster, node: GaleraNode) -> None:
    """Let a node become the writer, as if the one before were away."""
    with connect(cluster.url(node), database=False) as session:
        assert isinstance(session, galera.GaleraSession)
        session.execute("USE counts")
        galera.set_writer(
            session, galera.read_node(session), galera._fences(session)[0], "it was asked for"
        )


def unfenced(cluster: GaleraCluster, node: GaleraNode) -> Session:
    """A session that checks nothing, as on a single server."""
    session = connect(cluster.url(node), database=False)
    session.execute("USE counts")
    require_schema(session)
    return session


def delay(cluster: GaleraCluster, node: GaleraNode) -> None:
    """Give all others so much to do that what ``node`` commits next reaches them later."""
    with unfenced(cluster, node) as session:
        session.execute("CREATE TABLE IF NOT EXISTS bulk (id INT AUTO_INCREMENT PRIMARY KEY)")
        session.execute("INSERT INTO bulk SELECT NULL FROM seq_1_to_60000")


def port_of(url: str) -> int:
    with connect(url) as session:
        return int(session.query("SELECT @@port")[0][0])


def total(cluster: GaleraCluster, node: GaleraNode, key: str) -> int:
    with unfenced(cluster, node) as session:
        session.execute("SET SESSION wsrep_sync_wait = 1")
        return keys(session).get(key.encode(), 0)


def test_no_batch_commits_by_locks_of_a_node_that_is_not_the_writer_any_more(
    cluster: GaleraCluster,
) -> None:
    first, second, _ = cluster.nodes
    changed: list[bool] = []

    def reached(point: str) -> None:
        """Change the catalog on another node when the batch is about to be committed."""
        if point == "before_commit" and not changed:
            delay(cluster, second)
            hand_over(cluster, second)
            with connect(cluster.url(second)) as there:
                exclusive(there, lambda control: bump(there), attempts=1)
            changed.append(True)

    applier = Applier(cluster.url(), 17, reached=reached)
    batch = [entry([row("/fenced")])]
    with pytest.raises(StoreError) as raised:
        applier.apply(batch)
    assert isinstance(raised.value, Unavailable | Conflict)
    assert changed
    assert total(cluster, second, "/fenced") == 0
    assert applier.apply(batch).applied == 1  # on the node that is the writer now
    assert total(cluster, first, "/fenced") == 1
    applier.close()


@pytest.mark.clusters
def test_of_a_batch_and_a_change_of_the_writer_one_commits(cluster: GaleraCluster) -> None:
    """At the same moment, in either order: never both with the batch as the later one."""
    first, second, third = cluster.nodes
    for number in range(10):
        key = f"/race/{number}"
        with connect(cluster.url(first)) as session:
            session.begin()
            session.execute(
                "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
                " SELECT 'views', '2026-11-21', %s, 9, catalog_version FROM control LIMIT 1",
                (key,),
            )

            def commit(session: Session = session) -> bool:
                try:
                    session.commit()
                except StoreError:
                    session.close(hard=True)
                    return False
                return True

            def change() -> bool:
                hand_over(cluster, second)
                with connect(cluster.url(second)) as there:
                    exclusive(there, lambda control: bump(there))
                return True

            committed, _ = together(commit, change)
        with unfenced(cluster, third) as session:
            session.execute("SET SESSION wsrep_sync_wait = 1")
            found = keys(session).get(key.encode())
            version = session.query("SELECT catalog_version FROM control")[0][0]
        # Whoever has committed did so before the version was raised.
        assert found == (version - 1 if committed else None)
        hand_over(cluster, first)
    with unfenced(cluster, third) as session:
        session.execute("DELETE FROM counter_slot WHERE counter_key LIKE '/race/%%'", ())


def test_all_hosts_lead_to_the_writer(cluster: GaleraCluster) -> None:
    first, second, third = cluster.nodes
    assert port_of(cluster.url(third, second, first)) == first.port
    with pytest.raises(OtherWriter, match=f"another node, {first.address}, takes"):
        connect(cluster.url(second))
    assert port_of(cluster.url(first)) == first.port
    hand_over(cluster, third)
    assert port_of(cluster.url(first, second, third)) == third.port


def test_a_writer_that_no_host_of_the_url_is_is_waited_for_a_while(
    cluster: GaleraCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, third = cluster.nodes
    with pytest.raises(Unavailable, match=f"{first.address} takes countersink"):
        connect(cluster.url(second, third))
    monkeypatch.setattr(galera, "GRACE_S", 0.0)
    with caplog.at_level("WARNING", "countersink.database"):
        assert port_of(cluster.url(second, third)) == second.port
    said = f"Galera: {second.address} takes countersink's writes from now on, in place of"
    assert f"{said} {first.address}: it could not be used" in caplog.text
    assert port_of(cluster.url()) == second.port


@pytest.mark.clusters
def test_a_writer_that_the_others_have_left_out_is_left_whatever_it_says(
    cluster: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was frozen for about ``evs.suspect_timeout`` learns of it 6 s later."""
    first, second, third = cluster.nodes

    def log_in(host: Settings) -> Session:
        speaks = cluster.settings(third) if host.where == first.address else host
        return connection._probe(speaks)

    monkeypatch.setattr(connection, "_watch", hosts.Watch(log_in))
    monkeypatch.setattr(hosts, "PATIENCE_S", 0.2)
    with connect(cluster.url(), read_timeout=300.0) as session:
        session.begin()
        session.execute("INSERT INTO lease VALUES ('frozen', '', 0)")
        first.freeze()
        try:
            with pytest.raises(Unavailable) as raised:
                session.commit()
            assert "flow control" not in str(raised.value)  # its time was not over
            assert port_of(cluster.url()) == second.port
        finally:
            first.thaw()
            cluster.wait(3)


def test_no_session_reads_what_its_node_has_not_applied(cluster: GaleraCluster) -> None:
    run_as_root(cluster.nodes[0], "SET GLOBAL wsrep_dirty_reads = ON")
    try:
        with connect(cluster.url()) as session:
            assert session.query("SELECT @@wsrep_dirty_reads") == [(0,)]
    finally:
        run_as_root(cluster.nodes[0], "SET GLOBAL wsrep_dirty_reads = OFF")


def test_a_writer_that_is_desynced_for_a_backup_stays(
    cluster: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, _ = cluster.nodes
    monkeypatch.setattr(galera, "GRACE_S", 0.0)
    run_as_root(first, "SET GLOBAL wsrep_desync = ON")
    try:
        assert first.status("wsrep_local_state_comment") == "Donor/Desynced"
        assert port_of(cluster.url()) == first.port
        connection._probe(cluster.settings(first)).close()
    finally:
        run_as_root(first, "SET GLOBAL wsrep_desync = OFF")
        cluster.wait(3)


def test_rows_that_are_missing_are_filled_up(cluster: GaleraCluster) -> None:
    """As after a restore of a part: transactions that have such a row would be refused."""
    first, _, _ = cluster.nodes
    with unfenced(cluster, first) as session:
        session.execute("DELETE FROM writer_fence WHERE number > 0")
    with connect(cluster.url()) as session:
        assert isinstance(session, galera.GaleraSession)
        session.number = 255
        session.begin()
        session.execute("INSERT INTO lease (name, holder, expires_at) VALUES ('z', 'z', 1)")
        session.commit()
        counted = "SELECT COUNT(*), COUNT(DISTINCT node) FROM writer_fence"
        assert session.query(counted) == [(galera.FENCES, 1)]


def test_tables_that_are_made_while_a_process_logs_in(
    cluster: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, _ = cluster.nodes
    url = cluster.url(first).replace("/counts", "/late")
    run_as_root(first, "CREATE DATABASE late", "GRANT ALL ON late.* TO app@'%'")

    def later(session: Session) -> None:
        monkeypatch.undo()
        migrate(url)
        require_schema(session)

    try:
        monkeypatch.setattr(sessions, "require_schema", later)
        with sessions.open_tables(url) as session:
            assert session.checked
    finally:
        run_as_root(first, "DROP DATABASE late")


NODE = galera.Node("uuid-b", "h2:3306", ("h1:3306", "h2:3306"), "", "cluster")
NAMELESS = galera.Node("uuid-b", "", ("", "", ""), "", "cluster")


def stays(writer: str, uses: int, node: galera.Node = NODE, *, several: bool = True) -> bool:
    """Whether a writer is still waited for."""
    former = OtherWriter(writer) if several else None
    try:
        galera._require_change(writer, uses, node, several, former)
    except OtherWriter:
        return True
    return False


def age(seconds: float) -> None:
    """Let time pass since a writer was missed."""
    for missed in galera._missed.values():
        missed.since -= seconds
        missed.last -= seconds
        missed.quiet_since -= seconds


def test_a_writer_that_others_use_is_waited_for_longer() -> None:
    assert stays("h1:3306", 1)
    age(galera.GRACE_S)
    assert stays("h1:3306", 2)
    age(galera.GRACE_S)
    assert not stays("h1:3306", 2)  # nobody has used it meanwhile
    for uses in range(3, 3 + int(galera.USED_GRACE_S / galera.GRACE_S) - 2):
        assert stays("h1:3306", uses)
        age(galera.GRACE_S)
    assert not stays("h1:3306", 99)


@pytest.mark.parametrize(("uses", "taken"), [(7, True), (8, False)])
def test_a_login_that_the_writer_does_not_answer_is_part_of_the_grace(
    uses: int, taken: bool
) -> None:
    """Where nobody has used the writer since another node named it."""
    met = OtherWriter("h1:3306", 7)
    met.since -= galera.GRACE_S
    if taken:
        assert "could not be used" in galera._require_change("h1:3306", uses, NODE, True, met)
        return
    with pytest.raises(OtherWriter):
        galera._require_change("h1:3306", uses, NODE, True, met)


def test_what_was_missed_once_is_forgotten() -> None:
    assert stays("h1:3306", 1)
    assert stays("h3:3306", 1, galera.Node("b", "h2:3306", ("h3:3306",), "", "cluster"))
    age(galera.GRACE_S)
    assert stays("h1:3306", 1)  # another node was the writer meanwhile
    age(galera.FORGET_S + 1)
    assert stays("h1:3306", 1)


def test_one_host_whose_address_the_cluster_does_not_know() -> None:
    """It was the writer, has another UUID since it was started again, and may not wait for ever."""
    assert stays("uuid-a", 1, NAMELESS, several=False)
    for uses in range(2, 50):  # no: another process writes through that one
        age(galera.GRACE_S)
        assert stays("uuid-a", uses, NAMELESS, several=False)
    age(galera.GRACE_S)
    assert not stays("uuid-a", 49, NAMELESS, several=False)
    assert not stays("uuid-c", 1, galera.Node("uuid-b", "", ("",), "", "alone"), several=False)
    assert stays("h1:3306", 1, several=False)  # that one is in the cluster: name it
    age(galera.GRACE_S)
    assert stays("h1:3306", 1, several=False)


def test_a_user_who_only_reads_needs_no_writer(
    cluster: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = cluster.nodes
    run_as_root(first, "CREATE USER reader@'%' IDENTIFIED BY 'geheim'")
    run_as_root(first, "GRANT SELECT ON counts.* TO reader@'%'")
    cluster.level()
    monkeypatch.setattr(galera, "GRACE_S", 0.0)
    url = cluster.url(second, third).replace("app:", "reader:")
    with connect(url) as session, session.transaction(snapshot=True):
        assert session.query("SELECT address FROM writer_fence WHERE number = 0") == [
            (first.address,)
        ]
    assert port_of(cluster.url()) == first.port


@pytest.mark.clusters
def test_several_that_find_no_writer_agree(
    cluster: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second, third = cluster.nodes
    monkeypatch.setattr(galera, "GRACE_S", 0.0)

    def port(*order: GaleraNode) -> int:
        return eventually(lambda: _port(cluster.url(*order)))

    together(partial(port, second, third), partial(port, third, second))
    assert port(second, third) == port(third, second)


def _port(url: str) -> int:
    try:
        return port_of(url)
    except (Unavailable, Conflict):
        return 0


def test_statements_outside_a_transaction_are_checked_too(cluster: GaleraCluster) -> None:
    first, second, _ = cluster.nodes
    with connect(cluster.url(first)) as session:
        add = "UPDATE control SET strict = strict WHERE id = 1"
        session.execute(add)  # changes no row: nothing to check
        hand_over(cluster, second)
        eventually(lambda: session.query("SELECT node FROM writer_fence")[0][0] != session.node)  # type: ignore[attr-defined]
        with pytest.raises(Unavailable, match="another Galera node"):
            session.execute("INSERT INTO lease (name, holder, expires_at) VALUES ('x', 'x', 1)")
        assert session.closed
    with connect(cluster.url(second)) as session:
        assert session.query("SELECT 1 FROM lease WHERE name = 'x'") == []


@pytest.mark.clusters
def test_triggers_are_not_made_through_a_node_that_is_not_the_writer(
    cluster: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second, third = cluster.nodes
    run_as_root(cluster.nodes[0], "CREATE TABLE counts.goods (id INT PRIMARY KEY)")
    after = [("SET SESSION lock_wait_timeout", second), ("CREATE TRIGGER", third)]
    sent: list[str] = []
    execute = Session.execute

    def handing_over(session: Session, sql: str, args: Sequence[object] | None = None) -> int:
        """After these statements another node becomes the writer."""
        changed = execute(session, sql, args)
        sent.append(sql)
        if after and sql.startswith(after[0][0]):
            _, node = after.pop(0)
            hand_over(cluster, node)
        return changed

    def made() -> int:
        return sum(sql.startswith("CREATE TRIGGER") for sql in sent)

    monkeypatch.setattr(Session, "execute", handing_over)
    with Store(cluster.url()) as store:
        for number in (0, 1):
            with pytest.raises(Unavailable, match="another Galera node"):
                store.tracked.track("goods")
            assert made() == number
    monkeypatch.undo()
    with Store(cluster.url()) as store:
        store.tracked.track("goods")
        run_as_root(third, "INSERT INTO counts.goods VALUES (1)")
        assert store.totals.total("goods") == 1
        store.tracked.untrack("goods")


def test_a_snapshot_holds_what_any_node_has_committed(cluster: GaleraCluster) -> None:
    """As the queue has let go of it: a read of both would find it nowhere."""
    first, second, _ = cluster.nodes
    reader = connect(cluster.url(first), isolation="REPEATABLE READ")
    hand_over(cluster, second)
    delay(cluster, second)
    applier = Applier(cluster.url(), 17)
    applier.apply([entry([row("/seen")])])
    applier.close()
    with reader.transaction(snapshot=True):
        assert keys(reader)[b"/seen"] == 1
    reader.close()


@pytest.fixture
def store(cluster: GaleraCluster) -> Iterator[Store]:
    """The store of the cluster; whatever a test does, verify finds nothing afterwards."""
    with Store(cluster.url()) as opened:
        yield opened
    with open_session(cluster.url()) as session:
        assert verify(session).differences == []


@pytest.fixture
def apps(cluster: GaleraCluster) -> Iterator[list[Connection]]:
    """A connection of an application to each of the nodes."""
    opened = [open_app(cluster.url(node)) for node in cluster.nodes]
    yield opened
    for each in opened:
        each.close()


def until_committed(app: Connection, work: Callable[[], T]) -> T:
    """A transaction of an application, from its beginning again after a lost race."""
    while True:
        try:
            found = work()
            app.commit()
        except pymysql.err.OperationalError as error:
            if error.args[0] not in (1213, 1205):
                raise
            app.rollback()
        else:
            return found


def test_applications_count_on_any_node_beside_changes_of_their_settings(
    cluster: GaleraCluster, store: Store, apps: list[Connection]
) -> None:
    first, _, _ = cluster.nodes
    until_committed(apps[2], partial(store.increment, apps[2], "sold", "a"))
    store.increment(apps[2], "sold", "b")
    delay(cluster, first)
    store.counters.set("sold", app_slots=4, resolution="minute")
    apps[2].commit()
    store.increment(apps[1], "new", "a")
    with pytest.raises(ValueError, match="may be counting new in UTC"):
        store.counters.set("new", time_zone="Europe/Berlin")
    apps[1].commit()
    assert (store.totals.total("sold"), store.totals.total("new")) == (2, 1)


def test_applications_count_with_the_rights_that_the_documentation_gives(
    cluster: GaleraCluster,
) -> None:
    rights = "\n".join(re.findall(r"```sql\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL))
    grants = re.findall(r"^(GRANT .*ON) countersink\.(.*?);", rights, re.MULTILINE)
    run_as_root(
        cluster.nodes[0],
        *(f"CREATE USER {user}@'%' IDENTIFIED BY 'geheim'" for user in ("shop", "settings_reader")),
        *(f"{right} counts.{place}" for right, place in grants),
    )
    url = cluster.url().replace("app:", "settings_reader:")
    app = open_app(cluster.url(cluster.nodes[1]).replace("app:", "shop:"))
    with Store(url) as store, closing(app):
        until_committed(app, partial(store.increment, app, "granted", "a"))
        until_committed(app, partial(store.increment, app, "granted", "b"))
        until_committed(app, partial(store.delete, app, "granted", "a"))
        assert store.totals.total("granted") == 1


def _insert_for_ever(session: Session) -> None:
    with session.reply_timeout(1.0):
        while True:
            session.execute("INSERT INTO bulk VALUES (NULL)")


def test_settings_do_not_wait_for_ever_for_a_node_that_holds_up_all_writes(
    cluster: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, third = cluster.nodes
    monkeypatch.setattr(galera, "COMMIT_S", 1.0)
    run_as_root(third, "SET GLOBAL wsrep_provider_options = 'gcs.fc_limit=1'")
    try:
        with Store(cluster.url()) as store:
            with lagging(cluster, third, through=first), unfenced(cluster, first) as session:
                with pytest.raises(Unavailable):
                    _insert_for_ever(session)
                with pytest.raises(Unavailable, match="may hold up all writes"):
                    store.counters.set("held_up", app_slots=4)
            store.counters.set("held_up", app_slots=8)
    finally:
        run_as_root(third, "SET GLOBAL wsrep_provider_options = 'gcs.fc_limit=16'")


@pytest.mark.clusters
def test_rows_of_a_tracked_table_change_on_any_node(store: Store, apps: list[Connection]) -> None:
    run(apps[0], "CREATE TABLE shop (id INT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(9))")
    stop = threading.Event()

    def change(app: Connection, number: int) -> int:
        made = 0
        while not stop.is_set() or made < 30:
            until_committed(
                app, partial(run, app, f"INSERT INTO shop (state) VALUES ('s{number}')")
            )
            made += 1
        return made

    def track() -> int:
        try:
            store.tracked.track("shop")
        finally:
            stop.set()
        return 0

    made = sum(together(track, *(partial(change, app, n) for n, app in enumerate(apps))))
    assert store.totals.total("shop") == made


def test_sequences_never_give_a_value_twice_through_several_nodes(
    store: Store, apps: list[Connection]
) -> None:
    handed: list[int] = [store.sequences.next("invoice")]

    def own(app: Connection) -> None:
        for _ in range(8):
            handed.append(until_committed(app, partial(store.sequences.next_in, app, "invoice")))

    def ours() -> None:
        for _ in range(20):
            handed.append(store.sequences.next("invoice"))

    together(ours, *(partial(own, app) for app in apps))
    assert len(handed) == len(set(handed)) == 45


def test_doctor_looks_at_all_nodes(cluster: GaleraCluster) -> None:
    _, second, _ = cluster.nodes
    hand_over(cluster, second)

    def look() -> dict[str, Finding]:
        """What it says, once no node holds up the others, as other tests have them do."""
        for (
            node
        ) in cluster.nodes:  # without GLOBAL it is of this connection alone since 11.5 (MDEV-33145)
            run_as_root(node, "FLUSH /*M!110500 GLOBAL */ STATUS")
        said = {each.check: each for each in doctor_mysql.lines(cluster.url())}
        assert "flow control" not in said["galera"].found
        return said

    found = eventually(look)
    for node in cluster.nodes:
        assert found[f"mysql host {node.address}"].found == "a Galera node, Synced"
    assert "mysql writers" not in found
    said = f"3 nodes; countersink writes to {second.address}"
    assert (found["galera"].status, found["galera"].found) == ("ok", said)
    assert found["mysql rights"].status == "ok"
    (refused,) = doctor_mysql.lines(cluster.url(cluster.nodes[0]))
    assert refused.status == "fail"
    assert second.address in refused.found
