"""Class ``Options``, the settings of a producer: defaults, checks with their error messages, and
environment variables (``COUNTERSINK_PRODUCER_...``, ``..._FILE``).
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, get_args

from countersink.runtime.limits import MAX_COUNTER_LENGTH
from countersink.runtime.log import Log
from countersink.runtime.texts import did_you_mean

URL_VARIABLE: Final = "COUNTERSINK_REDIS_URL"
PREFIX: Final = "COUNTERSINK_PRODUCER_"
OFF: Final = "off://"
"""The URL of a producer that counts nothing."""
MEMORY: Final = "memory://"
"""The beginning of a URL whose producers keep their increments in this process. Producers with the
same URL share their increments; another name behind ``memory://`` is another URL."""
Missing = Literal["error", "off"]
"""The effect of a missing URL: a ValueError, or a producer that counts nothing."""

_BOOLS: Final = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of a :class:`~countersink.producers.Producer`: see :class:`Options`."""

    flush_interval: float
    max_rows: int
    max_bytes_in_memory: int
    max_rows_in_memory: int | None
    max_stream_length: int
    spool: str | os.PathLike[str] | None
    spool_max_bytes: int
    id_scope: str
    socket_timeout: float
    exit_timeout: float
    handle_sigterm: bool
    handle_os_exit: bool


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of a :class:`~countersink.producers.Producer` besides its URL.

    Attributes:
        flush_interval: seconds between two flushes to Redis. The first increment after a pause of
            this length is sent immediately.
        max_rows: number of distinct (counter, key, minute) rows since the last flush at which the
            next one starts before the interval has passed.
        max_bytes_in_memory: limit in bytes on the rows in memory. A row counts until Redis or the
            spool has stored it, even while it is being sent. A row with a key of 20 characters
            counts as about 290 bytes (the worst case).
        max_rows_in_memory: limit on the number of rows in memory, besides the limit on bytes;
            ``None`` sets no limit on the number.
        max_stream_length: number of entries in the stream above which the producer sends nothing,
            as if Redis did not answer.
        spool: directory of the disk spool; with ``None`` the producer has no spool.
        spool_max_bytes: limit in bytes on all segments in the spool's directory together, those of
            other processes and damaged ones included. When it is reached, rows stay in memory.
        id_scope: namespace of the ids given to ``increment(id=…)`` and ``increment_batch(id=…)``:
            give each application its own, at most 64 characters.
        socket_timeout: seconds to wait for an answer of Redis.
        exit_timeout: seconds that a flush at exit or on SIGTERM may take.
        handle_sigterm: whether to flush before SIGTERM, SIGHUP, SIGQUIT or SIGINT ends the process
            by its default action. If the application has set its own handler of SIGTERM before the
            producer was created, the producer is flushed as well, while that handler runs.
        handle_os_exit: whether to flush before ``os._exit()`` ends the process or ``os.exec…()``
            replaces its program.
    """

    flush_interval: float = 0.25
    max_rows: int = 5_000
    max_bytes_in_memory: int = 1 << 28
    max_rows_in_memory: int | None = None
    max_stream_length: int = 1_000_000
    spool: str | os.PathLike[str] | None = None
    spool_max_bytes: int = 1 << 30
    id_scope: str = ""
    socket_timeout: float = 5.0
    exit_timeout: float = 5.0
    handle_sigterm: bool = True
    handle_os_exit: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if isinstance(field.default, float):
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise TypeError(f"{name} must be a number, not {type(value).__name__}")
                if not 0 < value <= 86_400:  # also refuses NaN
                    raise ValueError(
                        f"{name} must be more than 0 and at most 86400 seconds, not {value}"
                    )
            elif isinstance(field.default, bool):
                if type(value) is not bool:
                    raise TypeError(f"{name} must be True or False")
            elif isinstance(field.default, int) or (
                name == "max_rows_in_memory" and value is not None
            ):
                if type(value) is not int:
                    raise TypeError(f"{name} must be an int, not {type(value).__name__}")
                if value < 1:
                    raise ValueError(f"{name} must be at least 1, not {value}")
        if self.spool == "":
            raise ValueError("spool must be the path of a directory; leave it out for no spool")
        if type(self.id_scope) is not str or len(self.id_scope) > MAX_COUNTER_LENGTH:
            raise ValueError(f"id_scope must be a str of at most {MAX_COUNTER_LENGTH} characters")


