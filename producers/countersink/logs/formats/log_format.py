"""``--log-format``: reads Apache's directives (``%h %t``) and nginx's variables (``$remote_addr``)
into a ``LineFormat``, and words the errors for those that are unknown.

https://httpd.apache.org/docs/2.4/mod/mod_log_config.html#formats and
https://nginx.org/en/docs/http/ngx_http_log_module.html#log_format
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from countersink.logs.formats.line_format import (
    TIME_LOCAL,
    LineFormat,
    Written,
    written_format,
)

_APACHE_CONFIG: Final = re.compile(
    r'\s*LogFormat\s+"((?:[^"\\]|\\.)*)"(?:\s+[^\s"]+)?\s*', re.IGNORECASE
)
_DIRECTIVE: Final = re.compile(
    r"%(?:!?\d{3}(?:,\d{3})*)?[<>]?(?:\{([^}]*)\})?[<>]?(\^FB|\^t[io]|[A-Za-z%])"
)
_ESCAPE: Final = re.compile(r'\\(["\\tn])')
_ESCAPES: Final = {'"': '"', "\\": "\\", "t": "\t", "n": "\n"}

_PLAIN: Final = {
    "a": ("address", "client"),
    "A": ("server_address", "any"),
    "B": ("size", "number"),
    "b": ("size", "number"),
    "D": ("duration", "number"),
    "f": ("file", "any"),
    "h": ("host", "client"),
    "H": ("protocol", "word"),
    "I": ("received", "number"),
    "k": ("keepalives", "number"),
    "l": ("ident", "any"),
    "L": ("log_id", "any"),
    "m": ("method", "word"),
    "O": ("sent", "number"),
    "p": ("port", "word"),
    "P": ("process", "any"),
    "q": ("query", "word"),
    "r": ("request", "request"),
    "R": ("handler", "any"),
    "s": ("status", "status"),
    "S": ("transferred", "number"),
    "T": ("seconds", "decimal"),
    "u": ("user", "user"),
    "U": ("path", "any"),
    "v": ("server_name", "any"),
    "V": ("canonical_name", "any"),
    "X": ("connection", "any"),
    "^FB": ("first_byte", "number"),
}
_NAMED: Final = {
    "i": "header",
    "o": "response",
    "C": "cookie",
    "e": "env",
    "n": "note",
    "^ti": "trailer",
    "^to": "response_trailer",
    "x": "tls",
    "c": "tls",
    "a": "address",
    "p": "port",
    "P": "process",
    "T": "duration",
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

_STRFTIME: Final = {
    **dict.fromkeys("dHImMSy", rb"\d\d"),
    **dict.fromkeys("abh", rb"[A-Z][a-z]{2}"),
    **dict.fromkeys("AB", rb"[A-Z][a-z]++"),
    "e": rb"[ \d]\d",
    "j": rb"\d{3}",
    "p": rb"[AP]M",
    "Y": rb"\d{4}",
    "z": rb"[+-]\d{4}",
}
_SHORT: Final = {"T": "%H:%M:%S", "F": "%Y-%m-%d", "D": "%m/%d/%y", "R": "%H:%M"}
_EPOCHS: Final = {
    "sec": (rb"\d{10}", "auto"),
    "msec": (rb"\d{13}", "auto"),
    "usec": (rb"\d{16}", "usec"),
}
_FRACTIONS: Final = {"msec_frac": rb"\d{3}", "usec_frac": rb"\d{6}"}

_NGINX_CONFIG: Final = re.compile(
    r"\s*(?:log_format\s+[^\s'\"]+\s+)?(?:escape=(\w+)\s+)?(.*)", re.DOTALL
)
_QUOTED: Final = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")""", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z0-9_]+)\}|([A-Za-z0-9_]+))")
_ISO: Final = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)"

