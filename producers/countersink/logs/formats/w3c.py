"""W3C extended logs (IIS, CloudFront): ``#Fields:`` and ``#Date:`` directives, names of fields,
spaces or tabs, and errors where a date or time is missing.

IIS writes them (divided by spaces) and CloudFront (divided by tabs, values URL-encoded). Their
times are UTC by definition. https://www.w3.org/TR/WD-logfile.html,
https://learn.microsoft.com/windows/win32/http/w3c-logging and
https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logs-reference.html
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final
from urllib.parse import unquote_to_bytes

from countersink.logs.errors import Malformed
from countersink.logs.formats.line_format import (
    STATUS,
    AccessField,
    Layout,
    LineFormat,
    ValuePlace,
    by_aliases,
    client_text,
    clock_minute,
)
from countersink.logs.line import CLIENT, asked, decoded, path_of
from countersink.logs.times import Clock, no_day

FIELDS: Final = b"#Fields:"
_DATE_DIRECTIVE: Final = re.compile(rb"#Date:\s*(\d{4}-\d\d-\d\d)\b", re.IGNORECASE)
_ALIASES: Final = {
    "host": ("c-ip", "c-dns"),
    "vhost": ("x-host-header", "cs-host", "cs(host)", "s-computername"),
    "user": ("cs-username",),
    "method": ("cs-method",),
    "path": ("cs-uri-stem",),
    "query": ("cs-uri-query",),
    "protocol": ("cs-protocol-version", "cs-version"),
    "status": ("sc-status",),
    "size": ("sc-bytes",),
    "referer": ("cs(referer)",),
    "agent": ("cs(user-agent)",),
}
_DATE: Final = rb"\d{4}-\d\d-\d\d"
_TIME: Final = rb"\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"
_PATTERNS: Final = {
    "date": _DATE,
    "time": _TIME,
    "c-ip": CLIENT,
    "sc-status": rb"(?:" + STATUS + rb"|000?)",
}


@dataclass(frozen=True, slots=True)
class Directives:
    """What the directives before a line say of it.

    Attributes:
        names: what ``#Fields:`` names, lower case; none: there was none.
        date: the day of ``#Date:``, for lines that have a time alone; '': there was none.
    """

    names: tuple[str, ...] = ()
    date: str = ""

    @property
    def timed(self) -> bool:
        """Whether they say when a line was."""
        return "time" in self.names and ("date" in self.names or bool(self.date))

    @property
    def shape(self) -> tuple[tuple[str, ...], str]:
        """What the format of lines depends on."""
        return self.names, "" if "date" in self.names else self.date

    def after(self, line: bytes) -> "Directives":
        """What holds after one more line, which need not be a directive."""
        line = line.removeprefix(b"\xef\xbb\xbf")
        if line[: len(FIELDS)].lower() == FIELDS.lower():
            names = decoded(line[len(FIELDS) :]).lower().split()
            return replace(self, names=tuple(names))
        found = _DATE_DIRECTIVE.match(line)
        return self if found is None else replace(self, date=found[1].decode())


CLOUDFRONT: Final = Directives().after(
    b"#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status"
    b" cs(Referer) cs(User-Agent) cs-uri-query"
)
"""What CloudFront's lines have first, also where they stand without directives."""

_WHOLE: Final = rb"\0*+(?:\xef\xbb\xbf)?(#[^\n]*+)(?=\n)"
_FIRST_DIRECTIVE: Final = re.compile(_WHOLE)
_LATER_DIRECTIVE: Final = re.compile(rb"\n" + _WHOLE)  # what begins with a text is found fast


def directives_in(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The directives that stand whole in ``data``, which begins a line, and where they begin. NULs
    before them, as a truncated log has them, are none of theirs.
    """
    first = _FIRST_DIRECTIVE.match(data)
    for found in chain((first,) if first else (), _LATER_DIRECTIVE.finditer(data)):
        yield found.start(1), found[1]


_TABBED: Final = re.compile(rb"[\0 \t\r]*+[^ \t]*+\t")


def divided_by_tabs(line: bytes) -> bool:
    """Whether the first value of a line ends with a tab; so every line tells it by itself."""
    return _TABBED.match(line) is not None


def w3c_format(directives: Directives, *, tabs: bool, time_zone: str = "") -> LineFormat:
    """The format of the lines after directives.

    Args:
        directives: they.
        tabs: whether values are divided by tabs.
        time_zone: IANA name; '': UTC, as the standard says.

    Raises:
        Malformed: it says nothing of the time.
    """
    names = directives.names
    if not directives.timed:
        raise Malformed(
            "the #Fields: before it do not name date and time"
            if "time" not in names
            else "the #Fields: before it name no date, and no #Date: says it"
        )
    value = rb"[^\t\r\n]++" if tabs else rb'(?:"[^"\n]*+(?>(?:""[^"\n]*+)*)"|[^ \r\n]++)'
    divider = rb"\t" if tabs else rb" +"
    source: list[ValuePlace] = []
    groups: dict[str, str] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, f"g{number}")
        pattern = _PATTERNS.get(name, value)
        if number:
            source.append(ValuePlace("", divider, "what divides values"))
        source.append(ValuePlace(f"g{number}", pattern, name))
    layout = Layout(tuple(source), rb"(?:\t.*)?" if directives is CLOUDFRONT else rb"[ \t]*+")
    read = _decoded if tabs else _unquoted
    fields = {name: AccessField((group,), read) for name, group in groups.items()}
    if "c-ip" in groups:
        fields["c-ip"] = AccessField((groups["c-ip"],), client_text)
    # No date alone: it would be the time of a line that is not matched, which has none.
    clock = clock_minute(Clock(time_zone=time_zone or "UTC", begins=no_day))
    date = () if "date" in groups else (directives.date.encode(),)

    def minute(found: Sequence[bytes]) -> int:
        return clock((*date, *found))

    return LineFormat(
        name="w3c",
        pattern=layout.pattern,
        fields=_common_names(fields, groups, read) | fields,
        times=(groups["date"], groups["time"]) if "date" in groups else (groups["time"],),
        minute=minute,
        diagnosis=layout.diagnosis,
    )


def _common_names(
    fields: dict[str, AccessField], groups: dict[str, str], read: Callable[[bytes], str]
) -> dict[str, AccessField]:
    found = by_aliases(fields, _ALIASES)

    def whole(target: bytes, query: bytes = b"-") -> str:
        text = read(target)
        asked(text.encode())
        return text if query in (b"-", b"") else f"{text}?{read(query)}"

    stem = found.get("path") or fields.get("cs-uri")
    if stem is not None:
        query = found["query"].groups if "query" in found and "path" in found else ()
        found["target"] = AccessField(stem.groups + query, whole)
        # Some servers write the query into the stem.
        found["path"] = AccessField(stem.groups, lambda raw: path_of(read(raw).encode()).decode())
        if "query" not in found:
            found["query"] = AccessField(stem.groups, lambda raw: whole(raw).partition("?")[2])
    return found


def _unquoted(raw: bytes) -> str:
    if len(raw) >= 2 and raw[:1] == raw[-1:] == b'"':
        raw = raw[1:-1].replace(b'""', b'"')
    return decoded(raw)


def _decoded(raw: bytes) -> str:
    """What CloudFront has encoded, once; what the client sent encoded stays so."""
    return decoded(unquote_to_bytes(raw))
