"""Three MySQL 9 servers in Group Replication, single-primary, which a test may kill, freeze and cut
off from each other."""

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from countersink.cli.private_server import LOOPBACK, write_private
from countersink.cli.servers import find_program
from countersink.database.connection import connect
from countersink.database.errors import StoreError
from tests.support.ports import Ports
from tests.support.replication import ask, run
from tests.support.servers import MySQLServer, mysql_tree
from tests.support.templates import SMALL, template
from tests.support.waiting import eventually

JOIN_S: Final = 120.0
"""Within so many seconds a member is in the group again, or another one is the primary; under
load START GROUP_REPLICATION alone took 40."""
_PLUGINS: Final = mysql_tree() / "usr/lib/mysql/plugin"
_MEMBERS: Final = (
    "SELECT member_port, member_state, member_role, member_id = @@server_uuid"
    " FROM performance_schema.replication_group_members"
)


def installed() -> bool:
    """Whether MySQL 9 is there, with the plugin."""
    return (_PLUGINS / "group_replication.so").exists()


def can_be_cut() -> bool:
    """Whether this user may give each member a network of its own."""
    return os.geteuid() == 0 and None not in map(find_program, ("ip", "nsenter"))


class Network:
    """A network namespace for each member, with two interfaces: clients come by one, the other
    members by the other, which can be cut. A context manager; for root.
    """

    def __init__(self, members: int) -> None:
        number = random.SystemRandom().randrange(2, 254)
        self._name = f"csk{os.getpid() % 100_000}"
        self._subnets = f"10.{number}.1", f"10.{number}.2"
        self._numbers = range(1, members + 1)

    def __enter__(self) -> Self:
        try:
            for kind, subnet in zip("cg", self._subnets, strict=True):
                bridge = f"{self._name}{kind}"
                _ip("link", "add", bridge, "type", "bridge")
                _ip("addr", "add", f"{subnet}.254/24", "dev", bridge)
                _ip("link", "set", bridge, "up")
            for number in self._numbers:
                space = self.namespace(number)
                _ip("netns", "add", space)
                _run(*_inside(space), "ip", "link", "set", "lo", "up")
                for kind, subnet in zip("cg", self._subnets, strict=True):
                    outer, inner = f"{self._name}{kind}{number}", f"{kind}{number}"
                    _ip("link", "add", outer, "type", "veth", "peer", inner, "netns", space)
                    _run(
                        *_inside(space), "ip", "addr", "add", f"{subnet}.{number}/24", "dev", inner
                    )
                    _run(*_inside(space), "ip", "link", "set", inner, "up")
                    _ip("link", "set", outer, "master", f"{self._name}{kind}", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            for number in self._numbers:
                _ip("netns", "del", self.namespace(number))
        for kind in "cg":
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("link", "del", f"{self._name}{kind}")

    def namespace(self, number: int) -> str:
        """Of a member, from 1."""
        return f"{self._name}n{number}"

    def addresses(self, number: int) -> tuple[str, str]:
        """Where its clients, and where the other members find it."""
        return f"{self._subnets[0]}.{number}", f"{self._subnets[1]}.{number}"

    def cut(self, number: int, kinds: str, *, cut: bool) -> None:
        """Take a member's packets to and from the other members ("g") or clients ("c") away, or let
        them pass again.
        """
        for kind in kinds:
            _ip("link", "set", f"{self._name}{kind}{number}", "down" if cut else "up")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _inside(namespace: str) -> list[str]:
    """What runs a program there. `ip netns exec` would mount things, which no chroot can."""
    return ["nsenter", f"--net=/run/netns/{namespace}"]


class GroupMember(MySQLServer):
    """One server. It begins with the data that all of them have.

    Args:
        directory: of its data.
        number: from 1; the primary is the first one.
        group: UUID of the group.
        ports: of the group.
        network: where it has a namespace; None: it is on loopback.
    """

    start_timeout = 90.0

    def __init__(
        self,
        directory: Path,
        number: int,
        group: str,
        ports: Ports,
        network: Network | None = None,
    ) -> None:
        super().__init__(directory, kind="mysql", port=ports.draw(), template=template("mysql"))
        self.number = number
        self.network = network
        self.host, self.group_host = network.addresses(number) if network else (LOOPBACK, LOOPBACK)
        self.group_port = ports.draw()
        self.group = group
        self.members: Sequence[GroupMember] = ()

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"{self.host}:{self.port}"

    def url_for(self, database: str) -> str:
        return f"mysql://root:{self.password}@{self.address}/{database}"

    def _program(self) -> list[str]:
        inside = [] if self.network is None else self.network_command(self.network)
        return [*inside, *super()._program()]

    def network_command(self, network: Network) -> list[str]:
        """What runs a program in its namespace."""
        return _inside(network.namespace(self.number))

    def _write_grants(self) -> None:
        """The same on each member, and nothing of it in the log: it would be a member's own."""
        user = "'root'@'%'"
        quoted = f"'{self.password}'"
        rights = "REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN, GROUP_REPLICATION_STREAM"
        lines = [
            "SET SESSION sql_log_bin = 0;",
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY {quoted};",
            f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY {quoted};",
            f"GRANT ALL PRIVILEGES ON *.* TO {user} WITH GRANT OPTION;",
            "CREATE USER IF NOT EXISTS rpl@'%' IDENTIFIED BY 'rpl';",
            f"GRANT {rights} ON *.* TO rpl@'%';",
        ]
        write_private(self.directory / "grants.sql", "\n".join(lines) + "\n")

    def _command(self) -> list[str]:
        local = f"{self.group_host}:{self.group_port}"
        seeds = ",".join(f"{each.group_host}:{each.group_port}" for each in self.members)
        options = {
            "group-name": self.group,
            "local-address": local,
            "group-seeds": seeds,
            "ip-allowlist": "127.0.0.1/8,10.0.0.0/8",
            "start-on-boot": "OFF",
            "recovery-get-public-key": "ON",
            "recovery-reconnect-interval": "1",
            # A silent member is suspected after 5 s (no setting), and expelled so many after that.
            "member-expel-timeout": "0",
            "unreachable-majority-timeout": "3",
        }
        return [
            *super()._command(),
            *SMALL["mysql"],
            f"--bind-address={'*' if self.network else LOOPBACK}",
            f"--plugin-dir={_PLUGINS}",
            "--plugin-load-add=group_replication.so",
            "--log-bin=log",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            f"--server-id={self.number}",
            f"--report-host={self.host}",
            f"--report-port={self.port}",
            *(f"--loose-group-replication-{name}={value}" for name, value in options.items()),
            *self.extra,
        ]

    def found(self) -> None:
        """Begin the group with this member."""
        self._run_patiently(
            "RESET BINARY LOGS AND GTIDS",
            "SET GLOBAL group_replication_bootstrap_group = ON",
            *_JOIN,
            "SET GLOBAL group_replication_bootstrap_group = OFF",
        )

    def join(self, *, first: bool = False) -> None:
        """Enter the group, which is there; ``first``: for the first time."""
        if first:
            self._run_patiently("RESET BINARY LOGS AND GTIDS")
        failed: list[StoreError] = []

        def joined() -> bool:
            try:
                self._run_patiently("STOP GROUP_REPLICATION", *_JOIN)
            except StoreError as error:  # the group is slow, or has not forgotten it yet
                failed.append(error)
                return False
            return True

        eventually(joined, JOIN_S, message=lambda: f"{failed}\n{self.log.read_text()[-3000:]}")

    def lead(self) -> None:
        """Become the primary, in good order."""
        ((uuid,),) = ask(self, "SELECT @@server_uuid")
        ask(self, f"SELECT group_replication_set_as_primary('{uuid}')")

    def _run_patiently(self, *statements: str) -> None:
        """Entering a group that is busy takes longer than other statements."""
        with connect(self.url, database=False, read_timeout=JOIN_S) as session:
            for statement in statements:
                session.execute(statement)


_JOIN: Final = (
    """CHANGE REPLICATION SOURCE TO source_user = 'rpl', source_password = 'rpl'
        FOR CHANNEL 'group_replication_recovery'""",
    "START GROUP_REPLICATION",
)


class ReplicationGroup:
    """Three members, and a user ``app`` who has all rights on the database ``counts``, and may
    see the group. The first member is the primary. A context manager: nothing of it is left.

    Args:
        parent: directory for the members' data.
        size: how many members.
        networks: whether each has a network of its own, so that it can be cut off: for root.
        extra: further options of the servers.
    """

    def __init__(
        self,
        parent: Path,
        size: int = 3,
        *,
        networks: bool = False,
        extra: Sequence[str] = (),
    ) -> None:
        self._parent = Path(tempfile.mkdtemp(prefix="group-", dir=parent))
        self._stack = contextlib.ExitStack()
        network = self._stack.enter_context(Network(size)) if networks else None
        name, ports = str(uuid.uuid4()), self._stack.enter_context(contextlib.closing(Ports()))
        self.members = [
            GroupMember(self._parent / f"m{n}", n, name, ports, network) for n in range(1, size + 1)
        ]
        for member in self.members:
            member.members = self.members
            member.extra += tuple(extra)

    def __enter__(self) -> Self:
        try:
            template("mysql")
            first, *others = self.members
            with ThreadPoolExecutor() as threads:
                list(threads.map(GroupMember.start, self.members))
                first.found()
                run(
                    first,
                    "CREATE DATABASE counts",
                    "CREATE USER app@'%' IDENTIFIED BY 'geheim'",
                    "GRANT ALL ON counts.* TO app@'%'",
                    "GRANT SELECT ON performance_schema.replication_group_members TO app@'%'",
                )
                list(threads.map(lambda member: member.join(first=True), others))
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                member.thaw()
                member.kill()
        shutil.rmtree(self._parent, ignore_errors=True)
        self._stack.close()

    def url(self, *members: GroupMember) -> str:
        """The URL of these members, of all where none is named."""
        hosts = ",".join(member.address for member in members or self.members)
        return f"mysql://app:geheim@{hosts}/counts"

    def primary(self) -> GroupMember:
        """The one that the majority of the members has as its primary.

        Raises:
            AssertionError: there is none now.
        """
        found = self._primary_port()
        assert found is not None, "no primary"
        return next(each for each in self.members if each.port == found)

    def wait(self, *members: GroupMember) -> None:
        """Until these, all where none is named, are the group, ONLINE, as each of them sees it."""
        wanted = {(member.port, "ONLINE") for member in members or self.members}

        def whole() -> bool:
            return all(
                {(port, state) for port, state, *_ in seen(member)} == wanted
                for member in members or self.members
            )

        eventually(whole, JOIN_S, message=self.logs)

    def next_primary(self, *gone: GroupMember) -> GroupMember:
        """Wait until the majority has a primary that is none of ``gone``; that one."""

        def found() -> GroupMember | None:
            port = self._primary_port(*gone)
            left = (each for each in self.members if each not in gone)
            return next((each for each in left if each.port == port), None)

        made = eventually(found, JOIN_S, message=self.logs)
        assert made is not None
        return made

    def come_back(self, *members: GroupMember) -> None:
        """Start those that were killed, and have them enter the group again."""
        for member in members:
            member.start()
            member.join()
        self.wait()

    def logs(self) -> str:
        """The ends of the servers' logs."""
        return "\n".join(
            f"--- {member.number}: {seen(member)}\n" + member.log.read_text()[-1500:]
            for member in self.members
        )

    def _primary_port(self, *gone: GroupMember) -> int | None:
        for member in self.members:
            if member in gone or not member.running:
                continue
            known = seen(member)
            online = [each for each in known if each[1] == "ONLINE"]
            if 2 * len(online) > len(known):
                for port, _, role, _ in online:
                    if role == "PRIMARY":
                        return port
        return None


def seen(member: GroupMember) -> list[tuple[int, str, str, bool]]:
    """The members of the group as one of them sees them: port, state, role, whether it is itself;
    empty where it does not answer."""
    try:
        rows = ask(member, _MEMBERS)
    except StoreError:
        return []
    return [(int(port), str(state), str(role), bool(own)) for port, state, role, own in rows]


@contextlib.contextmanager
def cut_off(member: GroupMember, *, clients: bool = False) -> Iterator[None]:
    """Within the block a member does not reach the others, nor they it, nor do clients."""
    network = member.network
    assert network is not None
    network.cut(member.number, "gc" if clients else "g", cut=True)
    try:
        yield
    finally:
        network.cut(member.number, "gc", cut=False)
