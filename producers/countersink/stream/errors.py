"""Errors of the queue, and the function that makes them from redis-py's errors (``translate``).

::

    StreamError
    ├── StreamUnavailable     Redis is away, loading, frozen, full or read-only: try again
    ├── StreamMisconfigured   Redis refuses (password, rights, wrong type, URL): a person must act
    │   └── StreamRefused     password or rights; in a cluster maybe at one node only
    ├── QueueTooLong          the queue has more entries or rows than one read may take
    └── QueueReadStopped      a read of the queue was stopped before its end
    Interrupted               a stop was requested during a search for the oldest entry

Each exception of redis-py, and each OSError, becomes a ``StreamError``, with the original exception
as its ``__cause__``. Only functions whose docstring names ``redis.RedisError`` raise redis-py's
exceptions; their callers translate these by :func:`countersink.stream.connection.mapped`.
"""

import redis.exceptions as driver
from redis.sentinel import MasterNotFoundError, SlaveNotFoundError

from countersink.runtime.errors import ExplainedError


class StreamError(ExplainedError):
    """Base class of the errors that Redis, as the queue, can cause."""


class StreamUnavailable(StreamError):
    """Redis does not serve at the moment. The command may have been executed all the same."""

    advice = "check that the server runs and that COUNTERSINK_REDIS_URL names it"


class StreamMisconfigured(StreamError):
    """Redis refuses, or its URL cannot be used, until a person changes a setting. The message names
    the setting or quotes Redis.
    """

    advice = "check COUNTERSINK_REDIS_URL"


class StreamRefused(StreamMisconfigured):
    """Redis refuses the user: the password is wrong, or the user lacks a right. Each node of a
    cluster has its own list of users, so other nodes may serve.
    """


class QueueTooLong(StreamError):
    """The queue has more entries or rows than one read may take."""


class QueueReadStopped(StreamError):
    """A read of the queue was stopped before its end, because its caller asked for that."""


class Interrupted(Exception):
    """A stop was requested before the search for the oldest entry in the streams had ended; see
    :mod:`countersink.stream.progress`.
    """


_REFUSING = (
    driver.AuthenticationError,
    driver.AuthorizationError,
    driver.NoPermissionError,
)
_TRANSIENT = (
    driver.ReadOnlyError,
    driver.ClusterDownError,
    driver.MasterDownError,
    driver.SlotNotCoveredError,
    driver.TryAgainError,
    driver.BusyLoadingError,
)
"""redis-py's exceptions for error replies that pass by themselves. Their messages lack the reply's
prefix, so :data:`_TRANSIENT_PREFIXES` does not find them.
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
    """Return the error of the queue for ``error``, which is redis-py's or an OSError. The caller
    must raise it ``from`` that error.

    An error reply of unknown kind becomes ``StreamMisconfigured``. Any other unknown error becomes
    ``StreamUnavailable``, so that producers keep their rows and workers wait.
    """
    text = str(error) or type(error).__name__
    if isinstance(error, driver.OutOfMemoryError):
        full = StreamUnavailable(f"Redis is full: {text}")
        full.advice = "start workers if entries wait, or raise its maxmemory"
        return full
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
