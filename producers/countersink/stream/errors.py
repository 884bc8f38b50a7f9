"""Errors of the queue, and their translation from redis-py's errors (``translate``).

::

    StreamError
    ├── StreamUnavailable     Redis is away, loading, frozen, full or read-only: try again
    └── StreamMisconfigured   Redis refuses (password, rights, wrong type, URL): a person must act
        └── StreamRefused     password or rights; in a cluster maybe at one node only
    Interrupted               a stop was requested before all entries were read

redis-py's exceptions end here: each becomes one of these, with the original as ``__cause__``.
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
    """Redis refuses until a person changes a setting; the message says which."""

    advice = "check COUNTERSINK_REDIS_URL"


class StreamRefused(StreamMisconfigured):
    """Redis refuses the user: its password, or its rights. Each node of a cluster has its own list
    of users, so other nodes may serve.
    """


class Interrupted(Exception):
    """A stop was requested before all entries were read."""


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
"""Classes of answers whose prefix redis-py cuts off."""
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
    """The error of the queue for redis-py's ``error``; the caller raises it ``from error``.

    An unknown error becomes ``StreamUnavailable``: producers keep their rows, and workers wait.
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
            f"this Redis is a node of a cluster ({text}): use a redis+cluster:// URL"
        )
    if isinstance(error, (driver.ResponseError, driver.DataError)):
        # Before Redis 7 a script's error begins with another text.
        if text.startswith(_TRANSIENT_PREFIXES) or "-READONLY " in text:
            return StreamUnavailable(f"Redis does not serve: {text}")
        return StreamMisconfigured(f"Redis refuses: {text}")
    return StreamUnavailable(f"Redis cannot be reached: {text}")
