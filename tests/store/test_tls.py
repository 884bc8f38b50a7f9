"""Encrypted connections verify the server unless told not to."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from countersink.cli.servers.base import free_port
from countersink.store.connection import connect
from countersink.store.errors import Refused, Unavailable
from tests.support.factories import MySQLFactory


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    address: str | None,
) -> bytes:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=address is None, path_length=None), critical=True)
    )
    if address is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _server_options(directory: Path, address: str) -> tuple[str, ...]:
    """Makes a CA and a server's certificate for ``address`` in ``directory``."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (directory / "ca.pem").write_bytes(_certificate("ca", ca_key, "ca", ca_key, None))
    (directory / "cert.pem").write_bytes(_certificate("db", key, "ca", ca_key, address))
    (directory / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return tuple(
        f"--ssl-{what}={directory}/{file}.pem"
        for what, file in (("ca", "ca"), ("cert", "cert"), ("key", "key"))
    )


def _cipher(url: str) -> str:
    with connect(url, database=False) as session:
        return str(session.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])


def test_a_verified_server(own_mysql_server: MySQLFactory, tmp_path: Path) -> None:
    url = own_mysql_server(fast=True, extra=_server_options(tmp_path, "127.0.0.1")).url
    assert _cipher(f"{url}?ssl_ca={tmp_path}/ca.pem")
    assert not _cipher(f"{url}?ssl=false")
    with pytest.raises(Refused, match="does not verify"):
        connect(f"{url}?ssl=true", database=False)  # the system knows no such CA


def test_a_server_with_another_hosts_certificate(
    own_mysql_server: MySQLFactory, tmp_path: Path
) -> None:
    url = own_mysql_server(fast=True, extra=_server_options(tmp_path, "192.0.2.1")).url
    with pytest.raises(Refused, match="does not verify"):
        connect(f"{url}?ssl_ca={tmp_path}/ca.pem", database=False)
    assert _cipher(f"{url}?ssl_ca={tmp_path}/ca.pem&ssl_verify=ca")
    assert _cipher(f"{url}?ssl=true&ssl_verify=false")


def test_of_several_hosts_the_name_of_the_connected_one_is_verified(
    own_mysql_server: MySQLFactory, tmp_path: Path
) -> None:
    server = own_mysql_server(fast=True, extra=_server_options(tmp_path, "127.0.0.1"))
    login, option = server.url.rpartition("@")[0], f"?ssl_ca={tmp_path}/ca.pem"
    nobody = free_port()
    right = f"{login}@localhost:{nobody},127.0.0.1:{server.port}/{option}"
    assert _cipher(right)
    wrong = f"{login}@127.0.0.1:{nobody},localhost:{server.port}/{option}"
    with pytest.raises(Unavailable, match=r"localhost:.*does not verify"):
        connect(wrong, database=False)


def test_a_broken_connection_leaves_the_others_of_its_thread_alone(
    own_mysql_server: MySQLFactory, tmp_path: Path
) -> None:
    """Whether the break is seen by a statement, by closing it, or while logging in."""
    server = own_mysql_server(fast=True, extra=_server_options(tmp_path, "127.0.0.1"))
    url = f"{server.url}?ssl_ca={tmp_path}/ca.pem"
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
