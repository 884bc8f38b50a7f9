"""``LineFormat``, the format of an access log's lines: a regular expression with a group for each
value, named fields, and the time; errors for unknown fields and ambiguous layouts.

A :class:`Layout` describes a line as a sequence of fixed texts and values.
:func:`format_of_notation` makes a format from the parsed notation of a server's configuration.

Every format uses these names for its fields:

==============  ==================================================================
``host``        the client's address or name
``vhost``       the requested site
``ident``       the client's identity by RFC 1413
``user``        the authenticated user
``time``        the time as the line has it
``request``     ``method target protocol``; each of the three is a field, too
``target``      the requested URL; ``path`` and ``query`` are its parts
``status``      the status of the response, three digits
``size``        bytes of the response
``referer``     and ``agent``: headers that the client sent
==============  ==================================================================
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Final

from countersink.logs.errors import Malformed
from countersink.logs.line import (
    ADDRESS,
    CLIENT,
    ESCAPED,
    PERCENT,
    TARGET_PARTS,
    USER,
    check_target,
    decoded,
    diagnosis,
    split_request,
    text,
)
from countersink.logs.times import Clock, has_hours

Minute = Callable[[Sequence[bytes]], int]
Undo = Callable[[bytes], str]

WORD: Final = rb"[^ \n]++"
NUMBER: Final = rb"(?:\d++|-)"
DECIMAL: Final = rb"(?:-?\d++(?:\.\d++)?|-)"
STATUS: Final = rb"(?:\d\d\d|-)"
TIME_LOCAL: Final = rb"\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d:(?:[0-5]\d|60) [+-]\d{4}"
ISO: Final = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_PATTERNS: Final = {"client": CLIENT, "status": STATUS, "number": NUMBER, "decimal": DECIMAL}
_GOES_ON: Final = re.compile(r"[\w.:%-]")
"""The pattern of characters that may continue an address. Where one follows an address in a layout,
the end of the address is ambiguous.
"""
_REQUEST: Final = rb"(?:[^ \n]++ [^ \n]++(?: HTTP/[\d.]++)?|-)"
_LIST: Final = rb"[^ \n]++(?>(?:(?:(?<=,)| :) [^ \n]++)*)"
_NO_OCTET: Final = re.compile(
    r"(?:\d+\.){0,3}(?:[3-9]\d\d|2[6-9]\d|25[6-9])(?:\.\d+){0,3}(?![\w-]|\.\w)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class AccessField:
    """A field of a format: the groups of the line's pattern that hold it, and a function that reads
    them.

    Attributes:
        groups: the names of the groups.
        read: takes each group's bytes as an argument; returns the field's text, or raises
            ``Malformed``.
    """

    groups: tuple[str, ...]
    read: Callable[..., str]

    def getter(self, groups: Sequence[str]) -> Callable[[Sequence[bytes]], str]:
        """Return a function that takes the bytes of ``groups``, in this order, and returns the text
        of the field.
        """
        read = self.read
        places = [groups.index(group) for group in self.groups]
        if len(places) == 1:
            (place,) = places
            return lambda found: read(found[place])
        return lambda found: read(*[found[place] for place in places])


def client_of(address: str) -> str:
    """Return the client's address without its port, or the client's name. If ``address`` is a list
    with commas, only its first item is used.

    Raises:
        Malformed: the address has a number above 255.
    """
    address = address.partition(",")[0]
    if ":" in address:
        before, _, port = address.rpartition(":")
        if port.isdigit() and (":" not in before or before.endswith("]")):
            address = before
    if _NO_OCTET.match(address) is not None:
        raise Malformed(f"the client {address!r} is no address: its numbers go up to 255")
    return address


def client_text(raw: bytes) -> str:
    """Return the client's address (without its port) or name, from the bytes in the log."""
    return client_of(text(raw))


def unquoted_text(raw: bytes) -> str:
    """Return the text that the client sent, from the bytes in the log, without quotes around it."""
    return text(raw[1:-1] if raw[:1] == b'"' else raw)


def plain(group: str, undo: Undo = text) -> AccessField:
    """Make the field that one group holds; ``undo`` makes the field's text of the bytes."""
    return AccessField((group,), undo)


def of_request(group: str, undo: Undo = text) -> dict[str, AccessField]:
    """Return the fields of a request line (``method``, ``path`` and so on), by their names.

    Args:
        group: the group that holds the request line.
        undo: turns the bytes in the log into the text that the client sent.
    """

    def part(cut: Callable[[tuple[str, str, str]], str]) -> AccessField:
        return AccessField((group,), lambda request: cut(split_request(undo(request))))

    def of_target(cut: Callable[[str], str]) -> AccessField:
        return part(lambda parts: cut(parts[1]))

    return {
        "request": plain(group, undo),
        "method": part(lambda parts: parts[0]),
        **{name: of_target(cut) for name, cut in TARGET_PARTS.items()},
        "protocol": part(lambda parts: parts[2]),
    }


