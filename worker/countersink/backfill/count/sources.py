"""Which source a file is, by its first bytes (table ``backfill_source``): the same, grown, an older
copy, or another; with the refusals for other options or a file that became shorter.

A source's *head*, its first bytes, finds the candidates. A content is the source whose chunks it
holds, each byte of them. So a copy is known, compressed or renamed, and a file that has grown
since; and a content that begins alike and then differs is another source.
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
"""First bytes of a content by which it is found among the sources that are known."""
_INDEXED: Final = 16
"""Bytes of a head that are in the index."""


@dataclass(frozen=True, slots=True)
class Source:
    """A row of ``backfill_source``, or what is to be one.

    Attributes:
        id: its number; 0: it has none yet.
        counter: for which it is read.
        truth_of: the run that set totals to what it says; 0: it was added.
        name: tells sources of the same content apart.
        head: its first bytes, 4,096 at most, as far as they were seen.
        recipe: how it is read.
        path: where it was last.
        read_to: bytes that are in chunks.
        lines_to: lines in them.
        count_repeats: lines of it count that another source has, too.
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
        """Within what its lines are known again."""
        return scope_of(self.counter, self.truth_of, self.name)

    def after(self, chunk: Chunk, head: bytes) -> "Source":
        """What it is once a chunk is counted that begins at ``read_to``.

        Args:
            head: of the content that holds the chunk, and all before it.
        """
        return replace(
            self,
            read_to=chunk.end_at,
            lines_to=chunk.next_line - 1,
            # What nothing was read of may have begun as something else that goes on differently.
            head=head if not self.read_to or len(head) > len(self.head) else self.head,
        )


@dataclass(frozen=True, slots=True)
class HeldSource:
    """How much of a source a file's content has.

    Attributes:
        source: as it was looked at.
        to: where the chunks end that it holds; below ``source.read_to`` if it does not hold all.
        last: the digest of the last of them; empty: there is none.
        verdict: ``same``; ``older``: it ends with a chunk, or all of it stands in the source's
            head, and is counted; ``short``: it ends within a chunk, so that one cannot tell;
            ``other``: it differs.
    """

    source: Source
    to: int
    last: bytes
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The source that a content is, and how much of it was read before.

    Attributes:
        source: its number.
        to: up to where the content is known to be that source's.
        last: the digest of the chunk that ends there; empty: there is none.
        ended: the content ends there, and more of the source is known: it is an older copy.
    """

    source: int
    to: int
    last: bytes = b""
    ended: bool = False


class Sources:
    """Sources and their chunks in the tables; a dry run keeps its own beside them."""

    def candidates(self, session: Session, wanted: Source) -> list[Source]:
        """The sources of a counter, or of a run's truth, that begin as a content does, as far as
        both go; those of which the most was read come first.
        """
        head = wanted.head
        begins = head[:_INDEXED]
        shorter = [begins[:size] for size in range(len(begins))]
        marks = ", ".join(["%s"] * (len(shorter) + 1))
        found = session.query(
            f"{_SELECT} WHERE counter = %s AND truth_of = %s"
            # By the index; then all of it, there: others of a format begin with the same header.
            f" AND (head IN ({marks}) OR head BETWEEN %s AND %s)"
            " AND LEFT(head, %s) = LEFT(%s, LENGTH(head)) ORDER BY read_to DESC, id",
            (
                *(wanted.counter, wanted.truth_of, *shorter, begins, begins),
                *(begins.ljust(KNOWN_BYTES, b"\xff"), len(head), head),
            ),
        )
        # In SQL a name would be as that with blanks after it.
        return [_source(row) for row in found if row[3] == wanted.name]

    def chunks(self, session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
        """A source's chunks in order, from the one on that begins at ``start_at`` or later."""
        return chunks.of(session, source, start_at)

    def last(self, session: Session, source: int) -> Chunk | None:
        """The last chunk of a source."""
        return chunks.last(session, source)

    def read(self, session: Session, source: int, *, lock: bool = False) -> Source | None:
        """A source by its number, as :func:`read`."""
        return read(session, source, lock=lock)

    def hold(self, session: Session, counter: str) -> None:
        """Let nobody else insert a source of a counter until the transaction ends."""
        hold_counter(session, counter)

    def insert(self, session: Session, wanted: Source) -> int:
        """A source of which nothing was read yet; the caller holds its counter. Its number."""
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
        """Write down what a source is now."""
        save(session, source)

    def forget_chunks(self, session: Session, source: int) -> None:
        """Delete a source's chunks, of which nothing is counted."""
        chunks.forget(session, source)

    def is_counted(self, session: Session, source: int) -> bool:
        """Whether anything of a source was counted."""
        ask = "SELECT 1 FROM backfill_chunk WHERE source = %s AND counted <> 0 LIMIT 1"
        return bool(session.query(ask, (source,)))

    def settle(
        self,
        session: Session,
        content: Content,
        wanted: Source,
        looking: Callable[[], object],
    ) -> Settled:
        """Settle which source a content is; committed when it returns. May be run again.

        Args:
            looking: called before each chunk that is compared.

        Raises:
            BackfillError: it must not be counted; the message says why, and what to do.
            Unreadable: the content cannot be read as far as it is known.
            StoreError: as any transaction.
        """
        while True:
            own = [
                self.compare(session, content, source, wanted.head, (0, b""), looking)
                for source in self.candidates(session, wanted)
            ]
            settled = rerun(partial(self._write_down, session, wanted, own))
            if settled is not None:
                return settled

    def _write_down(
        self, session: Session, wanted: Source, compared: list[HeldSource]
    ) -> Settled | None:
        """Write down which of the sources it is, or a new one, unless somebody was faster; then
        None: look again.
        """
        held = min((one for one in compared if one.verdict != "other"), key=_rank, default=None)
        if held is not None and held.verdict == "short":
            raise BackfillError(_too_short(held.source.path))
        with session.transaction():
            if held is None:
                if not wanted.truth_of:  # nobody else reads sources of that run
                    self.hold(session, wanted.counter)
                known = {one.source.id for one in compared}
                if not {one.id for one in self.candidates(session, wanted)} <= known:
                    return None
                return Settled(source=self.insert(session, wanted), to=0)
            source = self.read(session, held.source.id, lock=True)
            if source is None or not alike(source.head, wanted.head):
                return None
            ended = held.verdict == "older"
            # What the recipe leaves out is known from now on: no other run takes it for counted.
            new = replace(
                source,
                recipe=wanted.recipe,
                path=source.path if ended else wanted.path,
                count_repeats=source.count_repeats or wanted.count_repeats,
            )
            if self._begins_anew(session, source, wanted.recipe):
                self.forget_chunks(session, source.id)
                self.save(session, replace(new, read_to=0, lines_to=0))
                return Settled(source=source.id, to=0)
            if new != source:
                self.save(session, new)
            return Settled(source=source.id, to=held.to, last=held.last, ended=ended)

    def _begins_anew(self, session: Session, source: Source, recipe: Recipe) -> bool:
        """Whether a source is to be read by another recipe than before, from its beginning.

        Raises:
            BackfillError: it is not to be, as something was counted of it.
        """
        if source.recipe == recipe:
            return False
        if not self.is_counted(session, source.id):
            return True
        if recipe.goes_on(source.recipe):
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
        looking: Callable[[], object],
    ) -> HeldSource:
        """How much a content holds of the chunks of ``source``.

        Args:
            head: of the content.
            held: where a chunk ends up to which all are known to be held, and its digest.
            looking: called before each chunk.

        Raises:
            Unreadable: the content cannot be read so far.
            StoreError: as any query.
        """
        to, last = held
        for chunk in self.chunks(session, source.id, to):
            looking()
            found = digest(content, chunk.start_at, chunk.end_at)
            if found is None:
                # It has been read to its end.
                size = content.offset
                if size == chunk.start_at or (size == len(head) and source.head.startswith(head)):
                    return HeldSource(source, to, last, "older")
                return HeldSource(source, to, last, "short")
            if chunk.start_at != to or found != chunk.digest:
                return HeldSource(source, to, last, "other")
            to, last = chunk.end_at, chunk.digest
        return HeldSource(source, to, last, "same")


