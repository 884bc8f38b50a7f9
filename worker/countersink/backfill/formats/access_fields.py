"""The fields of an access log's line, for key templates and conditions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from countersink.producers.access_line import path_of, split_request, text


@dataclass(frozen=True, slots=True)
class AccessField:
    """One field.

    Attributes:
        group: which group of the line's pattern holds it.
        read: makes its text of the group's bytes; raises ``Malformed``.
    """

    group: str
    read: Callable[[bytes], str]


def _method(request: bytes) -> str:
    return text(split_request(request)[0])


def _target(request: bytes) -> str:
    return text(split_request(request)[1])


def _path(request: bytes) -> str:
    return text(path_of(split_request(request)[1]))


def _query(request: bytes) -> str:
    return text(split_request(request)[1].partition(b"?")[2])


def _protocol(request: bytes) -> str:
    return text(split_request(request)[2])


_COMMON: Final = {
    "host": AccessField("host", text),
    "ident": AccessField("ident", text),
    "user": AccessField("user", text),
    "time": AccessField("time", text),
    "request": AccessField("request", text),
    "method": AccessField("request", _method),
    "target": AccessField("request", _target),
    "path": AccessField("request", _path),
    "query": AccessField("request", _query),
    "protocol": AccessField("request", _protocol),
    "status": AccessField("status", text),
    "size": AccessField("size", text),
}
FIELDS: Final = {
    "common": _COMMON,
    "combined": _COMMON
    | {"referer": AccessField("referer", text), "agent": AccessField("agent", text)},
}
"""Input format to name to field. Referer and agent are empty where the line ends before them."""