COMMON: Final = {
    "host": AccessField(("host",), client_text),
    "ident": plain("ident"),
    "user": plain("user"),
    "time": plain("time"),
    **of_request("request"),
    "status": plain("status"),
    "size": plain("size"),
}
COMBINED: Final = COMMON | {
    "referer": plain("referer", unquoted_text),
    "agent": plain("agent", unquoted_text),
}
"""The fields of a combined line. Referer and agent are empty where the line ends before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """A format that has one pattern for all its lines.

    Attributes:
        name: the name of the format in messages.
        pattern: takes the names of the groups to capture, and returns the pattern of a line up to
            its end. No match goes over the end of a line.
        fields: the fields by their names.
        times: the groups that hold the time, in their order.
        minute: takes the bytes of these groups, and returns the whole Unix minute; raises
            ``Malformed``.
        diagnosis: takes a line that does not match, and returns the reason for rejecting it.
        exception: like ``pattern``, for rare lines that ``pattern`` does not match, or None.
    """

    name: str
    pattern: Callable[[Collection[str]], bytes]
    fields: Mapping[str, AccessField]
    times: tuple[str, ...]
    minute: Minute
    diagnosis: Callable[[bytes], str] = diagnosis
    exception: Callable[[Collection[str]], bytes] | None = None

    def field(self, name: str) -> AccessField:
        """Return the field that is called ``name``; case does not matter.

        Raises:
            ValueError: the format has no such field; the message names all fields.
        """
        found = self.fields.get(name)
        if found is None:
            found = {known.lower(): field for known, field in self.fields.items()}.get(name.lower())
        if found is None:
            raise ValueError(
                f"{self.name} logs have no field {name!r}; they have: {', '.join(self.fields)}"
                + "; the operators of --where are = != ~ !~" * name.endswith(("<", ">"))
            )
        return found


def clock_minute(clock: Clock) -> Minute:
    """Return a function that takes the bytes of a time's groups, joins them by spaces, parses the
    text by ``clock``, and returns the whole Unix minute. It raises ``Malformed``.
    """

    def minute(found: Sequence[bytes]) -> int:
        return clock.minute(b" ".join(found).decode("utf-8", PERCENT))

    return minute


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """A value in the layout of a line.

    Attributes:
        group: the name of the group that captures the value.
        pattern: the pattern of the value; it neither backtracks nor matches a newline.
        shown: the name of the value in the reason for rejecting a line.
    """

    group: str
    pattern: bytes
    shown: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a line: a sequence of fixed texts and values.

    Attributes:
        parts: the fixed texts and the values, in their order.
        end: the pattern of a text that may follow the last part.
    """

    parts: tuple[bytes | ValuePlace, ...]
    end: bytes = b""

    def pattern(self, captured: Collection[str]) -> bytes:
        """Return the pattern of a line. Values whose groups are in ``captured`` are captured."""
        return b"".join(self._piece(part, captured) for part in self.parts) + self.end

    def diagnosis(self, line: bytes) -> str:
        """Return why a line does not match: which part is missing first, or that more follows."""
        at, before = 0, "at the beginning"
        for part in self.parts:
            if isinstance(part, ValuePlace):
                shown = part.shown
            else:
                shown = repr(part.decode("utf-8", PERCENT))
            found = re.compile(self._piece(part, ())).match(line, at)
            if found is None:
                return f"{shown} is missing {before}"
            at, before = found.end(), f"after {shown}"
        return "the line goes on after the end of the format"

    @staticmethod
    def _piece(part: bytes | ValuePlace, captured: Collection[str]) -> bytes:
        if isinstance(part, bytes):
            return re.escape(part)
        if part.group in captured:
            return b"(?P<%s>%s)" % (part.group.encode(), part.pattern)
        return b"(?:" + part.pattern + b")"


def layout(text: str, patterns: Mapping[str, bytes], end: bytes = b"") -> Layout:
    """Make the layout of a line from a text in which names in braces stand for values.

    Args:
        text: the layout, such as ``{host} [{time}]``.
        patterns: the patterns of values, by name. A value without a pattern is one word.
        end: the pattern of a text that may follow the last part.
    """
    texts_and_names = re.split(r"\{(\w+)\}", text)
    parts: list[bytes | ValuePlace] = []
    for between, name in zip_longest(texts_and_names[::2], texts_and_names[1::2]):
        parts += [between.encode()] if between else []
        if name:
            shown = f"the {name.replace('_', ' ')}"
            parts += [ValuePlace(name, patterns.get(name, WORD), shown)]
    return Layout(tuple(parts), end)


