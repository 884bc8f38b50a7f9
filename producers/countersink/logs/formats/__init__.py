"""Formats of access logs by name (``LOG_FORMATS``), and ``line_reader``, which makes the reader of
a format's lines for ``tail`` and backfill. ``named.py`` has patterns of formats; ``detection.py``
detects the format of a log.
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
    """Make the reader of lines in a format.

    Args:
        input_format: a name from :data:`LOG_FORMATS`, ``ndjson``, or ``log-format``.
        keys: the rule that gives lines their keys, or leaves lines out.
        json_lines: a function that makes the reader of lines that are JSON objects, from
            ``input_format`` and ``keys``.
        log_format: the format in the notation of the server's configuration. If it is given,
            ``input_format`` is ignored; ``log-format`` requires it.
        envelope: the kind of text around each line, such as ``syslog``; '' for none.
        time_zone: the IANA name of the zone of times that have none; '' for none (UTC for W3C).
            Not used for JSON: ``json_lines`` knows the time zone.

    Raises:
        ValueError: ``log_format`` is invalid; or the format lacks a requested field, needs a time
            zone, refuses the given one, or allows no envelope. For W3C, only the envelope is
            checked here. For JSON, ``json_lines`` alone raises errors.
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
