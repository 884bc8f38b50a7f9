"""Notes that people write on a day of a counter, or of all counters, in the table ``day_note``.
Each day of a counter has at most one note, of at most :data:`MAX_NOTE` characters. Each day has at
most one further note on all counters.
"""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from countersink.database.session import Session
from countersink.database.sql import marks
from countersink.store.errors import TooManyNotes

MAX_NOTE: Final = 500
"""Maximum of characters in a note."""
MAX_NOTES: Final = 5_000
"""Maximum of notes on one counter. Notes on all counters have the same maximum of their own."""
ALL_COUNTERS: Final = ""
"""Value in place of a counter's name, for a note on all counters."""


@dataclass(frozen=True, slots=True)
class DayNote:
    """A note on a day of a counter, or of all counters.

    Attributes:
        counter: the counter's name, or :data:`ALL_COUNTERS`.
        day: the day, in the time zone of the counter; a note on all counters is on this date in
            the time zone of each.
        note: the text, which is one line.
        author: name of the API key that wrote the note last; empty if no key was needed.
        changed: time of the last change, a naive datetime in UTC.
    """

    counter: str
    day: date
    note: str
    author: str
    changed: datetime


def checked_note(text: object) -> str:
    """Check the text of a note, and return it without spaces at its beginning and end.

    Raises:
        ValueError: the text is no ``str``; or, without those spaces, it is empty, is longer than
            :data:`MAX_NOTE` characters, or has unprintable characters or line breaks.
    """
    note = text.strip() if isinstance(text, str) else ""
    if not 1 <= len(note) <= MAX_NOTE or not note.isprintable():
        raise ValueError(f"a note is one line of 1 to {MAX_NOTE} printable characters")
    return note


def put(session: Session, counter: str, day: date, note: str, author: str) -> DayNote:
    """Write the note on a day, and return it. It replaces the note that the day had.

    Args:
        session: a session outside a transaction.
        counter: a valid name of a counter, which need not exist; or :data:`ALL_COUNTERS`.
        day: any day.
        note: a text from :func:`checked_note`.
        author: name of the API key that writes it; may be empty.

    Raises:
        TooManyNotes: the counter has :data:`MAX_NOTES` notes already, none of them on this day.
            Notes on all counters are limited in the same way.
    """
    present = notes(session, [counter])
    if len(present) >= MAX_NOTES and day not in {each.day for each in present}:
        raise TooManyNotes(f"the maximum of {MAX_NOTES:,} notes is reached: delete some")
    session.execute(
        "INSERT INTO day_note (counter, day, note, author, changed)"
        " VALUES (%s, %s, %s, %s, UTC_TIMESTAMP(3))"
        " ON DUPLICATE KEY UPDATE note = %s, author = %s, changed = UTC_TIMESTAMP(3)",
        (counter, day, note, author, note, author),
    )
    return notes(session, [counter], day, day)[0]


def delete(session: Session, counter: str, day: date) -> bool:
    """Delete the note on a day, and return True; return False if there was none. ``counter`` is the
    name of the counter, or :data:`ALL_COUNTERS`."""
    sql = "DELETE FROM day_note WHERE counter = %s AND day = %s"
    return session.execute(sql, (counter, day)) == 1


def notes(
    session: Session, counters: list[str], start: date | None = None, end: date | None = None
) -> list[DayNote]:
    """Return the notes of some counters, ordered by day. Of one day, the note on all counters comes
    after the notes on single counters.

    Args:
        session: a session.
        counters: one or more names of counters. Notes on all counters are returned only if
            :data:`ALL_COUNTERS` is among them.
        start, end: the first and the last day; None for no limit.
    """
    rows = session.query(
        "SELECT counter, day, note, author, changed FROM day_note"
        f" WHERE counter IN ({marks(counters)}) AND day BETWEEN %s AND %s"
        " ORDER BY day, counter DESC",
        (*counters, start or date.min, end or date.max),
    )
    return [DayNote(*row) for row in rows]
