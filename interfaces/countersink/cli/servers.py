"""The private servers MariaDB and Redis, which ``countersink up`` and tests start: their programs,
options, data and users. See ``private_server.py`` for start, stop, ports and passwords."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pymysql
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from countersink.cli.errors import ServerFailed, ServerMissing
from countersink.cli.private_server import LOG_TAIL_BYTES, LOOPBACK, PrivateServer, write_private

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/usr/libexec:/sbin:/bin"
"""Directories in which programs are searched after those on the PATH. Debian installs servers in
sbin, which is not on the PATH of ordinary users."""


def find_program(program: str) -> str | None:
    """Return the path of an installed program. None if it is neither on the PATH nor in a system
    directory, such as /usr/sbin."""
    path = os.pathsep.join(filter(None, [os.environ.get("PATH", ""), _SYSTEM_PATH]))
    return shutil.which(program, path=path)


def _installed(program: str, advice: str) -> str:
    """Return the path of an installed program, as found by :func:`find_program`.

    Raises:
        ServerMissing: it is not installed. The message ends with ``advice``: how to install it.
    """
    if found := find_program(program):
        return found
    raise ServerMissing(f"{program} is not installed: {advice}")


def configured_program(variable: str) -> str | None:
    """Return the path of the program that the environment variable ``variable`` names, by its
    path or by a name that is looked up on the PATH. None if the variable is unset or empty.

    Raises:
        ServerMissing: the variable does not name a program.
    """
    configured = os.environ.get(variable)
    if not configured:
        return None
    if found := shutil.which(configured):
        return found
    raise ServerMissing(f"{variable} is {configured!r}, which is not a program")


def redis_server() -> list[str]:
    """Return the command that runs Redis, without options: the path of the program that
    $COUNTERSINK_REDIS_SERVER names, or of redis-server if the variable is unset or empty.
    ServerMissing if this program is not installed."""
    configured = configured_program("COUNTERSINK_REDIS_SERVER")
    return [configured or _installed("redis-server", "install the package redis-server")]


MARIADB_ADVICE = "install the packages mariadb-server-core and mariadb-client-core"


def mariadbd() -> list[str]:
    """Return the command that runs MariaDB, without options: the path of mariadbd. ServerMissing if
    it is not installed."""
    return [_installed("mariadbd", MARIADB_ADVICE)]


def mariadb_install_db() -> list[str]:
    """Return the command that makes a data directory of MariaDB, without options: the path of
    mariadb-install-db. ServerMissing if this program, or my_print_defaults, which it needs, is not
    installed."""
    found = _installed("mariadb-install-db", MARIADB_ADVICE)
    # the script needs this program, which is in Debian's other package
    _installed("my_print_defaults", MARIADB_ADVICE)
    return [found]


class MariaDBServer(PrivateServer):
    """A private MariaDB server. InnoDB writes its log to disk at each commit.

    ``extra`` are further options of mariadbd. They take precedence over the options of this class.
    """

    name = "mysql"
    port_taken = ("Address already in use", "Can't start server: Bind on TCP/IP port")

    @property
    def url(self) -> str:
        """The URL of the server, with user (root) and password, without the name of a database."""
        return self.url_for("")

    def url_for(self, database: str) -> str:
        """Return the URL of a database on this server; the database need not exist yet."""
        return f"mysql://root:{self.password}@{LOOPBACK}:{self.port}/{database}"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _prepare(self) -> None:
        (self.directory / "tmp").mkdir(exist_ok=True)
        self._program()  # raises ServerMissing
        if not self._data.exists():
            self._make_data()
        self._write_grants()

    def _program(self) -> list[str]:
        # --no-defaults must be the first option; the system's my.cnf is not read
        return [*mariadbd(), "--no-defaults"]

    def _initialisation(self) -> list[str]:
        """Return the program that creates the system tables, and its arguments. Not included are
        the arguments for directories and for the user, which :meth:`_make_data` adds."""
        return [
            *mariadb_install_db(),
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ]

    def _make_data(self) -> None:
        """Create the data directory with the system tables. It has a temporary name until it is
        complete. ServerFailed if the program that creates the tables fails."""
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
                start_new_session=True,  # Ctrl-C must not interrupt it
                check=False,
            )
        if done.returncode != 0:
            log_tail = self.log.read_text(errors="replace")[-LOG_TAIL_BYTES:].strip()
            raise ServerFailed(f"could not make the data directory {self._data}\n{log_tail}")
        unfinished.rename(self._data)

    def _write_grants(self) -> None:
        """Write the file with the SQL that the server runs at each start. The SQL lets root connect
        by the unix socket and by TCP at loopback, and only with the password."""
        quoted = f"'{self.password}'"  # URL-safe base64: nothing to escape
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
            # a server deletes the temporary tables of others in its directory
            f"--tmpdir={self.directory / 'tmp'}",
            f"--socket={self.socket}",
            f"--pid-file={self.directory / 'mysql.pid'}",
            f"--init-file={self.directory / 'grants.sql'}",
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=1",
            *self._export_options(),
            *_as_current_user(),
            *self.extra,
        ]

    def _export_options(self) -> list[str]:
        """Return the option that lets SQL statements (LOAD_FILE, INTO OUTFILE) read and write files
        only in this server's directory for temporary files. MariaDB has no option that forbids
        them all files."""
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
    """Return the option ``--user=root`` if this process runs as root, else an empty list. MariaDB
    and its installer refuse to run as root without this option."""
    return ["--user=root"] if os.geteuid() == 0 else []


class RedisServer(PrivateServer):
    """A private Redis server. It has an append-only file and never evicts keys, as the queue needs.

    ``extra`` are further settings, written as on the command line of Redis: ``("--appendonly",
    "no")``. They take precedence over the settings of this class.
    """

    name = "redis"
    port_taken = ("Address already in use",)

    appendfsync: str = "everysec"

    @property
    def url(self) -> str:
        return self.url_for(0)

    def url_for(self, database: int) -> str:
        """Return the URL, with the password, of the database with this number."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def _prepare(self) -> None:
        redis_server()

    def _command(self) -> list[str]:
        # in a file, as every user of the machine can read a command line
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
        """Return the lines of redis.conf that the queue needs: about durability and eviction."""
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
            retry=Retry(NoBackoff(), 0),  # the caller tries again
        )
        try:
            client.ping()
        except (redis.ConnectionError, redis.TimeoutError):
            return False  # not listening yet, or still loading its data
        finally:
            client.close()
        return True
