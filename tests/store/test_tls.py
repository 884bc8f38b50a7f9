"""Encrypted connections verify the server unless told not to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from countersink.cli.servers.base import free_port
from countersink.store.connection import connect
from countersink.store.errors import Refused, Unavailable
from tests.support.certificates import make_certificates
from tests.support.factories import MySQLFactory
from tests.support.servers import Kind, MySQLServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a CA and a certificate for 127.0.0.1."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def server(servers_directory: Path, server_kind: Kind, certificates: Path) -> Iterator[MySQLServer]:
    """A server with that certificate."""
    with MySQLFactory(servers_directory, server_kind) as make:
        yield make(fast=True, extra=_server_options(certificates, "127.0.0.1"))


def _server_options(directory: Path, address: str) -> tuple[str, ...]:
    """Makes a CA and a server's certificate for ``address`` in ``directory``."""
    make_certificates(directory, address)
    return tuple(
        f"--ssl-{what}={directory}/{file}.pem"
        for what, file in (("ca", "ca"), ("cert", "cert"), ("key", "key"))
    )


def _cipher(url: str) -> str:
    with connect(url, database=False) as session:
        return str(session.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])


def test_a_verified_server(server: MySQLServer, certificates: Path) -> None:
    assert _cipher(f"{server.url}?ssl_ca={certificates}/ca.pem")
    assert not _cipher(f"{server.url}?ssl=false")
    with pytest.raises(Refused, match="does not verify"):
        connect(f"{server.url}?ssl=true", database=False)  # the system knows no such CA


def test_a_server_with_another_hosts_certificate(
    own_mysql_server: MySQLFactory, tmp_path: Path
) -> None:
    url = own_mysql_server(fast=True, extra=_server_options(tmp_path, "192.0.2.1")).url
    with pytest.raises(Refused, match="does not verify"):
        connect(f"{url}?ssl_ca={tmp_path}/ca.pem", database=False)
    assert _cipher(f"{url}?ssl_ca={tmp_path}/ca.pem&ssl_verify=ca")
    assert _cipher(f"{url}?ssl=true&ssl_verify=false")


def test_of_several_hosts_the_name_of_the_connected_one_is_verified(
    server: MySQLServer, certificates: Path
) -> None:
    login, option = server.url.rpartition("@")[0], f"?ssl_ca={certificates}/ca.pem"
    nobody = free_port()
    right = f"{login}@localhost:{nobody},127.0.0.1:{server.port}/{option}"
    assert _cipher(right)
    wrong = f"{login}@127.0.0.1:{nobody},localhost:{server.port}/{option}"
    with pytest.raises(Unavailable, match=r"localhost:.*does not verify"):
        connect(wrong, database=False)


def test_a_broken_connection_leaves_the_others_of_its_thread_alone(
    server: MySQLServer, certificates: Path
) -> None:
    """Whether the break is seen by a statement, by closing it, or while logging in."""
    url = f"{server.url}?ssl_ca={certificates}/ca.pem"
    with connect(url, database=False) as healthy:
        for seen in (True, False):
            with connect(url, database=False) as broken:
                broken.abort()
                if seen:
                    with pytest.raises(Unavailable):
                        broken.query("SELECT 1")
            assert healthy.query("SELECT 1") == [(1,)]
        with pytest.raises(Refused):
            connect(f"{server.url}?ssl=true", database=False)
        assert healthy.query("SELECT 1") == [(1,)]
