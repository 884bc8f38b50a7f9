"""Every error of redis-py ends as one of ours."""

import inspect

import pytest
import redis
import redis.exceptions as driver

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


@pytest.mark.parametrize("error", DRIVER_ERRORS, ids=lambda e: e.__name__)
def test_each_exception_of_the_driver_is_mapped(error: type[Exception]) -> None:
    instance = error.__new__(error)
    Exception.__init__(instance, "text")
    assert type(translate(instance)) in (StreamUnavailable, StreamMisconfigured, StreamRefused)


@pytest.mark.parametrize(
    "text",
    [
        "OOM command not allowed",
        "LOADING Redis is loading",
        "READONLY You can't write",
        "MISCONF x",
        "Error running script (call to f_1): @user_script:1: -READONLY You can't write",
    ],
)
def test_a_server_that_does_not_serve_is_unavailable(text: str) -> None:
    assert isinstance(translate(redis.ResponseError(text)), StreamUnavailable)


def test_a_full_redis_is_not_called_unreachable(own_redis_server: RedisFactory) -> None:
    client = connect(own_redis_server(extra=["--maxmemory", "1"]).url)
    with pytest.raises(StreamUnavailable, match="Redis does not serve"):
        command(client, "XADD", "s", "*", "a", "1")


@pytest.mark.parametrize("text", ["WRONGTYPE Operation", "NOPERM no", "ERR unknown command"])
def test_a_refusal_is_a_misconfiguration(text: str) -> None:
    assert isinstance(translate(redis.ResponseError(text)), StreamMisconfigured)


def test_the_cause_is_kept() -> None:
    cause = redis.ConnectionError("gone")
    with pytest.raises(StreamError) as caught, mapped():
        raise cause
    assert caught.value.__cause__ is cause
