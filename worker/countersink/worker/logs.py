"""The worker's log: one line per record, as text or JSON, each with an ``action`` that machines can
rely on.

No record holds event data or a password: fields are figures, names of consumers, streams and
entries, and the errors of :mod:`countersink.store` and :mod:`countersink.stream`. Of an unexpected
exception only the type and the lines of code are shown, since its text could quote an event.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TextIO

from countersink.worker.stderr import LineHandler

LOGGER: Final = logging.getLogger("countersink.worker")
_ROOT: Final = "countersink"
_MAX_ERROR: Final = 300


class Action(StrEnum):
    """Every action a record can carry."""

    STARTED = "started"
    """The process runs; no server was asked yet."""
    READY = "ready"
    """Both servers answered and a slot is leased: entries are read from now on."""
    WAITING = "waiting"
    """A server is away or refuses; said at once, then every 30 s with how long (``for_s``)."""
    RESUMED = "resumed"
    """It serves again."""
    BATCH = "batch"
    """A batch was applied and acknowledged (level debug)."""
    PROGRESS = "progress"
    """What was done in about the last minute, unless that is nothing."""
    DEAD = "dead"
    """Rows went to the dead letters."""
    TOO_OLD = "too_old"
    """Entries older than the pruning watermark went to the dead letters."""
    OVERFLOW = "overflow"
    """A counter has as many keys of a day as it may have: rows of further ones went to its key
    ``__overflow__``. Said at once, then every minute with how many.
    """
    BATCH_FAILED = "batch_failed"
    """An unexpected error: the batch is applied again entry by entry."""
    ENTRY_FAILED = "entry_failed"
    """An entry that keeps failing in a way nobody foresaw went to the dead letters as
    ``internal_error``.
    """
    CLAIMED = "claimed"
    """Entries of a worker that died, or is very slow, were taken over."""
    ORPHANS = "orphans"
    """Old entries that were pending with nobody were found and are applied."""
    LOST = "lost"
    """Entries were trimmed from a stream before they were applied: their counts are gone."""
    CONSUMER_REMOVED = "consumer_removed"
    """A consumer that was idle for long, with nothing pending, was forgotten."""
    PARTITIONS = "partitions"
    """The number of streams changed."""
    CHORE_FAILED = "chore_failed"
    """Something besides reading and applying failed; said at most every 30 s for each chore."""
    SLOT = "slot"
    """The slot's lease had run out, and another slot was taken."""
    SCHEMA_TOO_NEW = "schema_too_new"
    """The tables were migrated by a newer version: the process ends with status 1."""
    CRASHED = "crashed"
    """A bug that has nothing to do with a single entry: the process ends with status 1."""
    STOPPING = "stopping"
    """A signal came: the batch is finished."""
    DRAINED = "drained"
    """The streams are empty and nothing is pending."""
    LEFT_CONSUMER = "left_consumer"
    """Redis did not serve at the end: the consumer's name stays in the group until another worker
    forgets it.
    """
    STOPPED = "stopped"
    """The process ends; ``pending`` entries it had read will be redelivered."""
    STOP_FORCED = "stop_forced"
    """The process ends in the middle of a batch, which stays pending and will be redelivered."""
    OTHER = "other"
    """Anything logged by another part."""


class Log:
    """Writes records with an action.

    Args:
        consumer: the worker's consumer name; every record carries it.
    """

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer

    def __call__(
        self,
        action: Action,
        message: str,
        *,
        level: int = logging.INFO,
        bug: BaseException | None = None,
        **fields: object,
    ) -> None:
        """Log ``message`` with its fields; ``bug`` adds the lines of code an unexpected exception
        came through.
        """
        if LOGGER.isEnabledFor(level):
            if bug is not None:
                fields["exception"] = type(bug).__qualname__
                fields["traceback"] = code_lines(bug)
            extra = {"action": str(action), "fields": {"consumer": self._consumer, **fields}}
            LOGGER.log(level, message, extra=extra)


def code_lines(error: BaseException) -> str:
    """The lines of code that ``error``, and what caused it, came through: without their texts."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(parts) < 8:
        lines = traceback.format_tb(current.__traceback__)
        parts.append("".join(lines) + type(current).__qualname__)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return "\nwhile handling\n".join(parts)


def error_text(error: BaseException) -> str:
    """An error of ours as one line of bounded length."""
    return " ".join(str(error).split())[:_MAX_ERROR] or type(error).__qualname__


def set_up(log_format: str, stream: TextIO | None = None) -> LineHandler:
    """Send everything countersink logs, from level info on, to ``stream`` (default: stderr), and
    the warnings of libraries that nobody else handles; returns the handler.
    """
    handler = LineHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger(_ROOT)
    root.addHandler(handler)
    if root.level == logging.NOTSET:
        root.setLevel(logging.INFO)
    # What a library warns of would be printed by logging itself, which may wait for ever.
    logging.lastResort = _LastResort(handler)
    return handler


def take_down(handler: LineHandler) -> None:
    """Undo :func:`set_up`; what is not written yet has a second to be."""
    logging.getLogger(_ROOT).removeHandler(handler)
    if isinstance(logging.lastResort, _LastResort) and logging.lastResort.handler is handler:
        logging.lastResort = logging.lastResort.before
    handler.close()


class _LastResort(logging.Handler):
    """Passes on warnings that no handler of their own takes."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__(logging.WARNING)
        self.handler = handler
        self.before = logging.lastResort

    def emit(self, record: logging.LogRecord) -> None:
        self.handler.handle(record)


def _parts(record: logging.LogRecord) -> tuple[str, str, str, dict[str, Any]]:
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    action = getattr(record, "action", str(Action.OTHER))
    fields = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        fields["traceback"] = code_lines(record.exc_info[1])
    return time.replace("+00:00", "Z"), record.levelname.lower(), action, fields


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, action, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON."""
        time, level, action, fields = _parts(record)
        head = {"time": time, "level": level, "action": action, "message": record.getMessage()}
        return json.dumps(head | fields, default=str)


class TextFormatter(logging.Formatter):
    """One line for people: time, level, action, message, then ``name=value`` for the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of text; only a traceback adds lines."""
        time, level, action, fields = _parts(record)
        lines = fields.pop("traceback", None)
        pairs = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        line = f"{time} {level:<7} {action:<16} {record.getMessage()}{pairs}"
        return f"{line}\n{lines}" if lines else line


def _shown(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and " " not in text and '"' not in text
    return text if plain else json.dumps(text)
