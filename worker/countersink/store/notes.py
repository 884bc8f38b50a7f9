"""Notes on days of a counter, one for each day (a second replaces it): longest note, most notes,
with the errors, and the SQL of ``day_note``."""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from countersink.database.session import Session
from countersink.database.sql import marks
from countersink.store.errors import TooManyNotes

MAX_NOTE: Final = 500
"""Characters of a note."""
MOST_NOTES: Final = 5_000
"""Notes on one counter, and on all."""
EVERY: Final = ""
"""In place of a counter's name: all counters."""


@dataclass(frozen=True, slots=True)
class DayNote:
    """A note on a day of a counter, or of all counters.

    Attributes:
        counter: whose day; :data:`EVERY`: that of all counters.
        day: in the time zone of the counter.
        note: one line.
        author: the name of the key that wrote it; empty: no key was needed.
        changed: naive UTC.
    """

    counter: str
    day: date
    note: str
    author: str
    changed: datetime


def checked_note(text: object) -> str:
    """``text`` without spaces at its ends.

    Raises:
        ValueError: it is empty, longer than :data:`MAX_NOTE` characters, or not printable.
    """
    note = text.strip() if isinstance(text, str) else ""
    if not 1 <= len(note) <= MAX_NOTE or not note.isprintable():
        raise ValueError(f"a note is a text of 1 to {MAX_NOTE} printable characters, in one line")
    return note


def put(session: Session, counter: str, day: date, note: str, author: str) -> DayNote:
    """Write a note on a day, in place of one that is there.

    Args:
        session: outside a transaction.
        counter: a valid name, or :data:`EVERY`.
        day: whichever.
        note: from :func:`checked_note`.
        author: who writes.

    Raises:
        TooManyNotes: it would be one more than :data:`MOST_NOTES`.
    """
    there = notes(session, [counter])
    if len(there) >= MOST_NOTES and day not in {each.day for each in there}:
        raise TooManyNotes(f"there are {MOST_NOTES:,} notes already: delete some")
    session.execute(
        "INSERT INTO day_note (counter, day, note, author, changed)"
        " VALUES (%s, %s, %s, %s, UTC_TIMESTAMP(3))"
        " ON DUPLICATE KEY UPDATE note = %s, author = %s, changed = UTC_TIMESTAMP(3)",
        (counter, day, note, author, note, author),
    )
    return notes(session, [counter], day, day)[0]


def delete(session: Session, counter: str, day: date) -> bool:
    """Delete the note on a day; False where there is none."""
    sql = "DELETE FROM day_note WHERE counter = %s AND day = %s"
    return session.execute(sql, (counter, day)) == 1


def notes(
    session: Session, counters: list[str], start: date | None = None, end: date | None = None
) -> list[DayNote]:
    """The notes on the days of a range, both ends included, in order; those on all counters after
    that on one.
    """
    rows = session.query(
        "SELECT counter, day, note, author, changed FROM day_note"
        f" WHERE counter IN ({marks(counters)}) AND day BETWEEN %s AND %s"
        " ORDER BY day, counter DESC",
        (*counters, start or date.min, end or date.max),
    )
    return [DayNote(*row) for row in rows]
