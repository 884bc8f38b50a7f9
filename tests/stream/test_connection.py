"""Connections to Redis: nothing is sent twice, nothing secret is shown, and every error of redis-py
ends as one of ours."""

import inspect

import pytest
import redis
import redis.exceptions as driver
from redis.sentinel import MasterNotFoundError, SlaveNotFoundError

from countersink.cli.private_server import LOOPBACK, free_port
from countersink.stream.connection import command, connect, mapped, redact
from countersink.stream.errors import (
    StreamError,
    StreamMisconfigured,
    StreamRefused,
    StreamUnavailable,
    translate,
)
from countersink.stream.names import PARTITIONS_KEY, note_use, partitions, stream_key, stream_keys
from tests.support.factories import RedisFactory
from tests.support.proxies import Deed, Phase, RedisProxy


def test_a_command_whose_reply_is_lost_is_sent_once(
    redis_url: str, redis_client: redis.Redis
) -> None:
    with RedisProxy.to(redis_url) as proxy:
        cut = proxy.when("XADD", Phase.AFTER, Deed.CUT, times=0)
        with pytest.raises(StreamUnavailable), mapped():
            connect(proxy.url(redis_url)).xadd("s", {"a": 1})
    assert cut.acted == redis_client.xlen("s") == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        *((url, "redis") for url in ("", "localhost", "http://x", "redis+cluster://x/1")),
        *((url, "redis") for url in ("redis://h:notaport/0", "redis://h/db")),
        ("redis+sentinel://u:s3cret@a:1", "name of the master"),
        ("redis+sentinel://u:s3cret@a,,b/m/0", "begins with the hosts"),
        ("redis+sentinel://u:s3cret@a:x/m/0", "from 1 to 65535"),
        ("redis+sentinel://u:s3cret@a:65536/m/0", "from 1 to 65535"),
        ("redis+sentinel://u:s3cret@::1:1/m/0", "in \\[\\]"),
        ("redis+sentinel://u:s3cret#x@a/m/0", "%23"),
        ("redis+sentinel://u:s3cret@a/m/zero", "number of a database"),
        ("redis+sentinel://u:s3cret@a/m?sentinel_passwort=s3cret", "malformed"),
        ("redis+sentinel://u:s3cret@a/m?socket_timeout=soon", "malformed"),
        ("redis+sentry://u:s3cret@a/m", "is not a Redis URL"),
        ("redis+cluster://u:s3cret@", "begins with the hosts"),
        ("redis+cluster://u:s3cret@a/1", "only database 0"),
        ("redis+cluster://u:s3cret@a?nonsense=1", "malformed"),
        ("redis+cluster://u:s3cret@a?socket_timeout=soon", "malformed"),
        ("redis+cluster://u:s3cret@a,redis..example", "begins with the hosts"),
        (f"redis+cluster://u:s3cret@{'a' * 64}.example", "begins with the hosts"),
        ("redis://u:s3cret@a:99999/0", "malformed"),
        ("redis://u:s3cret@a/first", "its path is not the number of a database"),
        *(
            (
                f"rediss{kind}?{name}=/no/file",
                f"the file '/no/file' of {name} does not exist or is not readable",
            )
            for kind in ("://u:s3cret@a/0", "+sentinel://u:s3cret@a/m/0", "+cluster://u:s3cret@a")
            for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_ca_path")
        ),
    ],
)
def test_a_wrong_url_is_refused_with_a_reason(url: str, said: str) -> None:
    with pytest.raises(StreamMisconfigured, match=said) as caught:
        connect(url)
    assert "\n" not in str(caught.value)
    if "passwort" not in url:  # no name of a secret, which nobody can know
        assert "s3cret" not in str(caught.value)
        assert "s3cret" not in redact(url)


