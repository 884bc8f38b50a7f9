"""A private MariaDB server: its options, data directory and users. A private Redis server: its
configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pymysql
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from countersink.cli.errors import ServerFailed
from countersink.cli.servers import (
    LOOPBACK,
    PrivateServer,
    mariadb_install_db,
    mariadbd,
    redis_server,
    write_private,
)


class MariaDBServer(PrivateServer):
    """MariaDB with durable commits, in a data directory of its own.

    ``extra`` are further options of mariadbd; the last one of a name wins.
    """

    name = "mysql"
    port_taken = ("Address already in use", "Can't start server: Bind on TCP/IP port")

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
        self._program()  # raises here when it is not installed
        if not self._data.exists():
            self._make_data()
        self._write_grants()

    def _program(self) -> list[str]:
        # --no-defaults must be the first option: nothing of the machine's own servers is read
        return [*mariadbd(), "--no-defaults"]

    def _initialisation(self) -> list[str]:
        """The program that makes the system tables, and its arguments."""
        return [
            *mariadb_install_db(),
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ]

    def _make_data(self) -> None:
        """Make the system tables, in a directory that gets its name only when it is whole."""
        unfinished = self.directory / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        command = [
            *self._initialisation(),
            f"--datadir={unfinished}",
            f"--tmpdir={self.directory / 'tmp'}",
            *_as_current_user(),
        ]
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
            *self._exports(),
            *_as_current_user(),
            *self.extra,
        ]

    def _exports(self) -> list[str]:
        """What keeps statements from files: MariaDB has no NULL here, so it is the directory for
        temporary tables, to which nothing is exported."""
        return [f"--secure-file-priv={self.directory / 'tmp'}"]

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


class RedisServer(PrivateServer):
    """Redis with an append-only file and ``noeviction``: what the queue needs.

    ``extra`` are further lines of redis.conf, given as on its command line
    (``("--appendonly", "no")``); the last one of a name wins.
    """

    name = "redis"
    port_taken = ("Address already in use",)

    appendfsync: str = "everysec"

    @property
    def url(self) -> str:
        return self.url_for(0)

    def url_for(self, database: int) -> str:
        """The URL of one numbered database."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def _prepare(self) -> None:
        redis_server()

    def _command(self) -> list[str]:
        # in a file, since a command line shows its password to every user of the machine
        config = self.directory / "redis.conf"
        write_private(
            config,
            f'requirepass "{self.password}"\n'
            f"bind {LOOPBACK}\n"
            f"port {self.port}\n"
            f"unixsocket {self.socket}\n"
            "unixsocketperm 700\n"
            f"dir {self.directory}\n"
            "daemonize no\n" + self._settings(),
        )
        return [*redis_server(), str(config), *self.extra]

    def _settings(self) -> str:
        """The lines of the configuration that say what the server is for."""
        return (
            "appendonly yes\n"
            f"appendfsync {self.appendfsync}\n"
            "maxmemory-policy noeviction\n"
            'save ""\n'
        )

    def _answers(self) -> bool:
        client = redis.Redis(
            unix_socket_path=str(self.socket),
            password=self.password,
            socket_timeout=1.0,
            retry=Retry(NoBackoff(), 0),  # its own ten tries would only slow down ours
        )
        try:
            client.ping()
        except (redis.ConnectionError, redis.TimeoutError):
            return False  # not listening yet, or still loading its data
        finally:
            client.close()
        return True
