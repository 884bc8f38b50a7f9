"""A cluster of Galera nodes on this machine, which a test may kill, freeze and cut off."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from countersink.cli.servers import find_program
from countersink.database.connection import connect
from countersink.database.errors import StoreError
from countersink.database.session import Session
from countersink.database.url import Settings
from tests.support.ports import Ports
from tests.support.replication import ask, port_of, run
from tests.support.servers import MySQLServer
from tests.support.templates import SMALL, template
from tests.support.waiting import eventually

PROVIDER: Final = Path("/usr/lib/galera/libgalera_smm.so")
SYNCED: Final = "4"
JOIN_S: Final = 60.0
"""Within so many seconds a node is in the cluster again."""
_PROVIDER_OPTIONS: Final = {
    "evs.keepalive_period": "PT0.2S",
    "evs.inactive_check_period": "PT0.1S",
    "evs.suspect_timeout": "PT3S",
    "evs.inactive_timeout": "PT6S",
    "evs.install_timeout": "PT6S",
    "gcache.size": "32M",
    "gcache.recover": "yes",
    "socket.checksum": "1",
}
_NOWHERE: Final = "00000000-0000-0000-0000-000000000000:-1"
_SCRIPTS: Final = {
    "wsrep_sst_as_root": """#!/bin/sh
PATH={directory}:$PATH exec "$(command -v wsrep_sst_rsync)" "$@"
""",
    "rsync": """#!/bin/sh
