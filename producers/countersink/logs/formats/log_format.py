"""``--log-format``: makes a ``LineFormat`` of Apache's directives (``%h %t``) or nginx's variables
(``$remote_addr``), and refuses unknown directives. Any variable is accepted.

https://httpd.apache.org/docs/2.4/mod/mod_log_config.html#formats and
https://nginx.org/en/docs/http/ngx_http_log_module.html#log_format
"""

import re
import shlex
from collections.abc import Callable
from typing import Final

from countersink.logs.formats.line_format import (
    ISO,
    TIME_LOCAL,
    LineFormat,
    Term,
    format_of_notation,
)

Part = str | Term

_DIRECTIVE: Final = re.compile(r"%(?:!?\d{3}(?:,\d{3})*)?[<>]?(?:\{([^}]*)\})?[<>]?([A-Za-z%])")
_ESCAPE: Final = re.compile(r'\\(["\\tn])')
_ESCAPES: Final = {"t": "\t", "n": "\n"}

_PLAIN: Final = {
    "a": ("address", "client"),
    "B": ("size", "number"),
    "b": ("size", "number"),
    "D": ("duration", "number"),
    "h": ("host", "client"),
    "H": ("protocol", "word"),
    "I": ("received", "number"),
    "l": ("ident", "any"),
    "m": ("method", "word"),
    "O": ("sent", "number"),
    "p": ("port", "word"),
    "q": ("query", "word"),
    "r": ("request", "request"),
    "s": ("status", "status"),
    "T": ("seconds", "decimal"),
    "u": ("user", "user"),
    "U": ("path", "any"),
    "v": ("server_name", "any"),
    "V": ("canonical_name", "any"),
}
_NAMED: Final = {
    "a": ("address", "client"),
    "C": ("cookie", "any"),
    "e": ("env", "any"),
    "i": ("header", "any"),
    "n": ("note", "any"),
    "o": ("response", "any"),
    "p": ("port", "any"),
    "T": ("duration", "number"),
    "x": ("tls", "any"),
}
_FORWARDED_FOR: Final = "header:x-forwarded-for"
_APACHE_ALIASES: Final = {
    "host": ("host", "address", _FORWARDED_FOR),
    "vhost": ("server_name", "canonical_name", "header:host"),
    "request": ("request",),
    "method": ("method",),
    "path": ("path",),
    "query": ("query",),
    "protocol": ("protocol",),
    "size": ("size", "sent"),
    "referer": ("header:referer",),
    "agent": ("header:user-agent",),
}
_EPOCHS: Final = {"sec": rb"\d{10}", "msec": rb"\d{13}", "usec": rb"\d{16}"}
_LONG: Final = {"%T": "%H:%M:%S", "%F": "%Y-%m-%d"}
"""Directives of strftime that strptime lacks, each with those of strptime that mean the same."""

_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z0-9_]+)\}|([A-Za-z0-9_]+))")

_KINDS: Final = {
    "remote_addr": "client",
    "http_x_forwarded_for": "list",
    "remote_user": "user",
    "request": "request",
    "status": "status",
    "body_bytes_sent": "number",
    "bytes_sent": "number",
    "request_length": "number",
    "request_time": "decimal",
    **dict.fromkeys(
        (
            *("args", "query_string", "is_args", "request_method", "scheme", "server_protocol"),
            *("host", "server_name", "server_addr", "server_port", "remote_port", "request_id"),
        ),
        "word",
    ),
}
_NGINX_TIMES: Final = {
    "time_local": TIME_LOCAL,
    "time_iso8601": ISO,
    "msec": rb"\d{10}\.\d{3}",
}
NGINX_ALIASES: Final = {
    "host": ("remote_addr", "realip_remote_addr", "http_x_forwarded_for"),
    "vhost": ("site", "http_host", "server_name"),
    "user": ("remote_user",),
    "time": ("time_local", "time_iso8601", "msec"),
    "request": ("request",),
    "method": ("request_method",),
    "target": ("request_uri",),
    "path": ("uri", "document_uri"),
    "query": ("args", "query_string"),
    "protocol": ("server_protocol",),
    "size": ("body_bytes_sent", "bytes_sent"),
    "referer": ("http_referer",),
    "agent": ("http_user_agent",),
}
"""Field names of the combined format, each with the variables that give the field, best first."""


