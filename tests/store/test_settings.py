"""URLs, and what must not be seen of them."""

import ssl
from pathlib import Path

import pytest

from countersink.store.errors import Misconfigured
from countersink.store.settings import Settings


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
        ("db1, db2", "blank"),
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
