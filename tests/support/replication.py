"""A primary and a semi-synchronous replica of it, which a test may kill, freeze and promote."""

from typing import Any, Final

from countersink.database.connection import connect
from countersink.database.session import Session
from tests.support.factories import MySQLFactory
from tests.support.servers import Kind, MySQLServer, mysql_tree
from tests.support.waiting import eventually

_OPTIONS: Final[dict[Kind, tuple[str, ...]]] = {
    "mariadb": (
        "--log-bin=log",
        "--binlog-format=ROW",
        "--rpl-semi-sync-slave-enabled=1",
        "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        "--rpl-semi-sync-master-timeout=60000",
    ),
    "mysql": (
        "--log-bin=log",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        f"--plugin-dir={mysql_tree() / 'usr/lib/mysql/plugin'}",
        "--plugin-load-add=semisync_source.so",
        "--plugin-load-add=semisync_replica.so",
        "--loose-rpl-semi-sync-replica-enabled=1",
        "--loose-rpl-semi-sync-source-timeout=60000",
    ),
}
_FORGET: Final[dict[Kind, tuple[str, ...]]] = {
    "mariadb": ("RESET MASTER", "SET GLOBAL gtid_slave_pos = ''"),
    "mysql": ("RESET BINARY LOGS AND GTIDS",),
}
_FOLLOW: Final[dict[Kind, tuple[str, ...]]] = {
    "mariadb": (
        """CHANGE MASTER TO master_host = '127.0.0.1', master_port = {port},
            master_user = 'root', master_password = '{password}', master_use_gtid = slave_pos,
            master_ssl = 0""",
        "START SLAVE",
        "SET GLOBAL read_only = 1",
    ),
    "mysql": (
        """CHANGE REPLICATION SOURCE TO source_host = '127.0.0.1', source_port = {port},
            source_user = 'root', source_password = '{password}', source_auto_position = 1,
            get_source_public_key = 1""",
        "START REPLICA",
        "SET GLOBAL super_read_only = 1",
    ),
}
_WAIT_FOR_REPLICA: Final[dict[Kind, str]] = {
    "mariadb": "SET GLOBAL rpl_semi_sync_master_enabled = 1",
    "mysql": "SET GLOBAL rpl_semi_sync_source_enabled = 1",
}
_CLIENTS: Final[dict[Kind, str]] = {
    "mariadb": "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'",
    "mysql": "SHOW STATUS LIKE 'Rpl_semi_sync_source_clients'",
}


class ReplicatedPair:
    """Two servers with one password: whatever ``primary`` has committed, ``replica`` has received.

    Args:
        make: makes the servers.
        kind: of both.
        user: the login that :attr:`url` has; it may do all in the database, but not write where
            that is forbidden.
    """

    def __init__(self, make: MySQLFactory, kind: Kind, *, user: str = "app") -> None:
        self.kind: Kind = kind
        self.primary, self.replica = (
            make(kind=kind, extra=(*_OPTIONS[kind], f"--server-id={number}")) for number in (1, 2)
        )
        for server in (self.primary, self.replica):
            run(server, *_FORGET[kind])
        follow(self.replica, self.primary, kind)
        # Not before: the primary's own start would wait for a replica.
        run(self.primary, _WAIT_FOR_REPLICA[kind])
        eventually(lambda: ask(self.primary, _CLIENTS[kind])[0][1] == "1")
        run(
            self.primary,
            "CREATE DATABASE counts",
            f"CREATE USER {user}@'%' IDENTIFIED BY 'geheim'",
            f"GRANT ALL ON counts.* TO {user}@'%'",
        )
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in (self.primary, self.replica))
        self.url = f"mysql://{user}:geheim@{hosts}/counts"

    def read_only(self, server: MySQLServer, on: bool) -> None:
        """Forbid or allow writes on one of the two."""
        name = "read_only" if self.kind == "mariadb" or not on else "super_read_only"
        run(server, f"SET GLOBAL {name} = {on:d}")

    def promote(self) -> None:
        """Apply all that the replica has received, then let it take writes."""
        if self.kind == "mariadb":
            run(self.replica, "STOP SLAVE IO_THREAD")
            eventually(self._applied)
            run(self.replica, "STOP SLAVE", "RESET SLAVE ALL")
        else:
            run(self.replica, "STOP REPLICA IO_THREAD")
            eventually(self._applied)
            run(self.replica, "STOP REPLICA", "RESET REPLICA ALL")
        self.read_only(self.replica, False)

    def _applied(self) -> bool:
        if self.kind == "mariadb":
            received = _status(self.replica, "SHOW SLAVE STATUS", "gtid_io_pos")
            return bool(ask(self.replica, "SELECT @@gtid_slave_pos")[0][0] == received)
        received = _status(self.replica, "SHOW REPLICA STATUS", "retrieved_gtid_set")
        subset = f"SELECT GTID_SUBSET('{received}', @@GLOBAL.gtid_executed)"
        return bool(ask(self.replica, subset)[0][0])


def follow(replica: MySQLServer, primary: MySQLServer, kind: Kind) -> None:
    """Let a server apply what another one commits, from where it is, and take no writes itself."""
    for each in _FOLLOW[kind]:
        run(replica, each.format(port=primary.port, password=primary.password))


def run(server: MySQLServer, *statements: str) -> None:
    """Run statements as root."""
    with connect(server.url, database=False) as session:
        for statement in statements:
            session.execute(statement)


def ask(server: MySQLServer, sql: str) -> list[tuple[Any, ...]]:
    """Run a query as root; its rows."""
    with connect(server.url, database=False) as session:
        return session.query(sql)


def port_of(session: Session) -> int:
    """Which server a session is on."""
    return int(session.query("SELECT @@port")[0][0])


def _status(server: MySQLServer, sql: str, column: str) -> str:
    with connect(server.url, database=False) as session:
        cursor: Any = session._connection.cursor()
        cursor.execute(sql)
        names = [each[0].lower() for each in cursor.description]
        return str(cursor.fetchall()[0][names.index(column)]).replace("\n", "")