def format_from_text(text: str, time_zone: str = "") -> LineFormat:
    """Make the format that the text of ``--log-format`` describes.

    Args:
        text: the format in Apache's or nginx's notation, or a whole ``LogFormat`` or ``log_format``
            line of a configuration.
        time_zone: the IANA name of the zone of times that have none; '' for none.

    Raises:
        ValueError: the text is invalid, or its times do not fit ``time_zone``; the message says
            what is wrong.
    """
    begin, *_ = text.lower().split(maxsplit=1) or [""]
    apache, nginx = _DIRECTIVE.search(text) is not None, _VARIABLE.search(text) is not None
    if begin in ("logformat", "log_format"):
        apache, nginx = begin == "logformat", begin == "log_format"
    if apache and nginx:
        raise ValueError(
            "--log-format has directives of Apache (%h) and variables of nginx ($remote_addr):"
            " begin it with LogFormat or with log_format"
        )
    if apache:
        if begin == "logformat":
            _, text, *_ = [*shlex.split(text), ""]
        parts = _parts(text, "%", "directive of Apache", _DIRECTIVE.pattern, _directive)
        for number, part in enumerate(parts):
            if isinstance(part, str):
                parts[number] = _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), part)
        return format_of_notation(parts, _APACHE_ALIASES, language="Apache", time_zone=time_zone)
    if nginx:
        text, escaped = _unquoted(text)
        parts = _parts(text, "$", "variable of nginx", _VARIABLE.pattern, _variable)
        return format_of_notation(
            parts, NGINX_ALIASES, language="nginx", time_zone=time_zone, escaped=escaped
        )
    raise ValueError(
        f"--log-format {text!r} has neither directives of Apache (%h %l %u %t) nor variables of"
        " nginx ($remote_addr)"
    )


def _parts(
    text: str,
    mark: str,
    noun: str,
    value: str,
    read: Callable[[re.Match[str]], Part],
) -> list[Part]:
    """Split a format into fixed texts and values; no two texts follow each other.

    Args:
        text: the format.
        mark: the character that begins a value.
        noun: what a value is called in errors, such as ``variable of nginx``.
        value: the pattern of a value in the format.
        read: takes the match of a value, and returns the part that it stands for.

    Raises:
        ValueError: a value is invalid; the message says at which character.
    """
    parts: list[Part] = []
    for found in re.finditer(rf"{value}|[^{mark}]+|.", text):
        if found[0] == mark:
            place = found.start() + 1
            raise ValueError(f"the {mark} at character {place} of --log-format begins no {noun}")
        part = read(found) if found[0].startswith(mark) else found[0]
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return parts


def _directive(found: re.Match[str]) -> Part:
    argument, letter = found[1], found[2]
    shown, at = found[0], found.start() + 1
    if letter == "%":
        return "%"
    if letter == "t":
        return _time(argument, shown, at)
    if argument is not None and letter in _NAMED:
        if not argument:
            raise ValueError(f"{shown} at character {at} of --log-format has no name in braces")
        name, kind = _NAMED[letter]
        name = f"{name}:{argument.lower()}"
        return Term(name, shown, at, "list" if name == _FORWARDED_FOR else kind)
    if letter in _PLAIN:
        name, kind = _PLAIN[letter]
        return Term(name, shown, at, kind)
    if letter in _NAMED:
        raise ValueError(
            f"{shown} at character {at} of --log-format needs a name, as %{{Referer}}{letter}"
        )
    raise ValueError(f"{shown} at character {at} of --log-format is an unknown directive of Apache")


def _time(argument: str | None, shown: str, at: int) -> Term:
    if not argument:
        return Term("time", shown, at, pattern=rb"\[" + TIME_LOCAL + rb"\]", time="auto")
    argument = argument.removeprefix("begin:").removeprefix("end:")
    if argument in _EPOCHS:
        return Term(f"time:{argument}", shown, at, pattern=_EPOCHS[argument], time="auto")
    if argument in ("msec_frac", "usec_frac"):
        return Term(f"time:{argument}", shown, at, "number")
    for short, long in _LONG.items():
        argument = argument.replace(short, long)
    # Adjacent directives, and letters between them, are one word of the line.
    pieces = re.split(r"((?:%[A-Za-z]|\w)+)", argument)
    pattern = b"".join(
        rb"[ \w+-]\w*+" if number % 2 else re.escape(piece.replace("%%", "%").encode())
        for number, piece in enumerate(pieces)
    )
    return Term(f"time:{argument}", shown, at, pattern=pattern, time=argument)


def _variable(found: re.Match[str]) -> Term:
    name, shown, at = found[1] or found[2], found[0], found.start() + 1
    if name in _NGINX_TIMES:
        return Term(name, shown, at, pattern=_NGINX_TIMES[name], time="auto")
    kind = _KINDS.get(name, "list" if name.startswith("upstream_") else "any")
    # {host} is the client in every format; nginx's own $host is {vhost}.
    return Term("site" if name == "host" else name, shown, at, kind)


def _unquoted(text: str) -> tuple[str, bool]:
    """Return the format in a ``log_format`` line of nginx's configuration, without its quotes, and
    whether nginx escapes values. The line may lack ``log_format`` and the name. Any other text is a
    format already, and is returned unchanged, with True.

    Raises:
        ValueError: the line has ``escape=json`` or an unknown ``escape``, or an open quote.
    """
    if not re.match(r"\s*(?:log_format\s|escape=|')", text):
        return text, True
    words = shlex.split(text.strip().removesuffix(";"))
    if words[0] == "log_format":
        del words[:2]
    escape = "default"
    if words and words[0].startswith("escape="):
        escape = words.pop(0).removeprefix("escape=")
    if escape == "json":
        raise ValueError("a log_format with escape=json is read by --input-format nginx-json")
    if escape not in ("default", "none"):
        raise ValueError(f"escape={escape} is not known; nginx has default, json and none")
    return "".join(words), escape == "default"
