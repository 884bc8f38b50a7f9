"""Entries as they come out of a stream, within a bound of bytes whatever lies there.

Redis bounds a reply by the number of entries alone, and an entry may have 512 MB. So scripts hand
them out one after another until there are bytes enough, and cut what is larger than any of ours.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import redis

from countersink.stream.connection import mapped
from countersink.stream.entry import derived_id

_LARGEST: Final = 4 * 1024 * 1024 + 65_536
_MOST_FIELDS: Final = 64
_READ: Final = {b"v": 64, b"id": 64, b"at": 64, b"rows": 4 * 1024 * 1024 + 1}
"""As in ``scripts/entry.lua``."""
PAGE: Final = 100
"""Entries handed out at once."""
PAGE_BYTES: Final = 1024 * 1024
"""Bytes after which no more are handed out at once: Redis works a few ms on them. The last entry
may go beyond, by 4 MiB."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry as it lies in a stream: field bytes in their order, repeated ones included.

    Attributes:
        stream: its key.
        stream_id: its place there.
        fields: (name, value); of an entry larger than any of ours only those that are read, cut off
            where they are too long.
        derived: the id by the hash of the whole entry, where it was cut.
    """

    stream: str
    stream_id: str
    fields: tuple[tuple[bytes, bytes], ...]
    derived: str | None = None


@cache
def script(name: str) -> str:
    """The text of ``scripts/NAME.lua``, with the functions of ``entry.lua`` in front."""
    # Not by importlib.resources: applications import this module, and would import that as well.
    folder = Path(__file__).parent / "scripts"
    return "".join((folder / f"{part}.lua").read_text("utf-8") for part in ("entry", name))


def deliveries(stream: str, entries: Iterable[Any]) -> Iterator[Delivery]:
    """What the scripts handed out."""
    for stream_id, flat, derived in entries:
        fields = tuple(zip(flat[::2], flat[1::2], strict=True))
        whole = None if derived is None else derived.decode()
        yield Delivery(stream, stream_id.decode(), fields, whole)


def size_of(found: Iterable[Delivery]) -> int:
    """Bytes of their values."""
    return sum(len(value) for delivery in found for _, value in delivery.fields)


def fit(stream: str, stream_id: str, flat: Sequence[bytes]) -> Delivery:
    """What ``entry.lua`` makes of an entry, for one that came without a script."""
    fields = tuple(zip(flat[::2], flat[1::2], strict=True))
    if sum(map(len, flat)) <= _LARGEST and len(flat) <= 2 * _MOST_FIELDS:
        return Delivery(stream, stream_id, fields)
    cut: dict[bytes, bytes] = {}
    for name, value in fields:
        if name in _READ:
            cut.setdefault(name, value[: _READ[name]])
    return Delivery(stream, stream_id, tuple(cut.items()), derived_id(stream, stream_id, fields))


def pages(
    client: redis.Redis, stream: str, *, start: str = "-", end: str = "+", size: int = PAGE
) -> Iterator[list[Delivery]]:
    """The entries of ``stream`` from the stream id ``start`` to ``end``, in pages of at most
    ``size``, and of :data:`PAGE_BYTES` or so.

    Raises:
        StreamError: Redis did not answer.
    """
    page_script = client.register_script(script("page"))
    while True:
        with mapped():
            found, done = page_script(keys=[stream], args=[start, end, size, PAGE_BYTES])
        page = list(deliveries(stream, found))
        if page:
            yield page
        if done:
            return
        start = f"({page[-1].stream_id}"


def ends(client: redis.Redis, stream: str) -> tuple[str, str] | None:
    """The stream ids of the first and last entry; None for an empty stream.

    Raises:
        StreamError: Redis did not answer.
    """
    with mapped():
        reply = client.register_script(script("ends"))(keys=[stream])
    return (reply[0].decode(), reply[1].decode()) if reply else None
