"""Hosts: what leads to this machine alone."""

from countersink.runtime.process import header_host, is_loopback


def test_loopback() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "LOCALHOST", "a.localhost"):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "::", "192.168.1.4", "localhost.example", "127.0.0.1.example", ""):
        assert not is_loopback(host), host


def test_the_name_in_a_host_header() -> None:
    for header, name in (
        ("LocalHost.:80", "localhost"),
        ("127.0.0.1:9100", "127.0.0.1"),
        ("[::1]:9100", "::1"),
        *((wrong, "") for wrong in ("", "a b", "[::1", "x:99999", "a/b", "me@localhost", "a:1:1")),
    ):
        assert header_host(header) == name, header
