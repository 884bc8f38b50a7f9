"""A private MySQL or MariaDB server: its options, data directory and users."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pymysql

from countersink.cli.errors import ServerFailed
from countersink.cli.servers.base import (
    LOOPBACK,
    PrivateServer,
    mariadb_install_db,
    mariadbd,
    mysqld,
    write_private,
)

Kind = Literal["mariadb", "mysql"]

FAST: tuple[str, ...] = (
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--sync-binlog=0",
)
"""For tests that never kill the server: a crash may lose what was committed."""


class MySQLServer(PrivateServer):
    """MySQL or MariaDB with durable commits, in a data directory of its own.

    ``extra`` are further options of mysqld; the last one of a name wins. ``template`` is a data
    directory that `stop` has left: it is copied, which is faster than making a new one.
    """

    name = "mysql"
    port_taken = ("Address already in use", "Can't start server: Bind on TCP/IP port")

    def __init__(
        self,
        directory: Path | str,
        *,
        kind: Kind = "mariadb",
        port: int | None = None,
        extra: Sequence[str] = (),
        template: Path | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        super().__init__(directory, port=port, extra=extra, death_signal=death_signal)
        self.kind: Kind = kind
        self._template = template

    @property
    def url(self) -> str:
        """The server, without a database."""
        return self.url_for("")

    def url_for(self, database: str) -> str:
        """The URL of one database, which need not exist yet."""
        return f"mysql://root:{self.password}@{LOOPBACK}:{self.port}/{database}"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _prepare(self) -> None:
        (self.directory / "tmp").mkdir(exist_ok=True)
        if self._data.exists():
            self._program()  # raises here when it was uninstalled since
        elif self._template is not None:
            _copy_template(self._template, self.directory)
        else:
            self._initialise()
        self._write_grants()

    def _program(self) -> list[str]:
        found = mysqld() if self.kind == "mysql" else mariadbd()
        # --no-defaults must be the first option: nothing of the machine's own servers is read
        return found if "--no-defaults" in found else [*found, "--no-defaults"]

    def _initialise(self) -> None:
        """Make the system tables, in a directory that gets its name only when it is whole."""
        unfinished = self.directory / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = self._program()
        if self.kind == "mysql":
            unfinished.mkdir(mode=0o700)
            command += ["--initialize-insecure", "--secure-file-priv=NULL"]
        else:
            command = [
                *mariadb_install_db(),
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
            ]
        command += [f"--datadir={unfinished}", f"--tmpdir={self.directory / 'tmp'}"]
        command += _as_current_user()
        with self.log.open("ab") as log:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must not leave it half done
                check=False,
            )
        if done.returncode != 0:
            said = self.log.read_text(errors="replace")[-2000:].strip()
            raise ServerFailed(f"could not make the data directory {self._data}\n{said}")
        unfinished.rename(self._data)

    def _write_grants(self) -> None:
        """Let root in over TCP, and nobody without the password: carried out at every start."""
        quoted = f"'{self.password}'"  # of the URL-safe base64 alphabet: nothing to escape
        user = f"'root'@'{LOOPBACK}'"
        lines = [
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY {quoted};",
            f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY {quoted};",
            f"ALTER USER {user} IDENTIFIED BY {quoted};",
            f"GRANT ALL PRIVILEGES ON *.* TO {user} WITH GRANT OPTION;",
        ]
        write_private(self.directory / "grants.sql", "\n".join(lines) + "\n")

    def _command(self) -> list[str]:
        by_kind = {
            "mysql": ["--mysqlx=OFF", "--skip-log-bin", "--secure-file-priv=NULL"],
            # it knows no NULL: the directory for temporary tables, to which nothing is exported
            "mariadb": [f"--secure-file-priv={self.directory / 'tmp'}"],
        }
        return [
            *self._program(),
            f"--datadir={self._data}",
            # one server deletes the temporary tables it finds in another's directory
            f"--tmpdir={self.directory / 'tmp'}",
            f"--socket={self.socket}",
            f"--pid-file={self.directory / 'mysql.pid'}",
            f"--init-file={self.directory / 'grants.sql'}",
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=1",
            *by_kind[self.kind],
            *_as_current_user(),
            *self.extra,
        ]

    def _answers(self) -> bool:
        try:
            connection = pymysql.connect(
                unix_socket=str(self.socket),
                user="root",
                password=self.password,
                connect_timeout=5,
                read_timeout=5,
            )
        except (pymysql.err.OperationalError, pymysql.err.InternalError):
            return False  # not listening yet, or the grants are not written yet
        connection.close()
        return True


def _as_current_user() -> list[str]:
    """Both servers refuse to run as root unless told to; other users cannot be named."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _copy_template(template: Path, directory: Path) -> None:
    """Copy a stopped server's data and its password, the data under its name only when whole."""
    shutil.rmtree(directory / "data.new", ignore_errors=True)
    password = template / "mysql.password"
    write_private(directory / "mysql.password", password.read_text())
    subprocess.run(
        ["cp", "-a", "--reflink=auto", f"{template / 'data'}", f"{directory / 'data.new'}"],
        check=True,
    )
    # each MySQL names itself once; two with the same name could not replicate from each other
    (directory / "data.new" / "auto.cnf").unlink(missing_ok=True)
    (directory / "data.new").rename(directory / "data")