[ "$1" != --daemon ] || {{ shift; set -- --daemon -M uid=0 -M gid=0 "$@"; }}
exec {rsync} "$@"
""",
}
_RECOVERED: Final = re.compile(r"Recovered position:\s*([0-9a-f-]{36}:-?\d+)")


def installed() -> bool:
    """Whether the programs of a node are there."""
    needed = ("mariadbd", "rsync", "wsrep_sst_rsync")
    return PROVIDER.exists() and all(find_program(each) for each in needed)


class GaleraNode(MySQLServer):
    """One node. The first start of all but the first one gets the data from another.

    Args:
        directory: of its data.
        number: from 1.
        cluster: UUID of the cluster.
        ports: of the cluster.
    """

    start_timeout = 90.0

    def __init__(self, directory: Path, number: int, cluster: str, ports: Ports) -> None:
        # Commits are on disk at once, as a node that was killed is to come back with them.
        super().__init__(directory, kind="mariadb", port=ports.draw(), template=template("mariadb"))
        self.number = number
        self.cluster = cluster
        self.group_port, self.state_port, self.transfer_port = (ports.draw() for _ in range(3))
        self.members: Sequence[GaleraNode] = ()
        self.founds = False

    @property
    def address(self) -> str:
        """Where the node's clients find it."""
        return f"127.0.0.1:{self.port}"

    @property
    def state(self) -> Path:
        return self._data / "grastate.dat"

    def _command(self) -> list[str]:
        position = self._recovered() if self.state.exists() else _NOWHERE
        others = [f"127.0.0.1:{each.group_port}" for each in self.members if each is not self]
        options = {
            **_PROVIDER_OPTIONS,
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{self.state_port}",
        }
        method, before = self._transfer()
        return [
            *before,
            *super()._command(),
            *SMALL["mariadb"],
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--log-bin-trust-function-creators=1",
            f"--server-id={self.number}",
            "--wsrep-on=ON",
            # From MariaDB 11 on it makes variables of the provider's options.
            "--loose-plugin-wsrep-provider=OFF",
            f"--wsrep-provider={PROVIDER}",
            "--wsrep-provider-options=" + ";".join(f"{k}={v}" for k, v in options.items()),
            f"--wsrep-cluster-name=c{self.cluster[:8]}",
            f"--wsrep-cluster-address=gcomm://{'' if self.founds else ','.join(others)}",
            f"--wsrep-node-name=node{self.number}",
            "--wsrep-node-address=127.0.0.1",
            f"--wsrep-node-incoming-address={self.address}",
            f"--wsrep-sst-method={method}",
            f"--wsrep-sst-receive-address=127.0.0.1:{self.transfer_port}",
            f"--wsrep-start-position={position}",
        ]

    def _transfer(self) -> tuple[str, list[str]]:
        """How a node gets the others' data, and what comes in front of the command for it.

        By rsync; where root runs it, with a way of calling it of our own: rsync's daemon would
        become nobody, who may not write to the node's directory.
        """
        if os.geteuid() != 0:
            return "rsync", []
        directory = self.directory / "bin"
        directory.mkdir(exist_ok=True)
        for name, script in _SCRIPTS.items():
            file = directory / name
            file.write_text(script.format(directory=directory, rsync=find_program("rsync")))
            file.chmod(0o755)
        return "as_root", ["env", f"PATH={directory}:{os.environ.get('PATH', os.defpath)}"]

    def _recovered(self) -> str:
        """Up to where a node that ended somehow has its data; as Debian's galera_recovery does."""
        command = [
            *super()._command(),
            *SMALL["mariadb"],
            "--wsrep-on=ON",
            # From MariaDB 11 on it makes variables of the provider's options.
            "--loose-plugin-wsrep-provider=OFF",
            f"--wsrep-provider={PROVIDER}",
            "--wsrep-recover",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = _RECOVERED.findall(done.stderr)
        return str(found[-1]) if found else _NOWHERE

    def _answers(self) -> bool:
        return super()._answers() and self.status("wsrep_local_state") == SYNCED

    def status(self, name: str) -> str:
        """A status variable; empty where it has none, or the node does not answer."""
        try:
            rows = ask(self, f"SHOW STATUS LIKE '{name}'")
        except StoreError:
            return ""
        return str(rows[0][1]) if rows else ""

    def forget(self) -> None:
        """Lose the data, while it is down: the next start gets that of another node."""
        shutil.rmtree(self._data)

    def isolate(self, on: bool) -> None:
        """Cut the node off from the others, or let it come back: Galera's own means."""
        run(self, f"SET GLOBAL wsrep_provider_options = 'gmcast.isolate={on:d}'")


class GaleraCluster:
    """Three nodes, and a user ``app`` who has all rights on the database ``counts``, and no others.

    A context manager: nothing of it is left afterwards.

    Args:
        parent: directory for the nodes' data.
        size: how many nodes.
        extra: further options of the servers.
    """

    def __init__(self, parent: Path, size: int = 3, *, extra: Sequence[str] = ()) -> None:
        self._parent = Path(tempfile.mkdtemp(prefix="galera-", dir=parent))
        name = str(uuid.uuid4())
        self._ports = Ports()
        self.nodes = [
            GaleraNode(self._parent / f"n{n}", n, name, self._ports) for n in range(1, size + 1)
        ]
        for node in self.nodes:
            node.members = self.nodes
            node.extra = tuple(extra)

    def __enter__(self) -> Self:
        try:
            first, *others = self.nodes
            first.founds = True
            first.start()
            first.founds = False
            with ThreadPoolExecutor() as threads:
                list(threads.map(GaleraNode.start, others))
            self.wait(len(self.nodes))
            run(
                first,
                "CREATE DATABASE counts",
                "CREATE USER app@'%' IDENTIFIED BY 'geheim'",
                "GRANT ALL ON counts.* TO app@'%'",
            )
            self.level()
            self.wait(len(self.nodes))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                node.kill()
        self._ports.close()
        shutil.rmtree(self._parent, ignore_errors=True)

    def url(self, *nodes: GaleraNode) -> str:
        """The URL of these nodes, of all where none is named."""
        hosts = ",".join(node.address for node in nodes or self.nodes)
        return f"mysql://app:geheim@{hosts}/counts"

    def settings(self, *nodes: GaleraNode) -> Settings:
        return Settings.parse(self.url(*nodes))

    def writer(self) -> GaleraNode:
        """The node that takes our writes."""
        with connect(self.url()) as session:
            port = port_of(session)
        return next(node for node in self.nodes if node.port == port)

    def level(self) -> None:
        """Until every node has applied what was committed before."""
        for node in self.nodes:
            with connect(node.url, database=False) as session:
                session.execute("SET SESSION wsrep_sync_wait = 1")
                session.query("SELECT COUNT(*) FROM mysql.user")  # SHOW would not wait

    def wait(self, size: int, *, among: Sequence[GaleraNode] = ()) -> None:
        """Until nodes, all where none is named, see a primary component of this size."""

        def whole() -> bool:
            return all(
                node.status("wsrep_cluster_size") == str(size)
                and node.status("wsrep_cluster_status") == "Primary"
                and node.status("wsrep_local_state") == SYNCED
                for node in among or self.nodes
            )

        eventually(whole, JOIN_S)


@contextlib.contextmanager
def lagging(cluster: GaleraCluster, node: GaleraNode, *, through: GaleraNode) -> Iterator[Session]:
    """Within the block ``node`` applies nothing more; ``UNLOCK TABLES`` ends that.

    Args:
        through: another one, of which the others have what holds it up.
    """
    run(through, "CREATE TABLE IF NOT EXISTS counts.bulk (id INT AUTO_INCREMENT PRIMARY KEY)")
    cluster.level()
    with connect(node.url, database=False) as root:
        root.execute("SET SESSION wait_timeout = 600")
        root.execute("FLUSH TABLES counts.bulk WITH READ LOCK")
        run(through, "INSERT INTO counts.bulk VALUES (NULL)")
        try:
            yield root
        finally:
            root.execute("UNLOCK TABLES")
            cluster.level()
