"""``Sources.identify`` finds the row of ``backfill_source`` that a file belongs to. The file is a
known source (unchanged or grown), an older copy of a known source, or a new source. Files that were
counted with other options, or that end within a chunk of a source, are refused.

Candidates are the sources whose *head* (first bytes) matches. A file belongs to the source whose
chunks it contains, byte for byte. So a file is recognized after it was renamed, compressed, copied
or appended to. A file that begins like a source and then differs is another source.
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
from countersink.counting.apply.guards import read_control
from countersink.counting.counters.all_counters import insert_rows
from countersink.database.session import Session, rerun

LONGEST_PATH: Final = 4096
KNOWN_BYTES: Final = 4096
"""Maximum length in bytes of a stored head."""
_INDEXED: Final = 16
"""Number of bytes of a head that are in the index."""


@dataclass(frozen=True, slots=True)
class Source:
    """A row of ``backfill_source``, stored or yet to be inserted.

    Attributes:
        id: number of the source; 0 if it is not inserted yet.
        counter: name of the counter to which its lines belong.
        truth_of: number of the reconcile that read it; 0 if its lines are added to the totals.
        name: ``--source-name``, which distinguishes sources with the same content; '' for none.
        head: its first bytes, 4,096 at most; fewer if the file was shorter.
        recipe: the options by which its lines are read.
        path: path of the file that was last read as this source, older copies aside.
        read_to: number of uncompressed bytes in its chunks.
        lines_to: number of lines in its chunks.
        count_repeats: True if its lines count although another source has them, too.
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
        """The key with which its lines are hashed to samples: see :func:`scope_of`."""
        return scope_of(self.counter, self.truth_of, self.name)

    def after(self, chunk: Chunk, head: bytes) -> "Source":
        """Return the source's row as it is once ``chunk`` is its last chunk.

        Args:
            chunk: the chunk.
            head: head of the content that has the chunk and all chunks before it. It replaces
                :attr:`head` if it is longer, or if the source has no chunks yet.
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
    """Result of comparing the content of a file with the chunks of a source.

    Attributes:
        source: the source as it was read before the comparison.
        held_to: end (offset) of the last chunk that the content contains; 0 if it contains none. It
            is less than ``source.read_to`` if the content lacks chunks.
        last_digest: digest of this chunk; empty if there is none.
        verdict: ``same`` if the content contains all chunks; ``older`` if it ends earlier, where a
            chunk begins, or if the source's head begins with all of it; ``short`` if it ends
            elsewhere within a chunk: it may be an older copy or another source; ``other`` if it
            differs.
    """

    source: Source
    held_to: int
    last_digest: bytes
    verdict: str


@dataclass(frozen=True, slots=True)
class IdentifiedSource:
    """The source that the content of a file belongs to, and the end of the last chunk that the
    content contains.

    Attributes:
        source: number of the source.
        held_to: offset at which this chunk ends; 0 if there is none.
        last_digest: digest of this chunk; empty if there is none.
        ended: True if the content is an older copy, which has no lines to count: it ends before the
            chunks of the source do.
    """

    source: int
    held_to: int
    last_digest: bytes = b""
    ended: bool = False


class Sources:
    """Access to sources and their chunks in the tables. A dry run uses a subclass, which adds its
    own sources and chunks in memory."""

    def candidates(self, session: Session, wanted: Source) -> list[Source]:
        """Return the sources that may be the same as ``wanted``, with the greatest ``read_to``
        first. They have the same counter, ``truth_of`` and name, and their head matches: one of the
        two heads begins with the other."""
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
        """Iterate over the chunks of a source that begin at ``start_at`` or later, in order."""
        return chunks.read(session, source, start_at)

    def last(self, session: Session, source: int) -> Chunk | None:
        """Return the last chunk of a source, or None if it has none."""
        return chunks.read_last(session, source)

    def read(self, session: Session, source: int, *, lock: bool = False) -> Source | None:
        """Return the source with this number, or None. ``lock`` locks its row: see :func:`read`."""
        return read(session, source, lock=lock)

    def lock_counter(self, session: Session, counter: str) -> None:
        """Keep other processes from inserting sources of a counter until the transaction ends."""
        lock_counter(session, counter)

    def insert(self, session: Session, wanted: Source) -> int:
        """Insert a source without chunks, and return its number. The caller must have locked the
        counter; only for a source of a reconcile no lock is needed."""
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
        """Write ``source`` to its row: see :func:`save`."""
        save(session, source)

    def delete_chunks(self, session: Session, source: int) -> None:
        """Delete the chunks and samples of a source; totals are not changed. The caller must have
        checked that no line of the source was counted."""
        chunks.delete(session, source)

    def is_counted(self, session: Session, source: int) -> bool:
        """Return whether any line of a source was counted, not only left out or rejected."""
        ask = "SELECT 1 FROM backfill_chunk WHERE source = %s AND counted <> 0 LIMIT 1"
        return bool(session.query(ask, (source,)))

    def identify(
        self,
        session: Session,
        content: Content,
        wanted: Source,
        before_chunk: Callable[[], object],
    ) -> IdentifiedSource:
        """Find the known source to which a file's content belongs, or insert a new source. Store
        the recipe of ``wanted`` in its row, commit, and return it. Call it again after StoreError.

        Args:
            session: session outside a transaction.
            content: the bytes of the file.
            wanted: the source to insert if the content belongs to no known source.
            before_chunk: called before each chunk that is compared; an error of it is passed on.

        Raises:
            BackfillError: the content must not be counted; the message says why and what to do.
            Unreadable: bytes of known chunks cannot be read.
            StoreError: MySQL failed.
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
        """Store recipe and path of the content's source, or insert a new one. ``compared`` has the
        comparisons with all candidates. Returns None if nothing was done, because another process
        has inserted, deleted or changed a source since. Raises BackfillError if the content must
        not be counted."""
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
        """Return whether a source must be read from its beginning again: its recipe is not
        ``recipe``, and none of its lines was counted. If the recipe is the same, or if lines were
        counted and ``recipe`` differs only by a later first day, return False.

        Raises:
            BackfillError: lines were counted, and the recipes differ in another way."""
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
        """Compare the content of a file with the chunks of ``source``.

        Args:
            session: session outside a transaction.
            content: the bytes of the file.
            source: the source.
            head: head of the content, 4,096 bytes at most.
            held: end and digest of the last chunk that is known to be the same in the content. The
                comparison begins after it. (0, b'') to compare all chunks.
            before_chunk: called before each chunk, to report progress or to raise an error.

        Raises:
            Unreadable: bytes of the content cannot be read.
            StoreError: MySQL failed.
        """
        to, last = held
        for chunk in self.chunks(session, source.id, to):
            before_chunk()
            found = chunks.digest(content, chunk.start_at, chunk.end_at)
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
    """Return the rank of a candidate whose verdict is not ``other``: 3 without chunks, else 0 for
    ``same``, 1 for ``older``, 2 for ``short``. The candidate with the lowest rank is chosen."""
    return 3 if not one.source.read_to else ("same", "older", "short").index(one.verdict)


