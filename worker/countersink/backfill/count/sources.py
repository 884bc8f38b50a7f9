"""``Sources.identify``: identifies the source of a file in the table ``backfill_source``: an
unchanged or grown source, an older copy of one, or a new source; refuses files that were counted
with other options, or are shorter than their source.

The *head* of a source, its first bytes, finds the candidates. A content is the source of which it
holds every byte of every chunk. So a renamed or compressed copy is recognized, and a file that has
grown; a content that begins alike and then differs is another source.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from countersink.backfill.content import Content
from countersink.backfill.count import chunks
from countersink.backfill.count.chunks import Chunk, scope_of
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Recipe
from countersink.backfill.spans import digest
from countersink.database.session import Session, rerun

LONGEST_PATH: Final = 4096
KNOWN_BYTES: Final = 4096
"""Bytes of a source's head, by which the candidates for a content are found."""
_INDEXED: Final = 16
"""Bytes of a head that are in the index."""


@dataclass(frozen=True, slots=True)
class Source:
    """A row of ``backfill_source``, stored or yet to be inserted.

    Attributes:
        id: its number; 0: not inserted yet.
        counter: the counter of its lines.
        truth_of: the run that reconciled with it; 0: it was added.
        name: distinguishes sources of the same content.
        head: its first bytes, 4,096 at most; fewer if the file was shorter.
        recipe: for its lines.
        path: of the file last read.
        read_to: number of uncompressed bytes in chunks.
        lines_to: number of lines in chunks.
        count_repeats: its lines count although another source has them, too.
    """

    id: int
    counter: str
    truth_of: int
    name: str
    head: bytes
    recipe: Recipe
    path: str
    read_to: int = 0
    lines_to: int = 0
    count_repeats: bool = False

    @property
    def scope(self) -> bytes:
        """The scope of its samples."""
        return scope_of(self.counter, self.truth_of, self.name)

    def after(self, chunk: Chunk, head: bytes) -> "Source":
        """The source once ``chunk``, which begins at ``read_to``, is counted.

        Args:
            head: of the content with the chunk and all chunks before it.
        """
        return replace(
            self,
            read_to=chunk.end_at,
            lines_to=chunk.next_line - 1,
            # Before the first chunk, the head may be of another content that begins alike.
            head=head if not self.read_to or len(head) > len(self.head) else self.head,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing a content with the chunks of a source.

    Attributes:
        source: as it was read.
        held_to: end of the chunks that the content holds; below ``source.read_to``: it lacks some.
        last_digest: digest of the last held chunk; empty: there is none.
        verdict: ``same``: it holds all chunks; ``older``: it ends with a chunk, or within the
            source's head; ``short``: it ends within another chunk, so it may be older or differ;
            ``other``: it differs.
    """

    source: Source
    held_to: int
    last_digest: bytes
    verdict: str


@dataclass(frozen=True, slots=True)
class IdentifiedSource:
    """The source of a content, and its chunks that the content holds.

    Attributes:
        source: its number.
        held_to: end of the held chunks.
        last_digest: digest of the last held chunk; empty: there is none.
        ended: the content is an older copy: it ends at ``held_to``, and the source has more chunks.
    """

    source: int
    held_to: int
    last_digest: bytes = b""
    ended: bool = False


class Sources:
    """Sources and their chunks in the tables; the subclass of dry runs adds its own in memory."""

    def candidates(self, session: Session, wanted: Source) -> list[Source]:
        """The sources that ``wanted`` may be: same counter, run of a reconcile and name, and one
        head begins with the other. Those with the most bytes read come first.
        """
        head = wanted.head
        begins = head[:_INDEXED]
        shorter = [begins[:size] for size in range(len(begins))]
        marks = ", ".join(["%s"] * (len(shorter) + 1))
        found = session.query(
            f"{_SELECT} WHERE counter = %s AND truth_of = %s"
            # First by the index, then by the whole head: files of one format have equal headers.
            f" AND (head IN ({marks}) OR head BETWEEN %s AND %s)"
            " AND LEFT(head, %s) = LEFT(%s, LENGTH(head)) ORDER BY read_to DESC, id",
            (
                *(wanted.counter, wanted.truth_of, *shorter, begins, begins),
                *(begins.ljust(KNOWN_BYTES, b"\xff"), len(head), head),
            ),
        )
        # Not in SQL, which ignores blanks at the end of a name.
        return [_source(row) for row in found if row[3] == wanted.name]

    def chunks(self, session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
        """The chunks of a source that begin at ``start_at`` or later, in order."""
        return chunks.read(session, source, start_at)

    def last(self, session: Session, source: int) -> Chunk | None:
        """The last chunk of a source; None: it has none."""
        return chunks.read_last(session, source)

    def read(self, session: Session, source: int, *, lock: bool = False) -> Source | None:
        """A source by its number: see :func:`read`."""
        return read(session, source, lock=lock)

    def lock_counter(self, session: Session, counter: str) -> None:
        """Keep others from inserting sources of a counter until the transaction ends."""
        lock_counter(session, counter)

    def insert(self, session: Session, wanted: Source) -> int:
        """Insert a source without chunks; returns its number. The caller holds the counter."""
        session.execute(
            "INSERT INTO backfill_source"
            " (counter, truth_of, name, head, options, path, count_repeats)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (
                *(wanted.counter, wanted.truth_of, wanted.name, wanted.head),
                *(wanted.recipe.to_json(), wanted.path[:LONGEST_PATH], wanted.count_repeats),
            ),
        )
        ((number,),) = session.query("SELECT LAST_INSERT_ID()")
        return int(number)

    def save(self, session: Session, source: Source) -> None:
        """Update a source's row."""
        save(session, source)

    def delete_chunks(self, session: Session, source: int) -> None:
        """Delete the chunks and samples of a source without counted lines."""
        chunks.delete(session, source)

    def is_counted(self, session: Session, source: int) -> bool:
        """Whether any line of a source was counted."""
        ask = "SELECT 1 FROM backfill_chunk WHERE source = %s AND counted <> 0 LIMIT 1"
        return bool(session.query(ask, (source,)))

    def identify(
        self,
        session: Session,
        content: Content,
        wanted: Source,
        before_chunk: Callable[[], object],
    ) -> IdentifiedSource:
        """Identify the source of a content, or insert a new one; committed on return. May be called
        again.

        Args:
            wanted: the source to insert if there is none.
            before_chunk: called before each chunk that is compared.

        Raises:
            BackfillError: the content must not be counted; the message says why and what to do.
            Unreadable: bytes of known chunks cannot be read.
            StoreError: as any transaction.
        """
        while True:
            compared = [
                self.compare(session, content, source, wanted.head, (0, b""), before_chunk)
                for source in self.candidates(session, wanted)
            ]
            identified = rerun(partial(self._store, session, wanted, compared))
            if identified is not None:
                return identified

    def _store(
        self, session: Session, wanted: Source, compared: list[Comparison]
    ) -> IdentifiedSource | None:
        """Update the source of the content, or insert a new one; None: another process has changed
        the sources since they were compared, nothing was done.
        """
        held = min((one for one in compared if one.verdict != "other"), key=_rank, default=None)
        if held is not None and held.verdict == "short":
            raise BackfillError(_too_short(held.source.path))
        with session.transaction():
            if held is None:
                if not wanted.truth_of:  # sources of a reconcile are read by its run alone
                    self.lock_counter(session, wanted.counter)
                known = {one.source.id for one in compared}
                if not {one.id for one in self.candidates(session, wanted)} <= known:
                    return None
                return IdentifiedSource(source=self.insert(session, wanted), held_to=0)
            source = self.read(session, held.source.id, lock=True)
            if source is None or not heads_match(source.head, wanted.head):
                return None
            ended = held.verdict == "older"
            # The recipe is stored before the first chunk: from now on no other recipe is used.
            new = replace(
                source,
                recipe=wanted.recipe,
                path=source.path if ended else wanted.path,
                count_repeats=source.count_repeats or wanted.count_repeats,
            )
            if self._restarts(session, source, wanted.recipe):
                self.delete_chunks(session, source.id)
                self.save(session, replace(new, read_to=0, lines_to=0))
                return IdentifiedSource(source=source.id, held_to=0)
            if new != source:
                self.save(session, new)
            return IdentifiedSource(source.id, held.held_to, held.last_digest, ended)

    def _restarts(self, session: Session, source: Source, recipe: Recipe) -> bool:
        """Whether a source must be read from its beginning, since the recipe is another one and no
        line was counted.

        Raises:
            BackfillError: the recipe is another one, and lines were counted.
        """
        if source.recipe == recipe:
            return False
        if not self.is_counted(session, source.id):
            return True
        if recipe.continues(source.recipe):
            return False
        runs = session.query(
            "SELECT DISTINCT run FROM backfill_chunk WHERE source = %s ORDER BY run", (source.id,)
        )
        undo = f"`countersink backfills undo {' '.join(str(run) for (run,) in runs)}` first"
        raise BackfillError(
            f"it was counted as {source.counter} with other options (as {source.path}): then"
            f" {source.recipe.described()}, now {recipe.described()}. Counting it twice would"
            f" double it: {undo if runs else 'leave it out'}, or count it under another counter"
        )

    def compare(
        self,
        session: Session,
        content: Content,
        source: Source,
        head: bytes,
        held: tuple[int, bytes],
        before_chunk: Callable[[], object],
    ) -> Comparison:
        """Compare a content with the chunks of ``source``.

        Args:
            head: of the content.
            held: end and digest of the last chunk that the content is known to hold.
            before_chunk: called before each chunk.

        Raises:
            Unreadable: bytes of known chunks cannot be read.
            StoreError: as any query.
        """
        to, last = held
        for chunk in self.chunks(session, source.id, to):
            before_chunk()
            found = digest(content, chunk.start_at, chunk.end_at)
            if found is None:
                # The content was read to its end.
                size = content.offset
                if size == chunk.start_at or (size == len(head) and source.head.startswith(head)):
                    return Comparison(source, to, last, "older")
                return Comparison(source, to, last, "short")
            if chunk.start_at != to or found != chunk.digest:
                return Comparison(source, to, last, "other")
            to, last = chunk.end_at, chunk.digest
        return Comparison(source, to, last, "same")


def _rank(one: Comparison) -> int:
    """Rank of a candidate; the lowest is the content's source. At most one candidate with chunks
    can be.
    """
    return 3 if not one.source.read_to else ("same", "older", "short").index(one.verdict)


def _too_short(path: str) -> str:
    """The error for a content that is shorter than its source and does not end with a chunk."""
    return (
        f"it is shorter than {path}, which begins with the same bytes: it may be an older copy of"
        " it. Give the newer copy; or, if this is another source, name it by --source-name"
    )


def heads_match(one: bytes, other: bytes) -> bool:
    """Whether two heads may be of one source: one begins with the other."""
    return one.startswith(other) or other.startswith(one)


_SELECT: Final = (
    "SELECT id, counter, truth_of, name, head, options, path, read_to, lines_to, count_repeats"
    " FROM backfill_source"
)


def read(session: Session, source: int, *, lock: bool = False) -> Source | None:
    """A source by its number; None: none. ``lock``: exclusive until the transaction ends."""
    found = session.query(f"{_SELECT} WHERE id = %s{' FOR UPDATE' if lock else ''}", (source,))
    return _source(found[0]) if found else None


def lock_counter(session: Session, counter: str) -> None:
    """Lock the row of a counter exclusively until the transaction ends, which must not take the
    share lock of control afterwards: a holder of its exclusive lock may wait for the row.
    """
    # ON DUPLICATE KEY takes the exclusive lock of an existing row; INSERT IGNORE a shared one.
    session.execute(
        "INSERT INTO counter (name) VALUES (%s) ON DUPLICATE KEY UPDATE name = name", (counter,)
    )


def save(session: Session, source: Source) -> None:
    """Update a source's row."""
    session.execute(
        "UPDATE backfill_source SET head = %s, options = %s, path = %s, read_to = %s,"
        " lines_to = %s, count_repeats = %s WHERE id = %s",
        (
            *(source.head, source.recipe.to_json(), source.path[:LONGEST_PATH], source.read_to),
            *(source.lines_to, source.count_repeats, source.id),
        ),
    )


def delete_last_chunk(session: Session, source: Source, start_at: int) -> None:
    """Delete the last chunk of a source, its journal and its samples, in the caller's transaction,
    which holds the source. Later runs read on from the chunk's beginning, whatever bytes are there
    by then. A source without other chunks is deleted.
    """
    for table in "backfill_chunk", "backfill_journal", "backfill_sample":
        session.execute(
            f"DELETE FROM {table} WHERE source = %s AND start_at = %s", (source.id, start_at)
        )
    last = chunks.read_last(session, source.id)
    if last is None:
        session.execute("DELETE FROM backfill_source WHERE id = %s", (source.id,))
    else:
        save(session, replace(source.after(last, b""), head=source.head[: last.end_at]))


def delete_truth(session: Session, run: int) -> None:
    """Delete the sources of a reconcile's run, with their chunks and samples."""
    sources = "(SELECT id FROM backfill_source WHERE truth_of = %s)"
    with session.transaction():
        for table in "backfill_chunk", "backfill_sample":
            session.execute(f"DELETE FROM {table} WHERE source IN {sources}", (run,))
        session.execute("DELETE FROM backfill_source WHERE truth_of = %s", (run,))


def _source(row: tuple[Any, ...]) -> Source:
    return Source(*(*row[:5], Recipe.from_json(row[5]), *row[6:9], bool(row[9])))