_KINDS: Final = {
    "remote_addr": "client",
    "realip_remote_addr": "client",
    "http_x_forwarded_for": "list",
    "proxy_add_x_forwarded_for": "list",
    "remote_user": "user",
    "request": "request",
    "status": "status",
    "body_bytes_sent": "number",
    "bytes_sent": "number",
    "request_length": "number",
    "connection": "number",
    "connection_requests": "number",
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
    "time_iso8601": _ISO,
    "msec": rb"\d{10}\.\d{3}",
}
_NGINX_ALIASES: Final = {
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


def format_from_text(text: str, time_zone: str = "") -> LineFormat:
    """The format that ``--log-format`` writes, in Apache's words or in nginx's.

    Args:
        time_zone: IANA name for times without one.

    Raises:
        ValueError: it cannot be read; the message says what is wrong where.
    """
    begins = text.lstrip().lower()
    apache = bool(_APACHE_CONFIG.fullmatch(text) or _DIRECTIVE.search(text))
    nginx = _VARIABLE.search(text) is not None
    if begins.startswith("logformat"):
        nginx = False
    elif begins.startswith("log_format"):
        apache = False
    if apache and nginx:
        raise ValueError(
            "--log-format has directives of Apache (%h) and variables of nginx ($remote_addr):"
            " begin it with LogFormat or with log_format"
        )
    if apache:
        return apache_format(text, time_zone)
    if nginx:
        return nginx_format(text, time_zone)
    raise ValueError(
        f"--log-format {text!r} has neither directives of Apache (%h %l %u %t) nor variables of"
        " nginx ($remote_addr)"
    )


# --- Apache -----------------------------------------------------------------------------------


def apache_format(text: str, time_zone: str = "") -> LineFormat:
    """The format that directives write; ``text`` may be the whole ``LogFormat`` line.

    Raises:
        ValueError: a directive is not known or cannot be; the message says at which character.
    """
    config = _APACHE_CONFIG.fullmatch(text)
    if config is not None:
        text = config[1]
    parts = _parts(text, "% begins no directive of Apache", _DIRECTIVE, _directive, _ESCAPES)
    return written_format(parts, _APACHE_ALIASES, language="Apache", time_zone=time_zone)


def _parts(
    text: str,
    stray: str,
    pattern: re.Pattern[str],
    read: Callable[[re.Match[str]], str | Written],
    escapes: Mapping[str, str],
) -> list[str | Written]:
    """What stands in a format; no two texts follow each other.

    Args:
        text: the format.
        stray: the character that begins values, and what to say where it begins none.
        pattern: of a value.
        read: makes a part of it.
        escapes: what stands behind a backslash in texts, and what it stands for.

    Raises:
        ValueError: a value cannot be; the message says at which character.
    """
    mark, _, wrong = stray.partition(" ")
    parts: list[str | Written] = []
    at = 0
    for found in (*pattern.finditer(text), None):
        between = text[at : found.start() if found else len(text)]
        if mark in between:
            place = at + between.index(mark) + 1
            raise ValueError(f"the {mark} at character {place} of --log-format {wrong}")
        plain = _ESCAPE.sub(lambda match: escapes.get(match[1], match[0]), between)
        for part in (plain, read(found) if found else ""):
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            elif part != "":
                parts.append(part)
        at = found.end() if found else at
    return parts


def _directive(found: re.Match[str]) -> str | Written:
    argument, letter = found[1], found[2]
    shown, at = found[0], found.start() + 1
    if letter == "%":
        return "%"
    if letter == "t":
        return _time(argument, shown, at)
    if argument is not None and letter in _NAMED:
        if not argument:
            raise ValueError(f"{shown} at character {at} of --log-format has no name in braces")
        name = f"{_NAMED[letter]}:{argument.lower()}"
        kind = {"a": "client", "T": "number"}.get(letter, "any")
        return Written(name, shown, at, "list" if name == _FORWARDED_FOR else kind)
    if argument is None and letter in _NAMED and letter not in _PLAIN:
        raise ValueError(
            f"{shown} at character {at} of --log-format needs a name, as %{{Referer}}{letter}"
        )
    if letter not in _PLAIN:
        raise ValueError(
            f"{shown} at character {at} of --log-format is no directive of Apache that is known"
            " here"
        )
    name, kind = _PLAIN[letter]
    return Written(name, shown, at, kind)


def _time(argument: str | None, shown: str, at: int) -> Written:
    if not argument:
        return Written("time", shown, at, pattern=rb"\[" + TIME_LOCAL + rb"\]", time="auto")
    argument = argument.removeprefix("begin:").removeprefix("end:")
    if argument in _EPOCHS:
        pattern, time = _EPOCHS[argument]
        return Written(f"time:{argument}", shown, at, pattern=pattern, time=time)
    if argument in _FRACTIONS:
        return Written(f"time:{argument}", shown, at, pattern=_FRACTIONS[argument])
    for short, long in _SHORT.items():
        argument = argument.replace(f"%{short}", long)
    source = b""
    for match in re.finditer(r"%(.)|[^%]+|%", argument):
        if match[1] is None:
            source += re.escape(match[0].encode())
        elif match[1] == "%":
            source += b"%"
        elif match[1] in _STRFTIME:
            source += _STRFTIME[match[1]]
        else:
            raise ValueError(
                f"%{match[1]} in {shown} at character {at} of --log-format is no part of a time"
                " that is known here"
            )
    time = argument.replace("%e", "%d").replace("%h", "%b")
    return Written(f"time:{argument}", shown, at, pattern=source, time=time)


# --- nginx ------------------------------------------------------------------------------------


def nginx_format(text: str, time_zone: str = "") -> LineFormat:
    """The format that variables write; ``text`` may be as in the configuration, in quoted parts.

    Raises:
        ValueError: it cannot be; the message says at which character.
    """
    text, escaped = _unquoted(text)
    parts = _parts(text, "$ begins no variable of nginx", _VARIABLE, _variable, {})
    return written_format(
        parts, _NGINX_ALIASES, language="nginx", time_zone=time_zone, escaped=escaped
    )


def _variable(found: re.Match[str]) -> Written:
    name, shown, at = found[1] or found[2], found[0], found.start() + 1
    if name in _NGINX_TIMES:
        return Written(name, shown, at, pattern=_NGINX_TIMES[name], time="auto")
    kind = _KINDS.get(name, "list" if name.startswith("upstream_") else "any")
    # {host} is the client in every format; nginx's own $host is {vhost}.
    return Written("site" if name == "host" else name, shown, at, kind)


def _unquoted(text: str) -> tuple[str, bool]:
    """The text itself, of what may be a part of the configuration, and whether nginx escapes."""
    config = _NGINX_CONFIG.fullmatch(text)
    assert config is not None
    if config[1] == "json":
        raise ValueError("a log_format with escape=json is read by --input-format nginx-json")
    if config[1] not in (None, "default", "none"):
        raise ValueError(f"escape={config[1]} is not known; nginx has default, json and none")
    escaped = config[1] != "none"
    if not text[: config.start(2)].strip() and not config[2].startswith("'"):
        return text, escaped
    text = config[2]
    text = text.strip().removesuffix(";")
    whole, at = "", 0
    while text[at:].strip():
        found = _QUOTED.match(text, at)
        if found is None:
            raise ValueError(
                f"the log_format's text {text[at : at + 40]!r} is not quoted: give all of it, as it"
                " stands in nginx's configuration"
            )
        part = found[1] if found[1] is not None else found[2]
        whole += re.sub(r"\\(['\"\\])", r"\1", part)
        at = found.end()
    return whole, escaped