@pytest.mark.parametrize(
    ("url", "parts"), [("redis+sentinel://{}/m", ("'m'", "refused")), ("redis+cluster://{}", ())]
)
def test_nothing_is_sent_before_the_first_command_which_says_who_cannot_be_reached(
    url: str, parts: tuple[str, ...]
) -> None:
    hosts = [f"{LOOPBACK}:{free_port()}" for _ in range(2)]
    client = connect(url.format(",".join(hosts)))
    with pytest.raises(StreamUnavailable) as caught:
        command(client, "XLEN", "k")
    said = str(caught.value)
    assert all(part in said for part in (*hosts, *parts))
    assert "\n" not in said


def test_a_wrong_password_is_a_misconfiguration(redis_url: str) -> None:
    with pytest.raises(StreamMisconfigured, match="refuses"):
        command(connect(redis_url.replace("://", "://nobody:wrong@")), "PING")


def test_every_partition_ever_used_is_read(redis_url: str) -> None:
    client = connect(redis_url)
    assert stream_keys(client) == [stream_key(0)]
    client.set(PARTITIONS_KEY, 12)
    note_use(client, 11)
    client.set(PARTITIONS_KEY, 2)
    assert partitions(client) == 2
    assert stream_keys(client) == [stream_key(p) for p in (0, 1, 11)]


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "99999", "²", "9" * 5000])
def test_a_wrong_partition_count_is_refused(redis_url: str, value: str) -> None:
    client: redis.Redis = connect(redis_url)
    client.set(PARTITIONS_KEY, value)
    with pytest.raises(StreamMisconfigured, match=PARTITIONS_KEY):
        partitions(client)


def test_nothing_is_sent_that_takes_a_right_which_older_servers_do_not_know(redis_url: str) -> None:
    """CLIENT SETINFO: a Redis before 7.2 answers it with an error, and refuses lists of it."""
    with connect(redis_url) as client, redis.Redis.from_url(redis_url, protocol=2) as plain:
        plain.config_resetstat()
        assert client.ping()
        assert plain.info("stats")["total_error_replies"] == 0
        assert "cmdstat_client|setinfo" not in plain.info("commandstats")


DRIVER_ERRORS = [
    error
    for _, error in inspect.getmembers(driver, inspect.isclass)
    if issubclass(error, driver.RedisError)
]


def test_each_exception_of_the_driver_is_mapped() -> None:
    for error in DRIVER_ERRORS:
        instance = error.__new__(error)
        Exception.__init__(instance, "text")
        assert type(translate(instance)) in (StreamUnavailable, StreamMisconfigured, StreamRefused)
    for text in ("WRONGTYPE Operation", "NOPERM no", "ERR unknown command"):
        assert isinstance(translate(redis.ResponseError(text)), StreamMisconfigured)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (redis.ResponseError, "OOM command not allowed"),
        (redis.ResponseError, "LOADING Redis is loading"),
        (redis.ResponseError, "READONLY You can't write"),
        (redis.ResponseError, "MISCONF x"),
        (redis.ResponseError, "Error running script (call to f_1): @user_script:1: -READONLY x"),
        *((error, "none") for error in (MasterNotFoundError, SlaveNotFoundError)),
        *((error, "none") for error in (driver.ClusterDownError, driver.SlotNotCoveredError)),
    ],
)
def test_servers_that_do_not_serve_are_unavailable(error: type[Exception], text: str) -> None:
    assert isinstance(translate(error(text)), StreamUnavailable)


def test_a_full_redis_is_not_called_unreachable(own_redis_server: RedisFactory) -> None:
    client = connect(own_redis_server(extra=["--maxmemory", "1"]).url)
    with pytest.raises(StreamUnavailable, match="Redis is full"):
        command(client, "XADD", "s", "*", "a", "1")


def test_the_cause_is_kept() -> None:
    cause = redis.ConnectionError("gone")
    with pytest.raises(StreamError) as caught, mapped():
        raise cause
    assert caught.value.__cause__ is cause
