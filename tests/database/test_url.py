"""URLs, and what must not be seen of them."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from countersink.cli.private_server import free_port
from countersink.database.connection import connect
from countersink.database.errors import Misconfigured, Refused, Unavailable
from countersink.database.url import Settings, with_database
from tests.support.certificates import make_certificates
from tests.support.factories import MySQLFactory
from tests.support.servers import Kind, MySQLServer


def test_a_whole_url() -> None:
    read = Settings.parse("mysql://u%40x:p%2F%23%3A%C3%A9@db.example:3307/counts?ssl_ca=/ca.pem")
    assert (read.host, read.port, read.database) == ("db.example", 3307, "counts")
    assert (read.user, read.password) == ("u@x", "p/#:é")
    assert (read.tls, read.ssl_ca) == ("verify", "/ca.pem")


def test_what_may_be_left_out() -> None:
    read = Settings.parse("mysql://localhost")
    assert (read.user, read.password, read.port, read.database) == (None, "", 3306, None)
    assert read.tls == "prefer"
    assert Settings.parse("mysql:///d?unix_socket=/run/s.sock").unix_socket == "/run/s.sock"
    assert Settings.parse("mysql://[::1]:3307/d").host == "::1"


def test_a_url_of_another_database() -> None:
    for url in ("mysql://u:p%2F@h1,[::1]:33/{}?ssl=true", "mysql://h/{}", "mysql:///{}?ssl_ca=/f/"):
        assert with_database(url.format("d"), "a/b") == url.format("a%2Fb")
    assert with_database("mysql://h", "a") == "mysql://h/a"


def test_several_hosts() -> None:
    read = Settings.parse("mysql://u:p,w@db1:3307,db2,[::1]:3308,[fe80::2]/counts?ssl=true")
    assert (read.host, read.port, read.password) == ("db1", 3307, "p,w")
    assert read.others == (("db2", 3306), ("::1", 3308), ("fe80::2", 3306))
    assert str(read) == "mysql://u@db1:3307,db2:3306,[::1]:3308,[fe80::2]:3306/counts"
    each = read.each_host()
    assert [host.where for host in each] == ["db1:3307", "db2:3306", "[::1]:3308", "[fe80::2]:3306"]
    assert {(host.others, host.tls, host.database) for host in each} == {((), "verify", "counts")}
    assert Settings.parse("mysql://[::1],[::1]:3307/d").each_host()[1].host == "::1"


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        ("db1,,db2", "empty host"),
        (",db2", "empty host"),
        ("db1,", "empty host"),
        ("db1,:3307", "empty host"),
        ("db1, db2", "a space beside"),
        ("db1,db2,db1", "twice"),
        ("db1,DB1:3306", "twice"),
        ("[::1],[::1]:3306", "twice"),
        ("db1:3306,db2:x", "malformed"),
        ("db1,[::1", "malformed"),
    ],
)
def test_wrong_hosts(hosts: str, says: str) -> None:
    with pytest.raises(Misconfigured, match=says) as caught:
        Settings.parse(f"mysql://u:s3cret@{hosts}/d")
    assert "s3" not in str(caught.value)


def test_a_socket_goes_with_one_host() -> None:
    with pytest.raises(Misconfigured, match="unix_socket and several hosts"):
        Settings.parse("mysql://db1,db2/d?unix_socket=/run/s.sock")


@pytest.mark.parametrize(
    ("query", "tls"),
    [
        ("", "prefer"),
        ("ssl=false", "off"),
        ("ssl=true", "verify"),
        ("ssl_ca=/x", "verify"),
        ("ssl_verify=true", "verify"),
        ("ssl=1&ssl_verify=ca", "verify_ca"),
        ("ssl_ca=/x&ssl_verify=false", "require"),
    ],
)
def test_tls(query: str, tls: str) -> None:
    assert Settings.parse(f"mysql://h/d?{query}".rstrip("?")).tls == tls


def test_tls_verifies_unless_told_otherwise() -> None:
    context = Settings.parse("mysql://h/d?ssl=true").ssl_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    unchecked = Settings.parse("mysql://h/d?ssl=true&ssl_verify=false").ssl_context()
    assert unchecked is not None
    assert unchecked.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "redis://u:s3cret@h/d",
        "mysql:/u:s3cret@h/d",
        "mysql://u:s3cret/x@h:1/d",
        "mysql://u:s3cret@h:99999/d",
        "mysql://u:s3cret@h:port/d",
        "mysql://u:s3cret@[::1/d",
        "mysql://u:s3#cret@h/d",
        "mysql://u:s3cret@h/d/e",
        "mysql://u:s3cret@h/d?charset=latin1",
        "mysql://u:s3cret@h/d?ssl",
        "mysql://u:s3cret@h/d?ssl=maybe",
        "mysql://u:s3cret@h/d?ssl_verify=maybe",
        "mysql://u:s3cret@h/d?ssl=false&ssl_ca=/x",
        "mysql://u:s3cret@h/" + "d" * 65,
        "mysql://u:12/s3cret@h",
        "mysql://u:12?s3cret=1@h/d",
    ],
)
def test_a_wrong_url_says_so_without_its_password(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        Settings.parse(url)
    assert "s3cret" not in str(caught.value)
    assert "s3" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_password_in_need_of_quoting_gets_the_hint() -> None:
    with pytest.raises(Misconfigured, match="%2F"):
        Settings.parse("mysql://u:12/s3cret@h")
    assert Settings.parse("mysql://u@h/d%40e").database == "d@e"


def test_no_password_in_repr_and_str() -> None:
    read = Settings.parse("mysql://u:s3cret@h/d")
    assert "s3cret" not in repr(read) + str(read) + f"{read}"
    assert str(read) == "mysql://u@h:3306/d"


def test_a_missing_certificate_file_is_named(tmp_path: Path) -> None:
    read = Settings.parse(f"mysql://h/d?ssl_ca={tmp_path}/none.pem")
    with pytest.raises(Misconfigured, match=r"TLS.*/none\.pem"):
        read.ssl_context()
    (tmp_path / "none.pem").write_text("no certificate")
    with pytest.raises(Misconfigured, match=r"TLS.*/none\.pem"):
        read.ssl_context()
    read = Settings.parse(f"mysql://h/d?ssl_cert={tmp_path}/mine.pem&ssl_key={tmp_path}/mine.key")
    with pytest.raises(Misconfigured, match=r"TLS.*/mine\.pem.*/mine\.key"):
        read.ssl_context()


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
