"""Which source a content is: told by what it holds, not by its name.

A source's *head*, its first lines, finds the candidates; a content is the one whose chunks it
holds, each byte of them. So a copy is known, compressed or renamed, and a file that has grown
since; and one that begins alike and then differs is another source.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from countersink.backfill import chunks
from countersink.backfill.contents import Content
from countersink.backfill.sources import Source
from countersink.backfill.spans import digest
from countersink.store.connection import Session

HEAD_LINES: Final = 16
HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """How a content begins.

    Attributes:
        data: its first bytes, 64 KiB at most.
        heads: (bytes, SHA-256) of each head it may have been given: of none of its lines, when it
            had no more, of one, and so on; the last is the one it would be given now.
    """

    data: bytes
    heads: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Held:
    """How much of a source a content holds.

    Attributes:
        source: as it was looked at.
        to: where the chunks end that it holds; below ``source.read_to`` if it does not hold all.
        verdict: ``same``; ``older``: it ends with a chunk; ``short``: it ends within a chunk, so
            that one cannot tell; ``other``: it differs.
    """

    source: Source
    to: int
    verdict: str


def head_of(content: Content) -> Head:
    """Read how a content begins; it stands somewhere after that then.

    Raises:
        Unreadable: it cannot be read, and not for being damaged further on.
    """
    content.seek(0)
    data = b""
    while len(data) < HEAD_BYTES and (more := content.read(HEAD_BYTES - len(data))):
        data += more
    ends = [0]
    while len(ends) <= HEAD_LINES and (newline := data.find(b"\n", ends[-1])) >= 0:
        ends.append(newline + 1)
    if len(ends) == 1 and len(data) == HEAD_BYTES:
        ends.append(HEAD_BYTES)  # the first line is longer than that
    return Head(data, tuple((end, hashlib.sha256(data[:end]).digest()) for end in ends))


def compare(
    session: Session,
    content: Content,
    source: Source,
    start_at: int = 0,
    *,
    looking: Callable[[], object] = lambda: None,
) -> Held:
    """How much a content holds of the chunks of ``source`` from ``start_at`` on.

    Args:
        start_at: where a chunk begins, or ``source.read_to``; what is before is known to be held.
        looking: called before each chunk.

    Raises:
        Unreadable: the content cannot be read so far.
        StoreError: as any query.
    """
    to = start_at
    for chunk in chunks.of(session, source.id, start_at):
        looking()
        found = digest(content, chunk.start_at, chunk.end_at)
        if found is None:
            # It has been read to its end.
            ended = content.offset == chunk.start_at
            return Held(source, to, "older" if ended else "short")
        if found != chunk.digest:
            return Held(source, to, "other")
        to = chunk.end_at
    return Held(source, to, "same")