def _rank(one: HeldSource) -> int:
    """Which of the sources that a content may be it is: at most one of those that something was
    read of can be.
    """
    return 3 if not one.source.read_to else ("same", "older", "short").index(one.verdict)


def _too_short(path: str) -> str:
    """Why a content is refused that is shorter than what was read of ``path``."""
    return (
        f"it begins as {path} did, of which more was read: it ends where that cannot be"
        " told from an older copy of it. Give the newer copy; or, if it is another source, a name"
        " of its own by --source-name"
    )


def alike(one: bytes, other: bytes) -> bool:
    """Whether two beginnings may be those of one source: one is how the other begins."""
    return one.startswith(other) or other.startswith(one)


_SELECT: Final = (
    "SELECT id, counter, truth_of, name, head, options, path, read_to, lines_to, count_repeats"
    " FROM backfill_source"
)


def read(session: Session, source: int, *, lock: bool = False) -> Source | None:
    """A source by its number, ``lock``: alone until the transaction ends; None: it is gone."""
    found = session.query(f"{_SELECT} WHERE id = %s{' FOR UPDATE' if lock else ''}", (source,))
    return _source(found[0]) if found else None


def hold_counter(session: Session, counter: str) -> None:
    """Hold the row of a counter alone until the transaction ends, in which the share lock of
    control is not asked for after it: whoever has that alone may wait for the row.
    """
    # As a row that is there, it is locked for good at once; INSERT IGNORE would only share it.
    session.execute(
        "INSERT INTO counter (name) VALUES (%s) ON DUPLICATE KEY UPDATE name = name", (counter,)
    )


def save(session: Session, source: Source) -> None:
    """Write down what a source is now."""
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
    which holds the source: it is read on there, whatever stands there by then. A source that has no
    other chunk is deleted.
    """
    for table in "backfill_chunk", "backfill_journal", "backfill_sample":
        session.execute(
            f"DELETE FROM {table} WHERE source = %s AND start_at = %s", (source.id, start_at)
        )
    last = chunks.last(session, source.id)
    if last is None:
        session.execute("DELETE FROM backfill_source WHERE id = %s", (source.id,))
    else:
        save(session, replace(source.after(last, b""), head=source.head[: last.end_at]))


def forget_truth(session: Session, run: int) -> None:
    """Delete the sources that were read as the truth of a run, with their chunks."""
    own = "(SELECT id FROM backfill_source WHERE truth_of = %s)"
    with session.transaction():
        for table in "backfill_chunk", "backfill_sample":
            session.execute(f"DELETE FROM {table} WHERE source IN {own}", (run,))
        session.execute("DELETE FROM backfill_source WHERE truth_of = %s", (run,))


def _source(row: tuple[Any, ...]) -> Source:
    return Source(*(*row[:5], Recipe.from_json(row[5]), *row[6:9], bool(row[9])))
