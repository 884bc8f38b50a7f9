"""Every error of redis-py ends as one of ours."""

import inspect

import pytest
import redis
import redis.exceptions as driver
from redis.sentinel import MasterNotFoundError, SlaveNotFoundError

from countersink.stream.connection import command, connect, mapped
from countersink.stream.errors import (
    StreamError,
    StreamMisconfigured,
    StreamRefused,
    StreamUnavailable,
    translate,
)
from tests.support.factories import RedisFactory

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
    with pytest.raises(StreamUnavailable, match="Redis does not serve"):
        command(client, "XADD", "s", "*", "a", "1")


def test_the_cause_is_kept() -> None:
    cause = redis.ConnectionError("gone")
    with pytest.raises(StreamError) as caught, mapped():
        raise cause
    assert caught.value.__cause__ is cause
