"""Access logs in the common and combined formats (Apache, nginx and what writes like them).

A line's key is one of

``path``
    the request target without its query string; of an absolute target (a proxy's
    ``http://host/path``) the path alone;
``target``
    the request target as it was sent;
``host``
    the client's address or name;
``status``
    the three digits of the response's status.

What a line looks like, and how its bytes become text, is told in
:mod:`countersink.producers.access_line`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from countersink.producers.access_line import (
    Malformed,
    diagnosis,
    line_pattern,
    minute_of,
    path_of,
    split_request,
    text,
)
from countersink.stream.limits import check_key

__all__ = ["KEY_KINDS", "Counts", "KeyKind", "Malformed", "Parser", "Rejected"]

KeyKind = Literal["path", "target", "host", "status"]
KEY_KINDS: Final[tuple[KeyKind, ...]] = get_args(KeyKind)

Counts = dict[tuple[str, int], int]
"""(key, whole Unix minutes) to hits."""

_CACHED: Final = 50_000
"""Requests and minutes remembered as parsed; beyond that the memory is emptied."""
_LONGEST_CACHED: Final = 1_000
"""Bytes of a request that is remembered: what clients send does not decide how much memory is
used."""

_LINE: Final = re.compile(
    line_pattern(("host", "minute", "zone", "request", "status")) + rb"\s*",
)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that was not counted.

    Attributes:
        line: its number in its file, from 1.
        reason: why, as a phrase.
    """

    line: int
    reason: str


class Parser:
    """Reads lines for one kind of key. Remembers requests and minutes; not thread-safe."""

    def __init__(self, kind: KeyKind) -> None:
        self.kind = kind
        self._group = _LINE.groupindex["request" if kind in ("path", "target") else kind]
        self._read_key: Callable[[bytes], str] = {
            "path": _path,
            "target": _target,
            "host": text,
            "status": text,
        }[kind]
        self._keys: dict[bytes, str] = {}
        self._minutes: dict[bytes, int] = {}

    def parse(self, line: bytes) -> tuple[str, int]:
        """The key and the whole Unix minute of ``line`` (with or without its newline).

        Raises:
            Malformed: the line has not the format, or gives no valid key.
        """
        match = _LINE.fullmatch(line)
        if match is None:
            raise Malformed(diagnosis(line))
        return self._key(match[self._group]), self._minute(match[2] + match[3])

    def count(self, lines: Iterable[bytes], first: int, counts: Counts) -> list[Rejected]:
        """Add each line's hit to ``counts`` and return the lines that gave none.

        Blank lines are neither. Runs of NUL before a line, as a truncated log has them, are
        ignored.

        Args:
            lines: without their newlines.
            first: the number of the first of them.
            counts: added to.
        """
        rejected: list[Rejected] = []
        fullmatch, group = _LINE.fullmatch, self._group
        keys, minutes = self._keys, self._minutes
        for number, line in enumerate(lines, first):
            match = fullmatch(line)
            try:
                if match is None:
                    if stripped := line.strip(b"\0 \t\r"):
                        cell = self.parse(stripped)
                    else:
                        continue
                else:
                    raw, when = match[group], match[2] + match[3]
                    cell = (
                        keys[raw] if raw in keys else self._key(raw),
                        minutes[when] if when in minutes else self._minute(when),
                    )
            except Malformed as error:
                rejected.append(Rejected(number, str(error)))
            else:
                counts[cell] = counts.get(cell, 0) + 1
        return rejected

    def _key(self, raw: bytes) -> str:
        key = self._keys.get(raw)
        if key is None:
            try:
                key = check_key(self._read_key(raw))
            except Malformed:
                raise
            except ValueError as error:
                raise Malformed(str(error)) from None
            if len(raw) <= _LONGEST_CACHED:
                if len(self._keys) >= _CACHED:
                    self._keys.clear()
                self._keys[raw] = key
        return key

    def _minute(self, raw: bytes) -> int:
        minute = self._minutes.get(raw)
        if minute is None:
            minute = minute_of(raw)
            if len(self._minutes) >= _CACHED:
                self._minutes.clear()
            self._minutes[raw] = minute
        return minute


def _path(request: bytes) -> str:
    return text(path_of(split_request(request)[1]))


def _target(request: bytes) -> str:
    return text(split_request(request)[1])