@dataclass(frozen=True, slots=True)
class Term:
    """A directive of Apache, or a variable of nginx, in ``--log-format``. It stands for a value.

    Attributes:
        name: the name of the value's field, such as ``status`` or ``header:referer``.
        shown: the directive or variable as the user wrote it.
        at: the position of its first character in the format, from 1.
        kind: the kind of the value, which decides its pattern: a name from :data:`_PATTERNS`, or
            ``user``, ``request``, ``list``, ``word`` (never with a blank), ``any``.
        pattern: the pattern of a value that is a time; b"" if ``kind`` decides the pattern.
        time: how the value is read as a time: ``auto`` or a strptime pattern; '' for other values.
    """

    name: str
    shown: str
    at: int
    kind: str = "any"
    pattern: bytes = b""
    time: str = ""


def format_of_notation(
    parts: Sequence[str | Term],
    aliases: Mapping[str, Sequence[str]],
    *,
    language: str,
    time_zone: str,
    escaped: bool = True,
) -> LineFormat:
    """Make the format of lines from the parts of a ``--log-format``.

    Args:
        parts: fixed texts and values; no two texts follow each other.
        aliases: for each field name that every format uses, the names of the values from which the
            field may be read, the best first.
        language: the name of the notation in messages: Apache or nginx.
        time_zone: the IANA name of the zone of times that have none; '' for none.
        escaped: whether the server escapes quotes and the like in values.

    Raises:
        ValueError: the format is invalid, or its times do not fit ``time_zone``; the message says
            what is wrong.
    """
    undo = text if escaped else decoded
    layout = Layout(tuple(_place(parts, number, escaped) for number in range(len(parts))))
    values = [(part, _group(at)) for at, part in enumerate(parts) if isinstance(part, Term)]
    times, minute = _time(values, time_zone, language)
    fields: dict[str, AccessField] = {}
    for value, group in values:
        fields.setdefault(value.name, _field(value, group, undo))
    return LineFormat(
        name=f"--log-format ({language})",
        pattern=layout.pattern,
        fields=fields | common_names(fields, aliases, undo),
        times=times,
        minute=minute,
        diagnosis=layout.diagnosis,
    )


def _group(number: int) -> str:
    """Return the name of the regex group that matches the format's part with this number."""
    return f"g{number}"


def _place(parts: Sequence[str | Term], number: int, escaped: bool) -> bytes | ValuePlace:
    part = parts[number]
    if isinstance(part, str):
        return part.encode()
    before = parts[number - 1] if number else ""
    after = parts[number + 1] if number + 1 < len(parts) else ""
    if part.kind == "user" and _opens_time(after, parts[number + 2 : number + 3]):
        return ValuePlace(_group(number), USER, part.shown)
    pattern = part.pattern or _by_kind(part, before, after, escaped)
    return ValuePlace(_group(number), pattern, part.shown)


def _opens_time(after: str | Term, then: Sequence[str | Term]) -> bool:
    """Return whether `` [`` and an access log's time follow a value: a user there may have spaces.

    Args:
        after: the part after the value.
        then: the part after that, if there is one.
    """
    if not then or not isinstance(then[0], Term):
        return False
    return then[0].time == "auto" and (
        (after == " [" and then[0].pattern == TIME_LOCAL)
        or (after == " " and then[0].pattern.startswith(rb"\["))
    )


def _by_kind(value: Term, before: str | Term, after: str | Term, escaped: bool) -> bytes:
    """Return the pattern of a value by its kind and by the parts before and after it.

    Args:
        value: the value.
        before: the part before it; '' at the beginning of the format.
        after: the part after it; '' at the end of the format.
        escaped: whether the server escapes quotes and the like in values.

    Raises:
        ValueError: another value follows without a text between them, so that it is ambiguous where
            this one ends (only ``query`` may follow ``path`` so).
    """
    if isinstance(after, Term):
        if value.name == "path" and after.name == "query":
            return rb"[^? \n]++"
        raise ValueError(
            f"there is no text between {value.shown} at character {value.at} and {after.shown}:"
            " the end of the first is ambiguous"
        )
    if value.kind == "client" and _GOES_ON.match(after):
        return ADDRESS
    if value.kind in _PATTERNS:
        return _PATTERNS[value.kind]
    if isinstance(before, Term) and value.name == "query":
        return rb"(?:\?[^ \"\n]*+)?"
    if escaped and isinstance(before, str) and before.endswith('"') and after.startswith('"'):
        return ESCAPED
    if not after:
        return rb"[^ \r\n]*+" if value.kind == "word" else rb"[^\r\n]*+"
    if after[0] == " " and value.kind in ("request", "list"):
        return _REQUEST if value.kind == "request" else _LIST
    if len(after) == 1 or after[0] == " ":
        return rb"[^" + re.escape(after[0].encode()) + rb"\n]*+"
    return rb"(?>(?:(?!" + re.escape(after.encode()) + rb")[^\n])*)"


