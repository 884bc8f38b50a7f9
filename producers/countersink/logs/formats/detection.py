r"""Detection of a log's format and envelope (syslog, docker, CRI, quotes) by its first lines
(``MOST_LINES``), removal of envelopes, and errors for an unknown or ambiguous format.

An envelope is the text around each line:

``syslog``
    RFC 3164, with or without the priority (``Mar  1 12:00:00 web nginx: …``,
    ``<190>Mar  1 12:00:00 web nginx[7]: …``); its time may also be as in ISO 8601 or as
    ``journalctl`` writes it. RFC 5424 (``<165>1 2003-10-11T22:14:15.003Z web nginx 7 - - …``).
``compose``
    ``web-1  | …``, as ``docker compose logs`` prints it, also with colours or ``--timestamps``.
``docker``
    ``{"log":"…\n","stream":"stdout","time":"…"}``, as in docker's files (``json-file``).
``cri``
    ``2016-10-06T00:17:09.669794202Z stdout F …``, as in files of Kubernetes.
``quotes``
    ``"…"`` around the line; quotes inside are unchanged, or written as ``\"`` or ``""``.

https://www.rfc-editor.org/rfc/rfc3164#section-4, https://www.rfc-editor.org/rfc/rfc5424#section-6,
https://docs.docker.com/engine/logging/drivers/json-file/ and
https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from countersink.logs.errors import Malformed, UnknownFormat
from countersink.logs.file import BOM
from countersink.logs.formats.json_objects import json_format_of, json_object
from countersink.logs.formats.line_format import ISO, LineFormat
from countersink.logs.formats.named import ZONELESS, named_format
from countersink.logs.line import diagnosis

AUTO: Final = "auto"
MOST_LINES: Final = 100
"""Number of first lines that are looked at to detect the format."""
_BLANK: Final = b"\0 \t\r\n"

EnvelopeName = Literal["docker", "cri", "syslog", "compose", "quotes"]
ENVELOPES: Final[tuple[EnvelopeName, ...]] = get_args(EnvelopeName)

_SYSLOG: Final = re.compile(
    # RFC 5424
    rb"<\d{1,3}>\d{1,2} (?:-|" + ISO + rb") [^ \n]+ [^ \n]+ [^ \n]+ [^ \n]+ "
    rb"(?:-|(?>(?:\[[^\]\\\n]*+(?>(?:\\.[^\]\\\n]*+)*)\])+))(?: |\Z)(?:\xef\xbb\xbf)?"
    # RFC 3164; some senders leave the host out
    rb"|(?:<\d{1,3}>)?(?:[A-Z][a-z][a-z] [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})?|" + ISO + rb")"
    rb"(?: [^ \n\[]+)? [^ \n\[:]+(?:\[\d+\])?: ?"
)
_COLOUR: Final = rb"(?:\x1b\[[\d;]*m)*"
_COMPOSE: Final = re.compile(
    # The first docker-compose ended the colour before the blank.
    _COLOUR + rb"[A-Za-z0-9][\w.-]*+ *+\| ?" + _COLOUR + rb" ?(?:" + ISO + rb" )?"
)
_CRI: Final = re.compile(ISO + rb" std(?:out|err) F(?::[^ \n]*+)? ")
"""The pattern of the text before a complete line; parts of a longer line have P in place of F."""
_PREFIXES: Final = {"syslog": _SYSLOG, "compose": _COMPOSE, "cri": _CRI}
_W3C: Final = re.compile(rb"(?:\xef\xbb\xbf)?#Fields:(?:.*\s)?time(?!\S)", re.IGNORECASE)
_ESCAPED: Final = re.compile(rb"\\([\"\\])")


@dataclass(frozen=True, slots=True)
class Detected:
    """The format of a log's lines, and their envelope (the text around each line, such as
    syslog's).

    Attributes:
        input_format: the name of the format.
        envelope: the name of the envelope; '' for none.
    """

    input_format: str
    envelope: str = ""

    def __str__(self) -> str:
        return self.input_format + (f" in {self.envelope}" if self.envelope else "")

    @property
    def options(self) -> str:
        """The command line options that choose this format and envelope."""
        envelope = f" --envelope {self.envelope}" if self.envelope else ""
        return f"--input-format {self.input_format}{envelope}"


def detect(lines: Sequence[bytes]) -> Detected | None:
    """Return the format and envelope of the first :data:`MOST_LINES` lines; None if none of these
    lines is in a known format.

    Lines in no known format are ignored, because every log has some. If some lines are
    vhost_combined and others combined, the result is vhost_combined, which reads both.

    Raises:
        UnknownFormat: lines are in different formats or envelopes.
    """
    found: dict[Detected, int] = {}
    for number, line in enumerate(lines[:MOST_LINES], 1):
        detected = format_of(line.removeprefix(BOM).strip(_BLANK))
        if detected is not None:
            found.setdefault(detected, number)
    for each in [each for each in found if each.input_format == "vhost_combined"]:
        found.pop(Detected("combined", each.envelope), None)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise UnknownFormat(
            f"its lines are in several formats (line {first} is {one}, line {second} {other}):"
            f" choose one by {one.options} or {other.options}"
        )
    return next(iter(found), None)


def undetected_reason(lines: Sequence[bytes]) -> str:
    """Return the error message for lines in which :func:`detect` finds no format; '' if all lines
    are blank. The message says what is wrong with the first line that is not blank.
    """
    for number, line in enumerate(lines, 1):
        if stripped := line.strip(_BLANK):
            return (
                f"the format of its first lines is not recognized (line {number}:"
                f" {diagnosis(stripped)}): give it by --input-format or --log-format"
            )
    return ""


def format_of(line: bytes) -> Detected | None:
    """Return the format of one line, and the envelope (such as syslog's) around it; None where no
    format is recognized.
    """
    plain = _plain_format_of(line)
    if plain is not None:
        return Detected(plain)
    for envelope in ENVELOPES:
        inner = without_envelope(line, envelope)
        if inner:
            plain = _plain_format_of(inner)
            if plain is not None and plain != "w3c":
                return Detected(plain, envelope)
    return None


_PATTERNS: Final = tuple(
    (
        name,
        re.compile(named_format(name, "UTC" if name in ZONELESS else "").pattern(()) + rb"\s*"),
    )
    for name in ("combined", "vhost_combined", "alb", "haproxy")
)


def _plain_format_of(line: bytes) -> str | None:
    if line.startswith(b"{"):
        try:
            return json_format_of(json_object(line))
        except Malformed:
            return None
    if line.startswith((b"#", b"\xef\xbb\xbf#")):
        return "w3c" if _W3C.match(line) else None
    for name, pattern in _PATTERNS:
        if pattern.fullmatch(line) is not None:
            # "… - user …": perhaps a combined line whose client chose its user name to match.
            spoofed = name == "vhost_combined" and line.split(b" ", 2)[1] == b"-"
            return None if spoofed else name
    return None


def mismatch_reason(form: LineFormat, line: bytes) -> str:
    """Return the reason for rejecting a line that is not in the format ``form``. If the line is in
    another known format, the reason names the options for that format.
    """
    reason = form.diagnosis(line)
    detected = format_of(line.strip(_BLANK))
    return reason if detected is None else f"{reason} ({detected.options} reads it)"


# --- envelopes ----------------------------------------------------------------------------------


def without_envelope(line: bytes, envelope: str) -> bytes | None:
    """Return a line without its envelope, such as the text that syslog puts before it; None where
    the line has no complete envelope of that name. A line of docker keeps its newline.
    """
    if envelope == "quotes":
        return _without_quotes(line)
    if envelope == "docker":
        return _docker_log(line)
    found = _PREFIXES[envelope].match(line)
    return None if found is None else line[found.end() :]


def missing_envelope(envelope: str) -> str:
    """Return the reason for rejecting a line that lacks its envelope (text such as syslog's)."""
    return f"the line has no complete {envelope} envelope (--envelope {envelope})"


def _docker_log(line: bytes) -> bytes | None:
    try:
        record = json_object(line)
    except Malformed:
        return None
    log = record.get("log")
    # A line of more than 16 KiB is in several objects; only the last has its newline.
    whole = isinstance(log, str) and "stream" in record and log.endswith("\n")
    return str(log).encode() if whole else None


def _without_quotes(line: bytes) -> bytes | None:
    line = line.strip(b" \t\r\n")
    if len(line) < 2 or line[:1] != b'"' or line[-1:] != b'"':
        return None
    inner = line[1:-1]
    quotes = inner.count(b'"')
    if quotes and inner.count(b'\\"') == quotes:
        return _ESCAPED.sub(rb"\1", inner)
    if quotes and 2 * inner.count(b'""') == quotes:
        return inner.replace(b'""', b'"')
    return inner
