"""Servers that cannot be used: wrong URLs, wrong passwords, TLS that does not verify."""

from pathlib import Path

import pytest

from countersink.cli.private_server import free_port
from tests.cli.command import Result, Servers, call, one_sentence
from tests.support.certificates import make_certificates
from tests.support.factories import MySQLFactory, RedisFactory

SECRET = "s3cr3t-w0rd"


def failed(result: Result) -> str:
    """The one sentence of a command that failed; never with a password."""
    assert result.status == 1, result
    sentence = one_sentence(result)
    assert SECRET not in sentence
    return sentence


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "is not a Redis URL"),
        (f"redis://:{SECRET}@127.0.0.1:port/0", "malformed"),
        (f"redis://:{SECRET}@127.0.0.1:1/0", "cannot be reached"),
        (f"redis://:{SECRET}@no-such-host.invalid:6379/0", "cannot be reached"),
        (f"redis+cluster://:{SECRET}@127.0.0.1:1,127.0.0.1:2", "no node of the cluster"),
        (f"redis+sentinel://:{SECRET}@127.0.0.1:1/m?sentinel_password={SECRET}", "refused"),
        (f"valkey+sentinel://127.0.0.1:1/m?sentinel%5Fpassword={SECRET}&x=1", "malformed"),
        (f"redis://:{SECRET}@redis..example:6379/0", "malformed"),
        ("unix:///no/such/socket", "cannot be reached"),
    ],
)
def test_a_redis_url_that_leads_nowhere(url: str, said: str) -> None:
    for command in (["info"], ["increment", "c"], ["tail", "x", "--counter", "c"]):
        sentence = failed(call(*command, COUNTERSINK_REDIS_URL=url))
        assert said in sentence
        assert "COUNTERSINK_REDIS_URL" in sentence


@pytest.mark.parametrize("url", ["memory://", "off://"])
def test_producers_for_tests_are_none_of_a_command(url: str) -> None:
    for command in (["increment", "c"], ["statsd", "--port", "0"], ["tail", "x", "--counter", "c"]):
        assert "is not a Redis URL" in failed(call(*command, COUNTERSINK_REDIS_URL=url))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "not a MySQL URL"),
        (f"mysql://root:{SECRET}@127.0.0.1:port/x", "malformed"),
        (f"mysql://root:{SECRET}@127.0.0.1:1/x", "127.0.0.1"),
        (f"mysql://root:{SECRET}@no-such-host.invalid/x", "no-such-host.invalid"),
        (f"mysql://root:{SECRET}@127.0.0.1:1/", "names no database"),
        (f"mysql://root:{SECRET}@127.0.0.1:1/x?nonsense=1", "unknown option 'nonsense'"),
        (f"mysql://root:{SECRET}@127.0.0.1:1/x?ssl_ca=/none", "TLS file /none"),
        (
            f"mysql://root:{SECRET}@127.0.0.1:1,[::1]:1/x",
            "no host takes writes: 127.0.0.1:1: refused the connection; [::1]:1: ",
        ),
        (f"mysql://root:{SECRET}@no-such-host.invalid,127.0.0.1:1/x", "host name has no address"),
        (f"mysql://root:{SECRET}@127.0.0.1:1,,127.0.0.1:2/x", "an empty host"),
        (f"mysql://root:{SECRET}@127.0.0.1:1,127.0.0.1:1/x", "the same host twice"),
        (f"mysql://root:{SECRET}@db1,db2/x?unix_socket=/s", "a unix_socket and several hosts"),
    ],
)
def test_a_mysql_url_that_leads_nowhere(url: str, said: str) -> None:
    backfill = ["backfill", "README.md", "--counter", "c"]
    for command in (["migrate"], ["totals", "c"], ["dead", "list"], backfill):
        assert said in failed(call(*command, COUNTERSINK_MYSQL_URL=url))


def test_a_url_of_replicas_that_cannot_be_used(servers: Servers) -> None:
    for command in (["totals", "c"], ["web", "--port", "0", "--without-keys"]):
        sentence = failed(servers.call(*command, COUNTERSINK_MYSQL_READ_URL="postgres://x/y"))
        assert "COUNTERSINK_MYSQL_READ_URL" in sentence
        assert "check COUNTERSINK_MYSQL_URL" not in sentence


def test_wrong_passwords(servers: Servers) -> None:
    redis_host = servers.redis_url.rpartition("@")[2]
    mysql_host = servers.mysql_url.rpartition("@")[2]
    wrong = call("info", COUNTERSINK_REDIS_URL=f"redis://:{SECRET}@{redis_host}")
    assert "invalid username-password pair" in failed(wrong)
    wrong = call("info", COUNTERSINK_REDIS_URL=f"redis://{redis_host}")
    assert "uthentication required" in failed(wrong)
    wrong = call("migrate", COUNTERSINK_MYSQL_URL=f"mysql://root:{SECRET}@{mysql_host}")
    assert "Access denied" in failed(wrong)
    assert "check the user and the password" in wrong.err


def test_a_database_that_was_never_migrated(redis_url: str, empty_mysql_url: str) -> None:
    servers = Servers(redis_url, empty_mysql_url)
    assert "countersink migrate" in failed(servers.call("totals", "c"))
    assert servers.json("migrate")["applied"]
    assert servers.json("migrate") == {"applied": []}


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificate of another host, its key, and who signed it."""
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory, "127.0.0.2")
    for path in directory.iterdir():
        path.chmod(0o644)
    directory.chmod(0o755)
    return directory


def test_a_redis_whose_certificate_does_not_verify(
    own_redis_server: RedisFactory, tls: Path
) -> None:
    port = free_port()
    file, key, ca = (f"{tls}/{name}.pem" for name in ("cert", "key", "ca"))
    server = own_redis_server(
        extra=(
            *("--tls-port", str(port), "--tls-cert-file", file, "--tls-key-file", key),
            *("--tls-ca-cert-file", ca, "--tls-auth-clients", "no"),
        )
    )
    url = server.url.replace("redis://", "rediss://").replace(str(server.port), str(port))
    sentence = failed(call("info", COUNTERSINK_REDIS_URL=url))
    assert "certificate" in sentence.lower()
    wrong_name = failed(call("info", COUNTERSINK_REDIS_URL=f"{url}?ssl_ca_certs={ca}"))
    assert "certificate" in wrong_name.lower()
    fitting = f"{url}?ssl_ca_certs={ca}&ssl_check_hostname=False"
    assert call("info", COUNTERSINK_REDIS_URL=fitting).status == 0


def test_a_database_whose_certificate_does_not_verify(
    own_mysql_server: MySQLFactory, tls: Path
) -> None:
    file, key, ca = (f"{tls}/{name}.pem" for name in ("cert", "key", "ca"))
    server = own_mysql_server(
        fast=True, extra=(f"--ssl-cert={file}", f"--ssl-key={key}", f"--ssl-ca={ca}")
    )
    url = server.url_for("x")
    assert "certificate" in failed(call("migrate", COUNTERSINK_MYSQL_URL=f"{url}?ssl=true"))
    wrong_name = call("migrate", COUNTERSINK_MYSQL_URL=f"{url}?ssl_ca={ca}")
    assert "certificate" in failed(wrong_name)
    fitting = f"{url}?ssl_ca={ca}&ssl_verify=ca"
    assert call("migrate", COUNTERSINK_MYSQL_URL=fitting).status == 0