def _field(value: Term, group: str, undo: Undo) -> AccessField:
    if value.kind == "client":
        return AccessField((group,), client_text)
    if value.time:
        return AccessField((group,), lambda raw: text(raw.strip(b"[]")))
    if value.name == "query":
        return AccessField((group,), lambda raw: undo(raw.removeprefix(b"?")))
    return plain(group, undo)


def common_names(
    fields: Mapping[str, AccessField],
    aliases: Mapping[str, Sequence[str]],
    undo: Undo,
    path: Callable[[str], str] = check_target,
) -> dict[str, AccessField]:
    """Return the fields of a format by the names that every format uses. Fields that the format
    lacks are left out.

    Parts of the request (``path`` and so on) are read from the request as the client sent it. If
    the format lacks that, they are read from the path as the server changed it.

    Args:
        fields: the fields by the format's own names.
        aliases: for each common name, the own names from which it may be read, the best first.
        undo: turns the bytes in the log into the text that the client sent.
        path: returns the path from the text of the field whose common name is ``path``.
    """
    found = {
        name: fields[alias]
        for name, names in aliases.items()
        for alias in reversed(names)
        if alias in fields
    }
    if "host" in found:
        found["host"] = AccessField(found["host"].groups, client_text)
    from_request = of_request(found["request"].groups[0], undo) if "request" in found else {}
    asked_for = {name: from_request[name] for name in TARGET_PARTS} if from_request else {}
    if "target" in found:
        asked_for = _of_target(found["target"].groups, undo)
    elif "path" in found and not from_request:
        stem, query = found["path"].groups, found["query"].groups if "query" in found else ()
        asked_for = _of_target(stem + query, partial(_joined, undo))
        asked_for["path"] = AccessField(stem, lambda raw: path(undo(raw)))
        asked_for["query"] = found.get("query", asked_for["query"])
    return from_request | found | asked_for


def _of_target(groups: tuple[str, ...], undo: Callable[..., str]) -> dict[str, AccessField]:
    def part(cut: Callable[[str], str]) -> AccessField:
        return AccessField(groups, lambda *raw: cut(undo(*raw)))

    return {name: part(cut) for name, cut in TARGET_PARTS.items()}


def _joined(undo: Undo, path: bytes, query: bytes = b"") -> str:
    """Return the request target that consists of a path and a query. The query may begin with
    ``?``; it is left out if it is empty or ``-``. ``undo`` decodes the escapes of the log. Raises
    ``Malformed`` if the path is empty or ``-``."""
    target, rest = undo(path), undo(query).removeprefix("?")
    return check_target(target) if rest in ("", "-") else f"{check_target(target)}?{rest}"


def _time(
    values: Sequence[tuple[Term, str]], time_zone: str, language: str
) -> tuple[tuple[str, ...], Minute]:
    """Return the groups that hold the time, and the function that reads the Unix minute from them.
    ``values`` are all values of the format, with their groups. The time is the first value that is
    a time by itself (``auto``); if there is none, all times in their order, joined.

    Raises:
        ValueError: the format has no time of day, ``time_zone`` is given beside an ``auto`` time,
            or :class:`~countersink.logs.times.Clock` refuses the joined pattern or the zone.
    """
    times = [(value, group) for value, group in values if value.time]
    for value, group in times:
        if value.time == "auto":
            if time_zone:
                raise ValueError(f"{value.shown} is a time with its zone: leave --time-zone out")
            return (group,), clock_minute(Clock(advises=False))
    if not times:
        raise ValueError(
            f"--log-format has no time ({'%t' if language == 'Apache' else '$time_local'})"
        )
    pattern = " ".join(value.time for value, _ in times)
    if not has_hours(pattern):
        raise ValueError(f"{times[0][0].shown} has no hours: --log-format has no time of day")
    return tuple(group for _, group in times), clock_minute(Clock(pattern, time_zone))
