"""The formats of access logs by their names (``LOG_FORMATS``), and what makes the reader of their
lines, for ``tail`` and backfill (``line_reader``); patterns are in ``named.py``, detection in
``detection.py``."""

from collections.abc import Callable
from typing import Final

from countersink.logs.formats.access_log import AccessLog
from countersink.logs.formats.json_objects import JSON_FORMATS
from countersink.logs.formats.log_format import format_from_text
from countersink.logs.formats.named import PATTERNED, named_format
from countersink.logs.formats.reader import Keys, Opened
from countersink.logs.formats.records import JsonLines
from countersink.logs.formats.w3c import W3cLog

LOG_FORMATS: Final = (*PATTERNED, "w3c", *JSON_FORMATS)


def line_reader(
    input_format: str,
    keys: Keys,
    json_lines: Callable[[str, Keys], JsonLines],
    *,
    log_format: str = "",
    envelope: str = "",
    time_zone: str = "",
) -> AccessLog | JsonLines | W3cLog | Opened:
    """Make the reader of the lines of a format.

    Args:
        input_format: its name, one of :data:`LOG_FORMATS` or ``ndjson``.
        keys: which keys lines have, and which lines are left out.
        json_lines: makes the reader of a format of JSON objects.
        log_format: the format in the server's words; then ``input_format`` does not matter.
        envelope: what each line stands in; '': nothing.
        time_zone: IANA name for times without one.

    Raises:
        ValueError: the format has not a field that is asked for, needs a time zone or has one of
            its own, or stands in no envelope.
    """
    reader: AccessLog | JsonLines | W3cLog
    if log_format or input_format == "log-format":
        reader = AccessLog(keys, format_from_text(log_format, time_zone))
    elif input_format == "w3c":
        if envelope:
            raise ValueError("--envelope is not for w3c, whose directives stand alone")
        reader = W3cLog(keys, time_zone)
    elif input_format in PATTERNED:
        reader = AccessLog(keys, named_format(input_format, time_zone))
    else:
        reader = json_lines(input_format, keys)
    return Opened(reader, envelope) if envelope else reader
