"""Sources as the tables have them: files, known by their content."""

from dataclasses import dataclass
from typing import Any, Final

from countersink.backfill.recipe import Recipe
from countersink.store.connection import Session


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


_SELECT: Final = (
    "SELECT id, counter, truth_of, name, head, head_bytes, options, path, read_to, lines_to,"
    " open_at, prefix FROM backfill_source"
)


def read(session: Session, source: int, *, lock: bool = False) -> Source | None:
    """A source by its number, ``lock``: alone until the transaction ends; None: it is gone."""
    found = session.query(f"{_SELECT} WHERE id = %s{' FOR UPDATE' if lock else ''}", (source,))
    return _source(found[0]) if found else None


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
