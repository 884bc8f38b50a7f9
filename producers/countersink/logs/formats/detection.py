r"""Detects format and envelope (syslog, docker, CRI, quotes) of a log by its first lines
(``MOST_LINES``), removes envelopes, and words the errors when the format is unknown or ambiguous.

An envelope is what each line stands in:

``syslog``
    RFC 3164, with the priority or without, the time also as ISO 8601 or as ``journalctl`` writes it
    (``Mar  1 12:00:00 web nginx: …``, ``<190>Mar  1 12:00:00 web nginx[7]: …``), and RFC 5424
    (``<165>1 2003-10-11T22:14:15.003Z web nginx 7 - - …``).
``compose``
    ``web-1  | …``, as ``docker compose logs`` prints it, with colours or ``--timestamps``.
``docker``
    ``{"log":"…\n","stream":"stdout","time":"…"}``, docker's files (``json-file``).
``cri``
    ``2016-10-06T00:17:09.669794202Z stdout F …``, files of Kubernetes.
``quotes``
    ``"…"`` around the line; quotes in it are as they were, or written ``\"`` or ``""``.

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
"""Lines that are looked at."""
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
"""Of a whole line: parts of a longer one have P instead of F."""
_PREFIXES: Final = {"syslog": _SYSLOG, "compose": _COMPOSE, "cri": _CRI}
_W3C: Final = re.compile(rb"(?:\xef\xbb\xbf)?#Fields:(?:.*\s)?time(?!\S)", re.IGNORECASE)
_ESCAPED: Final = re.compile(rb"\\([\"\\])")


@dataclass(frozen=True, slots=True)
class Detected:
    """Format and envelope of a log's lines.

    Attributes:
        input_format: the name of the format.
        envelope: what each line stands in; '': nothing.
    """

    input_format: str
    envelope: str = ""

    def __str__(self) -> str:
        return self.input_format + (f" in {self.envelope}" if self.envelope else "")

    @property
    def options(self) -> str:
        """The options that say so."""
        envelope = f" --envelope {self.envelope}" if self.envelope else ""
        return f"--input-format {self.input_format}{envelope}"


def detect(lines: Sequence[bytes]) -> Detected | None:
    """The one format that lines are of; None: none of them is in a known one.

    Lines that are in no known format do not count: every log has some. One that is combined is
    also read as vhost_combined, which has its site where it stands there.

    Raises:
        UnknownFormat: some lines are of one format and some of another.
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
            f"its lines are in several formats (line {first} is {one}, line {second} {other}): say"
            f" which one counts, by {one.options} or {other.options}"
        )
    return next(iter(found), None)


def untold(lines: Sequence[bytes]) -> str:
    """Why lines cannot be counted of which :func:`detect` tells nothing; '': all are blank."""
    for number, line in enumerate(lines, 1):
        if stripped := line.strip(_BLANK):
            return (
                f"its first lines are in no format that is told by itself (line {number}:"
                f" {diagnosis(stripped)}): say what they are, by --input-format or --log-format"
            )
    return ""


def format_of(line: bytes) -> Detected | None:
    """The format that a line is surely of."""
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
            # In second place combined has what any client may choose a user name behind.
            spoofed = name == "vhost_combined" and line.split(b" ", 2)[1] == b"-"
            return None if spoofed else name
    return None


def why_not(form: LineFormat, line: bytes) -> str:
    """Why a line is not in a format, with the options that would read it if it is in another."""
    reason = form.diagnosis(line)
    detected = format_of(line.strip(_BLANK))
    return reason if detected is None else f"{reason} ({detected.options} reads it)"


# --- envelopes ----------------------------------------------------------------------------------


def without_envelope(line: bytes, envelope: str) -> bytes | None:
    """What stands in an envelope; None: the line has none."""
    if envelope == "quotes":
        return _without_quotes(line)
    if envelope == "docker":
        return _dockers_log(line)
    found = _PREFIXES[envelope].match(line)
    return None if found is None else line[found.end() :]


def lacking(envelope: str) -> str:
    """Why a line without its envelope is rejected."""
    return f"the line does not stand whole in {envelope}, as --envelope {envelope} says"


def _dockers_log(line: bytes) -> bytes | None:
    try:
        record = json_object(line)
    except Malformed:
        return None
    log = record.get("log")
    # A line of more than 16 KiB stands in several; all but the last one lack its newline.
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
