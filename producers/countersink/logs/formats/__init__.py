"""The formats of access logs by name (``LOG_FORMATS``), and ``line_reader``, which makes the reader
of their lines for ``tail`` and backfill. See ``named.py`` for patterns, ``detection.py`` for
detection.
"""

from collections.abc import Callable
from typing import Final

from countersink.logs.formats.access_log import AccessLog
from countersink.logs.formats.json_objects import JSON_FORMATS
from countersink.logs.formats.log_format import format_from_text
from countersink.logs.formats.named import PATTERNED, named_format
from countersink.logs.formats.reader import EnvelopeReader, Keys
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
) -> AccessLog | JsonLines | W3cLog | EnvelopeReader:
    """The reader of lines of a format.

    Args:
        input_format: one of :data:`LOG_FORMATS`, or ``ndjson``.
        keys: keys of lines, and conditions.
        json_lines: makes the reader of a format of JSON objects.
        log_format: the format in the server's notation; then ``input_format`` does not matter.
        envelope: the envelope of each line; '': none.
        time_zone: IANA name for times without one.

    Raises:
        ValueError: the format lacks a requested field, needs a time zone, has its own, or allows
            no envelope.
    """
    reader: AccessLog | JsonLines | W3cLog
    if log_format or input_format == "log-format":
        reader = AccessLog(keys, format_from_text(log_format, time_zone))
    elif input_format == "w3c":
        if envelope:
            raise ValueError("--envelope is not for w3c, whose directives have no envelope")
        reader = W3cLog(keys, time_zone)
    elif input_format in PATTERNED:
        reader = AccessLog(keys, named_format(input_format, time_zone))
    else:
        reader = json_lines(input_format, keys)
    return EnvelopeReader(reader, envelope) if envelope else reader
