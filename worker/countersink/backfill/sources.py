"""Sources as the tables have them: files, known by their content."""

from dataclasses import dataclass
from typing import Any, Final

from countersink.backfill.head import KNOWN_BYTES
from countersink.backfill.recipe import Recipe
from countersink.backfill.spans import Span
from countersink.store.connection import Session

LONGEST_PATH: Final = 4096
_INDEXED: Final = 16
"""Bytes of a head that are in the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A row of ``backfill_source``.

    Attributes:
        id: its number.
        counter: for which it is read.
        truth_of: the run that set totals to what it says; 0: it was added.
        name: tells sources of the same content apart.
        head: its first bytes, 4,096 at most, as far as they were seen.
        recipe: how it is read.
        path: where it was last.
        read_to: bytes that are in chunks.
        lines_to: lines in them.
        open_at: where its last line begins, if it had no newline yet.
    """

    id: int
    counter: str
    truth_of: int
    name: str
    head: bytes
    recipe: Recipe
    path: str
    read_to: int
    lines_to: int
    open_at: int | None

    def after(self, span: Span, *, goes_on: bool, head: bytes) -> "Position":
        """Where it is read to once ``span`` is in a chunk, too.

        Args:
            span: that begins at ``read_to``.
            goes_on: it begins in the midst of a line, which is in ``lines_to`` already.
            head: of the content that holds the span, and all chunks.
        """
        return Position(
            read_to=span.end,
            lines_to=self.lines_to + span.lines - goes_on,
            open_at=span.open_at,
            # What nothing was read of may have begun as something else that goes on differently.
            head=head if not self.read_to or len(head) > len(self.head) else self.head,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What of a source is in chunks; the columns of that name of :class:`Source`."""

    read_to: int
    lines_to: int
    open_at: int | None
    head: bytes


_SELECT: Final = (
    "SELECT id, counter, truth_of, name, head, options, path, read_to, lines_to, open_at"
    " FROM backfill_source"
)


def read(session: Session, source: int, *, lock: bool = False) -> Source | None:
    """A source by its number, ``lock``: alone until the transaction ends; None: it is gone."""
    found = session.query(f"{_SELECT} WHERE id = %s{' FOR UPDATE' if lock else ''}", (source,))
    return _source(found[0]) if found else None


def alike(session: Session, counter: str, truth_of: int, name: str, head: bytes) -> list[Source]:
    """The sources of a counter, or of a run's truth, that begin as a content does, as far as both
    go; those of which the most was read come first.

    Args:
        head: the content's.
    """
    begins = head[:_INDEXED]
    shorter = [begins[:size] for size in range(len(begins))]
    marks = ", ".join(["%s"] * (len(shorter) + 1))
    found = session.query(
        f"{_SELECT} WHERE counter = %s AND truth_of = %s"
        # By the index; then all of it, there: others of a format begin with the same header.
        f" AND (head IN ({marks}) OR head BETWEEN %s AND %s)"
        " AND LEFT(head, %s) = LEFT(%s, LENGTH(head)) ORDER BY read_to DESC, id",
        (
            *(counter, truth_of, *shorter, begins, begins),
            *(begins.ljust(KNOWN_BYTES, b"\xff"), len(head), head),
        ),
    )
    # In SQL a name would be as that with blanks after it.
    return [_source(row) for row in found if row[3] == name]


def hold_counter(session: Session, counter: str) -> None:
    """Let nobody else decide what a source of the counter is until the transaction ends."""
    session.execute("INSERT IGNORE INTO backfill_counter (counter) VALUES (%s)", (counter,))
    session.query("SELECT 1 FROM backfill_counter WHERE counter = %s FOR UPDATE", (counter,))


def insert(
    session: Session,
    *,
    counter: str,
    truth_of: int,
    name: str,
    head: bytes,
    recipe: Recipe,
    path: str,
) -> int:
    """A source of which nothing was read yet; the caller holds its counter. Its number."""
    session.execute(
        "INSERT INTO backfill_source"
        " (counter, truth_of, name, head, options, path) VALUES (%s, %s, %s, %s, %s, %s)",
        (counter, truth_of, name, head, recipe.to_json(), path[:LONGEST_PATH]),
    )
    ((number,),) = session.query("SELECT LAST_INSERT_ID()")
    return int(number)


def advance(session: Session, source: int, position: Position) -> None:
    """Note how far a source was read."""
    session.execute(
        "UPDATE backfill_source SET read_to = %s, lines_to = %s, open_at = %s, head = %s"
        " WHERE id = %s",
        (position.read_to, position.lines_to, position.open_at, position.head, source),
    )


def forget_unread(session: Session, source: int) -> None:
    """Delete a source of which nothing is in chunks: so that nothing is taken for it. In a
    transaction of its own; who was about to read it looks again which it is.
    """
    with session.transaction():
        found = read(session, source, lock=True)
        if found is not None and not found.read_to:
            session.execute("DELETE FROM backfill_source WHERE id = %s", (source,))


def moved(session: Session, source: Source, path: str) -> None:
    """Note where a source is now."""
    if source.path != path[:LONGEST_PATH]:
        session.execute(
            "UPDATE backfill_source SET path = %s WHERE id = %s", (path[:LONGEST_PATH], source.id)
        )


def begin_anew(session: Session, source: int, recipe: Recipe) -> None:
    """Let a source of which nothing was counted be read from its beginning, by another recipe."""
    session.execute(
        "UPDATE backfill_source SET options = %s, read_to = 0, lines_to = 0, open_at = NULL"
        " WHERE id = %s",
        (recipe.to_json(), source),
    )


def forget_truth(session: Session, run: int) -> None:
    """Delete the sources that were read as the truth of a run, with their chunks; in the caller's
    transaction.
    """
    own = "(SELECT id FROM backfill_source WHERE truth_of = %s)"
    for table in "backfill_reject", "backfill_chunk":
        session.execute(f"DELETE FROM {table} WHERE source IN {own}", (run,))
    session.execute("DELETE FROM backfill_source WHERE truth_of = %s", (run,))


def _source(row: tuple[Any, ...]) -> Source:
    return Source(
        id=int(row[0]),
        counter=row[1],
        truth_of=int(row[2]),
        name=row[3],
        head=bytes(row[4]),
        recipe=Recipe.from_json(row[5]),
        path=row[6],
        read_to=int(row[7]),
        lines_to=int(row[8]),
        open_at=None if row[9] is None else int(row[9]),
    )