def _too_short(path: str) -> str:
    """Return the error for a content that ends within a chunk of the source with this ``path``."""
    return (
        f"it is shorter than {path}, which begins with the same bytes: it may be an older copy of"
        " it. Give the newer copy; or, if this is another source, name it by --source-name"
    )


def heads_match(one: bytes, other: bytes) -> bool:
    """Return whether two heads match (one begins with the other), so that they may be of one
    source."""
    return one.startswith(other) or other.startswith(one)


_SELECT: Final = (
    "SELECT id, counter, truth_of, name, head, options, path, read_to, lines_to, count_repeats"
    " FROM backfill_source"
)


def read(session: Session, source: int, *, lock: bool = False) -> Source | None:
    """Return the source whose number is ``source``, or None if there is none. With ``lock``, its
    row is locked exclusively until the transaction ends."""
    found = session.query(f"{_SELECT} WHERE id = %s{' FOR UPDATE' if lock else ''}", (source,))
    return _source(found[0]) if found else None


def lock_counter(session: Session, counter: str) -> None:
    """Lock the control row, shared, and then the row of a counter, exclusively, until the
    transaction ends. The counter's row is inserted if there is none. In the opposite order this
    could deadlock with a process that has an exclusive lock of the control row."""
    insert_rows(session, [counter], read_control(session).defaults)


def save(session: Session, source: Source) -> None:
    """Write head, recipe, path, ``read_to``, ``lines_to`` and ``count_repeats`` to the table."""
    session.execute(
        "UPDATE backfill_source SET head = %s, options = %s, path = %s, read_to = %s,"
        " lines_to = %s, count_repeats = %s WHERE id = %s",
        (
            *(source.head, source.recipe.to_json(), source.path[:LONGEST_PATH], source.read_to),
            *(source.lines_to, source.count_repeats, source.id),
        ),
    )


def delete_last_chunk(session: Session, source: Source, start_at: int) -> None:
    """Delete the last chunk of a source, which begins at ``start_at``, its journal (the cells that
    it added) and its samples. Delete the source, too, if it has no other chunks. The caller is an
    undo, in a transaction that has locked the source. Later runs read on from ``start_at``,
    whatever bytes the file has there by then."""
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
    """Delete the sources of a reconcile that is being undone, with their chunks and samples.
    ``run`` is the reconcile's number."""
    sources = "(SELECT id FROM backfill_source WHERE truth_of = %s)"
    with session.transaction():
        for table in "backfill_chunk", "backfill_sample":
            session.execute(f"DELETE FROM {table} WHERE source IN {sources}", (run,))
        session.execute("DELETE FROM backfill_source WHERE truth_of = %s", (run,))


def _source(row: tuple[Any, ...]) -> Source:
    return Source(*(*row[:5], Recipe.from_json(row[5]), *row[6:9], bool(row[9])))