def from_environment(
    environment: Mapping[str, str] | None = None, *, missing: Missing = "error"
) -> tuple[str, Options]:
    """Read the URL and the options of a producer from environment variables, anew at each call.

    ``COUNTERSINK_REDIS_URL`` (or ``COUNTERSINK_REDIS_URL_FILE``, the path of a file with the URL)
    is required, unless ``missing`` is ``"off"``. The variable of an option is
    ``COUNTERSINK_PRODUCER_<OPTION>``, for example ``COUNTERSINK_PRODUCER_FLUSH_INTERVAL=0.1``.
    ``COUNTERSINK_PRODUCER_<OPTION>_FILE`` names a file with the value instead. An empty variable
    counts as missing.

    Args:
        environment: the variables; ``os.environ`` by default.
        missing: what happens if the URL is missing: ``"error"`` raises ValueError, ``"off"``
            returns the URL ``off://`` and the options.

    Raises:
        ValueError: the URL is missing, an option's value is invalid, a variable and its ``_FILE``
            are both set, or a file cannot be read; or ``missing`` has another value. Whether the
            URL is valid is not checked.
    """
    if missing not in get_args(Missing):
        raise ValueError(f"missing must be 'error' or 'off', not {missing!r}")
    env = os.environ if environment is None else environment
    url = _read(env, URL_VARIABLE) or (OFF if missing == "off" else "")
    if not url:
        raise ValueError(f"set {URL_VARIABLE} (such as redis://localhost:6379; memory:// in tests)")
    given: dict[str, Any] = {}
    for field in fields(Options):
        variable = PREFIX + field.name.upper()
        text = _read(env, variable)
        if text:
            kind = int if field.name == "max_rows_in_memory" else type(field.default)
            given[field.name] = _parse(variable, text, kind)
    try:
        return url, Options(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"in the environment ({PREFIX}…): {error}") from error


@cache  # once in a process
def warn_of_variables() -> None:
    """Log a warning of each environment variable ``COUNTERSINK_PRODUCER_…`` that names no option.
    Further calls in the same process do nothing.
    """
    known = [field.name.upper() for field in fields(Options)]
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if name != variable and name.removesuffix("_FILE") not in known:
            hint = did_you_mean(variable, [PREFIX + each for each in known], prefix=PREFIX)
            text = f"{variable} is not a setting" + (f"; {hint}" if hint else "")
            log = Log(logging.getLogger("countersink.producers"))
            log("unknown_variable", text, level=logging.WARNING)


def _read(env: Mapping[str, str], variable: str) -> str | None:
    """Return the value of a variable, unchanged; or, if ``<variable>_FILE`` names a file, the
    content of the file without white space around it. If there is no value, return None or ``""``;
    callers treat both as missing.

    Raises:
        ValueError: both are set and not empty, or the file cannot be read.
    """
    value, path = env.get(variable), env.get(variable + "_FILE")
    if value and path:
        raise ValueError(f"{variable} and {variable}_FILE are both set: unset one")
    if not path:
        return value
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{variable}_FILE: cannot read {path}: {why}") from error


def _parse(variable: str, text: str, kind: type[Any]) -> Any:
    """Return ``text`` converted to ``kind``, the type of an option. Only bool, int and float are
    converted; for any other type (such as the path of the spool) the text itself is returned. A
    bool is 1, true, yes or on (True), or 0, false, no or off (False), in upper or lower case.

    Raises:
        ValueError: the text is not valid for this type; the message names ``variable``.
    """
    try:
        if kind is bool:
            return _BOOLS[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number of seconds"}[kind]
        raise ValueError(f"{variable} must be {wanted}, not {text!r}") from None


def is_recorded(url: str) -> bool:
    """Return whether ``url`` is ``memory://…`` or ``off://``. Producers with such a URL do not use
    Redis: with ``memory://…`` they keep their increments in the process, with ``off://`` they
    discard them.
    """
    return url == OFF or url.startswith(MEMORY)
