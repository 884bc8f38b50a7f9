"""Certificates for servers of the tests: an authority, and what it signed for one address."""

import ipaddress
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificates(directory: Path, address: str) -> None:
    """Write ``ca.pem``, and ``cert.pem`` and ``key.pem`` of a server at ``address``."""
    directory.mkdir(exist_ok=True)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (directory / "ca.pem").write_bytes(_certificate("ca", ca_key, "ca", ca_key, None))
    (directory / "cert.pem").write_bytes(_certificate("server", key, "ca", ca_key, address))
    (directory / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    address: str | None,
) -> bytes:
    """With all extensions on which Python insists from 3.13 on (VERIFY_X509_STRICT)."""
    now = datetime.now(UTC)
    is_ca = address is None
    usage = dict.fromkeys(signature(x509.KeyUsage).parameters, False)
    usage |= {"digital_signature": not is_ca, "key_cert_sign": is_ca, "crl_sign": is_ca}
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if address is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
