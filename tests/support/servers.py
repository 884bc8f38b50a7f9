"""Servers of tests, demo and benchmarks: those of ``countersink up`` that can be killed and frozen
as well, Redis with any durability, and MySQL beside MariaDB."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Self

from countersink.cli import servers as server_programs
from countersink.cli.errors import ServerFailed, ServerMissing
from countersink.cli.private_server import PrivateServer, write_private
from countersink.cli.servers import configured_program, find_program

AppendFsync = Literal["always", "everysec", "no"]
Kind = Literal["mariadb", "mysql"]
FAST: Final = (
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--sync-binlog=0",
)
"""For tests that never kill the server: a crash may lose what was committed."""


class FragileServer(PrivateServer):
    """A server that can be killed and frozen, and is killed when this process dies."""

    death_signal = signal.SIGKILL

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: what a power cut leaves in the files is what the next start finds."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> Self:
        """Stop cleanly if it runs, then start on the same port and data."""
        self.stop()
        return self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered once this returns."""
        if self._process is not None and self._process.alive():
            self._process.send(signal.SIGSTOP)
            # Told once the last of its threads has stopped; left for whoever waits for its end.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """SIGCONT after `freeze`."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)


class RedisServer(FragileServer, server_programs.RedisServer):
    """Redis with an append-only file and ``noeviction``.

    ``extra`` are further lines of redis.conf, given as on its command line
    (``("--appendonly", "no")``); the last one of a name wins.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        port: int | None = None,
        appendfsync: AppendFsync = "everysec",
        extra: Sequence[str] = (),
    ) -> None:
        super().__init__(directory, port=port, extra=extra)
        self.appendfsync = appendfsync


class MySQLServer(FragileServer, server_programs.MariaDBServer):
    """MySQL or MariaDB with durable commits.

    ``extra`` are further options of mysqld; the last one of a name wins. ``template`` is a data
    directory that `stop` has left: it is copied, which is faster than making a new one.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        kind: Kind = "mariadb",
        port: int | None = None,
        extra: Sequence[str] = (),
        template: Path | None = None,
    ) -> None:
        super().__init__(directory, port=port, extra=extra)
        self.kind: Kind = kind
        self._template = template

    def _program(self) -> list[str]:
        if self.kind == "mariadb":
            return super()._program()
        found = mysqld()
        return found if "--no-defaults" in found else [*found, "--no-defaults"]

    def _initialisation(self) -> list[str]:
        if self.kind == "mariadb":
            return super()._initialisation()
        return [*self._program(), "--initialize-insecure", "--secure-file-priv=NULL"]

    def _export_options(self) -> list[str]:
        if self.kind == "mariadb":
            return super()._export_options()
        return ["--mysqlx=OFF", "--skip-log-bin", "--secure-file-priv=NULL"]

    def _make_data(self) -> None:
        """Copy the template with its password, the data under its name only when whole."""
        if self._template is None:
            super()._make_data()
            return
        unfinished = self.directory / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        password = self._template / "mysql.password"
        write_private(self.directory / "mysql.password", password.read_text())
        source = self._template / "data"
        subprocess.run(["cp", "-a", "--reflink=auto", source, unfinished], check=True)
        # each MySQL names itself once; two with the same name could not replicate from each other
        (unfinished / "auto.cnf").unlink(missing_ok=True)
        unfinished.rename(self.directory / "data")


def mysql_tree() -> Path:
    """Where `make test-mysql` puts a MySQL of its own: a file system tree, not an installation."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "countersink" / "mysql"


def mysqld() -> list[str]:
    """The command that runs MySQL: $COUNTERSINK_MYSQLD, the cached tree, or the system's own.

    Raises ServerMissing.
    """
    if configured := configured_program("COUNTERSINK_MYSQLD"):
        return [configured]
    tree = mysql_tree()
    if (tree / "usr/sbin/mysqld").exists():
        return _from_tree(tree)
    installed = find_program("mysqld")
    if installed and not is_mariadb(installed):
        return [installed]
    raise ServerMissing("MySQL is not installed: `make test-mysql` sets up a private one")


def is_mariadb(program: str) -> bool:
    """Whether a program called mysqld is MariaDB in truth."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return re.search("mariadb", said.stdout, re.IGNORECASE) is not None


def _from_tree(tree: Path) -> list[str]:
    """Run mysqld with the C library of its own tree, by that tree's loader: no chroot, no root."""
    loaders = sorted(
        loader
        for place in ("lib64", "usr/lib64", "usr/lib")
        for loader in tree.glob(f"{place}/ld-linux*.so.*")
    )
    if not loaders:
        raise ServerMissing(f"{tree} is incomplete: remove it, then run `make test-mysql`")
    usr = tree / "usr"
    libraries = [*sorted(usr.glob("lib/*-linux-gnu")), usr / "lib/mysql/private", usr / "lib"]
    return [
        str(loaders[0]),
        "--library-path",
        ":".join(map(str, libraries)),
        str(usr / "sbin/mysqld"),
        # must come before all other options
        "--no-defaults",
        f"--basedir={usr}",
        f"--lc-messages-dir={usr / 'share/mysql'}",
    ]
