"""Errors of the queue, and which answers of Redis mean that it is away (``StreamUnavailable``) or
misconfigured.

::

    StreamError
    ├── StreamUnavailable     Redis is away, loading, frozen, full or read-only: try again
    └── StreamMisconfigured   Redis refuses (password, rights, wrong type, URL): a person must act
        └── StreamRefused     password or rights: of a cluster it may be one node alone that refuses
    Interrupted               told to stop before all entries were looked at

redis-py's exceptions end here: :func:`translate` maps each of them, and keeps it as ``__cause__``.
"""

import redis.exceptions as driver
from redis.sentinel import MasterNotFoundError, SlaveNotFoundError

from countersink.runtime.errors import ExplainedError


class StreamError(ExplainedError):
    """Base of every error of the queue."""


class StreamUnavailable(StreamError):
    """Redis does not serve at the moment; the outcome of the command may be unknown."""

    advice = "check that the server runs and that COUNTERSINK_REDIS_URL names it"


class StreamMisconfigured(StreamError):
    """Redis refuses, and will until somebody changes a setting; the message says which."""

    advice = "check COUNTERSINK_REDIS_URL"


class StreamRefused(StreamMisconfigured):
    """Redis refuses the user: its password, or its rights. Each node of a cluster has a list of
    users of its own, so that others may serve.
    """


class Interrupted(Exception):
    """Told to stop before all entries were looked at."""


_REFUSING = (
    driver.AuthenticationError,
    driver.AuthorizationError,
    driver.NoPermissionError,
)
_TRANSIENT = (
    driver.ReadOnlyError,
    driver.OutOfMemoryError,
    driver.ClusterDownError,
    driver.MasterDownError,
    driver.SlotNotCoveredError,
    driver.TryAgainError,
    driver.BusyLoadingError,
)
"""Answers of which redis-py cuts off the prefix; one of a server that is loading it calls a lost
connection.
"""
_TRANSIENT_PREFIXES = (
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNBLOCKED",
    "max number of clients",
)


def translate(error: Exception) -> StreamError:
    """Our error for redis-py's ``error``; the caller raises it ``from error``.

    Anything unknown counts as unavailable: a producer then keeps its rows and a worker waits.
    """
    text = str(error) or type(error).__name__
    if isinstance(error, _REFUSING) or text.startswith("WRONGPASS"):
        return StreamRefused(f"Redis refuses: {text}")
    if isinstance(error, _TRANSIENT):
        return StreamUnavailable(f"Redis does not serve: {text}")
    if isinstance(error, (MasterNotFoundError, SlaveNotFoundError)):
        return StreamUnavailable(f"Redis Sentinel: {text}")
    if isinstance(error, (driver.MovedError, driver.AskError)) or text.startswith(
        ("MOVED ", "ASK ")
    ):
        return StreamMisconfigured(
            f"Redis is a node of a cluster ({text}): use a redis+cluster:// URL"
        )
    if isinstance(error, (driver.ResponseError, driver.DataError)):
        # Before Redis 7 the answer to a script begins otherwise.
        if text.startswith(_TRANSIENT_PREFIXES) or "-READONLY " in text:
            return StreamUnavailable(f"Redis does not serve: {text}")
        return StreamMisconfigured(f"Redis refuses: {text}")
    return StreamUnavailable(f"Redis cannot be reached: {text}")
