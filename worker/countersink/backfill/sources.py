"""Sources as the tables have them: files, known by their content."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from countersink.backfill.head import Head
from countersink.backfill.recipe import Recipe
from countersink.backfill.spans import Span
from countersink.store.connection import Session

LONGEST_PATH: Final = 4096
NOTHING: Final = bytes(32)
"""The prefix of a source of which nothing was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A row of ``backfill_source``.

    Attributes:
        id: its number.
        counter: for which it is read.
        truth_of: the run that set totals to what it says; 0: it was added.
        name: tells sources of the same content apart.
        head, head_bytes: SHA-256 of its first bytes, and how many they are.
        recipe: how it is read.
        path: where it was last.
        read_to: bytes that are in chunks.
        lines_to: lines in them.
        open_at: where its last line begins, if it had no newline yet.
        prefix: SHA-256 over the digests of its chunks, one by one.
    """

    id: int
    counter: str
    truth_of: int
    name: str
    head: bytes
    head_bytes: int
    recipe: Recipe
    path: str
    read_to: int
    lines_to: int
    open_at: int | None
    prefix: bytes

    def after(self, span: Span, *, goes_on: bool) -> "Position":
        """Where it is read to once ``span`` is in a chunk, too.

        Args:
            span: that begins at ``read_to``.
            goes_on: it begins in the midst of a line, which is in ``lines_to`` already.
        """
        return Position(
            read_to=span.end,
            lines_to=self.lines_to + span.lines - goes_on,
            open_at=span.open_at,
            prefix=hashlib.sha256(self.prefix + span.digest).digest(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What of a source is in chunks; the columns of that name of :class:`Source`."""

    read_to: int
    lines_to: int
    open_at: int | None
    prefix: bytes


_SELECT: Final = (
    "SELECT id, counter, truth_of, name, head, head_bytes, options, path, read_to, lines_to,"
    " open_at, prefix FROM backfill_source"
)


def read(session: Session, source: int, *, lock: bool = False) -> Source | None:
    """A source by its number, ``lock``: alone until the transaction ends; None: it is gone."""
    found = session.query(f"{_SELECT} WHERE id = %s{' FOR UPDATE' if lock else ''}", (source,))
    return _source(found[0]) if found else None


def with_heads(
    session: Session, counter: str, truth_of: int, name: str, heads: Sequence[tuple[int, bytes]]
) -> list[Source]:
    """The sources of a counter, or of a run's truth, that begin with one of these heads (bytes,
    SHA-256); those of which the most was read come first.
    """
    marks = ", ".join(["%s"] * len(heads))
    found = session.query(
        f"{_SELECT} WHERE counter = %s AND truth_of = %s AND head IN ({marks})"
        " ORDER BY read_to DESC, id",
        (counter, truth_of, *(head for _, head in heads)),
    )
    # In SQL a name would be as that with blanks after it.
    sources = [_source(row) for row in found if row[3] == name]
    return [source for source in sources if (source.head_bytes, source.head) in set(heads)]


def longer(session: Session, counter: str, truth_of: int, name: str, head: Head) -> list[Source]:
    """The sources of a counter, or of a run's truth, that begin with all the lines of a content
    that has fewer than a head, and go on.
    """
    if not head.short:
        return []
    lines = head.whole_lines
    size, known = head.heads[-1]
    found = session.query(
        f"{_SELECT} WHERE counter = %s AND truth_of = %s AND head_bytes > %s"
        " AND SUBSTRING(first_lines, %s, %s) = %s ORDER BY id",
        (counter, truth_of, size, 1 + (lines - 1) * len(known), len(known), known),
    )
    return [source for source in map(_source, found) if source.name == name]


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
    head: Head,
    recipe: Recipe,
    path: str,
) -> int:
    """A source of which nothing was read yet; the caller holds its counter. Its number."""
    session.execute(
        "INSERT INTO backfill_source"
        " (counter, truth_of, name, head, head_bytes, first_lines, options, path, prefix)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            *(counter, truth_of, name, head.heads[-1][1], head.heads[-1][0], head.first_lines),
            *(recipe.to_json(), path[:LONGEST_PATH], NOTHING),
        ),
    )
    ((number,),) = session.query("SELECT LAST_INSERT_ID()")
    return int(number)


def advance(session: Session, source: int, position: Position) -> None:
    """Note how far a source was read."""
    session.execute(
        "UPDATE backfill_source SET read_to = %s, lines_to = %s, open_at = %s, prefix = %s"
        " WHERE id = %s",
        (position.read_to, position.lines_to, position.open_at, position.prefix, source),
    )


def moved(session: Session, source: Source, path: str) -> None:
    """Note where a source is now."""
    if source.path != path[:LONGEST_PATH]:
        session.execute(
            "UPDATE backfill_source SET path = %s WHERE id = %s", (path[:LONGEST_PATH], source.id)
        )


def begin_anew(session: Session, source: int, recipe: Recipe) -> None:
    """Let a source of which nothing was counted be read from its beginning, by another recipe."""
    session.execute(
        "UPDATE backfill_source SET options = %s, read_to = 0, lines_to = 0, open_at = NULL,"
        " prefix = %s WHERE id = %s",
        (recipe.to_json(), NOTHING, source),
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
        head_bytes=int(row[5]),
        recipe=Recipe.from_json(row[6]),
        path=row[7],
        read_to=int(row[8]),
        lines_to=int(row[9]),
        open_at=None if row[10] is None else int(row[10]),
        prefix=bytes(row[11]),
    )
