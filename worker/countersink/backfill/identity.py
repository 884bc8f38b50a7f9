"""Which source a content is: told by what it holds, not by its name.

A source's *head*, its first bytes, finds the candidates; a content is the one whose chunks it
holds, each byte of them. So a copy is known, compressed or renamed, and a file that has grown
since; and one that begins alike and then differs is another source.
"""

from collections.abc import Callable
from dataclasses import dataclass

from countersink.backfill import chunks
from countersink.backfill.contents import Content
from countersink.backfill.sources import Source
from countersink.backfill.spans import digest
from countersink.store.connection import Session


@dataclass(frozen=True, slots=True)
class Held:
    """How much of a source a content holds.

    Attributes:
        source: as it was looked at.
        to: where the chunks end that it holds; below ``source.read_to`` if it does not hold all.
        verdict: ``same``; ``older``: it ends with a chunk, or all of it stands in the source's
            head, and is counted; ``short``: it ends within a chunk, so that one cannot tell;
            ``other``: it differs.
    """

    source: Source
    to: int
    verdict: str


def compare(
    session: Session,
    content: Content,
    source: Source,
    head: bytes,
    start_at: int = 0,
    *,
    looking: Callable[[], object] = lambda: None,
) -> Held:
    """How much a content holds of the chunks of ``source`` from ``start_at`` on.

    Args:
        head: of the content.
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
            size = content.offset
            told = size == len(head) and source.head.startswith(head)
            if size == chunk.start_at or (told and chunks.all_done(session, source.id, size)):
                return Held(source, to, "older")
            return Held(source, to, "short")
        if found != chunk.digest:
            return Held(source, to, "other")
        to = chunk.end_at
    return Held(source, to, "same")
