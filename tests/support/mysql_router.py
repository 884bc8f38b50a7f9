"""MySQL Router in front of servers: one address, which leads to the first of them that is there."""

from pathlib import Path
from typing import Final

from countersink.cli.private_server import LOOPBACK, PrivateServer
from countersink.database.connection import connect
from countersink.database.errors import StoreError
from tests.support.servers import mysql_tree, mysqld

_USR: Final = mysql_tree() / "usr"
_PROGRAM: Final = _USR / "bin/mysqlrouter"


def installed() -> bool:
    """Whether it is in the tree of MySQL 9."""
    return _PROGRAM.exists()


class MySQLRouter(PrivateServer):
    """A static route, without the metadata of an InnoDB Cluster.

    Args:
        directory: of its files.
        destinations: addresses of servers, in the order in which they are tried.
        login: user and password of its URL; it is ready when the server lets them in.
    """

    name = "mysqlrouter"
    port_taken = ("Address already in use",)

    def __init__(self, directory: Path, *destinations: str, login: str) -> None:
        super().__init__(directory)
        self._destinations = destinations
        self._login = login

    @property
    def url(self) -> str:
        return f"mysql://{self._login}@{LOOPBACK}:{self.port}/counts"

    def _prepare(self) -> None:
        """Nothing: the port is not known yet."""

    def _command(self) -> list[str]:
        file = self.directory / "router.conf"
        file.write_text(
            f"""
[DEFAULT]
logging_folder =
runtime_folder = {self.directory}
data_folder = {self.directory}
plugin_folder = {_USR / "lib/mysqlrouter/plugin"}

[logger]
level = INFO

[routing:writes]
bind_address = {LOOPBACK}
bind_port = {self.port}
destinations = {",".join(self._destinations)}
routing_strategy = first-available
protocol = classic
client_ssl_mode = PASSTHROUGH
server_ssl_mode = AS_CLIENT
"""
        )
        # Run by the loader of the tree, as the server is, and with its own libraries as well.
        loader, option, libraries, *_ = mysqld()
        libraries += f":{_USR / 'lib/mysql-router'}"
        return [loader, option, libraries, str(_PROGRAM), "-c", str(file)]

    def _answers(self) -> bool:
        try:
            connect(self.url, database=False).close()
        except StoreError:
            return False
        return True
