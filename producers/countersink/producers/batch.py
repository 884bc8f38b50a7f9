"""``Increment``, and the checks of a batch and of ids: number of increments, length of ids, errors
naming the bad increment; limits of names, keys, amounts and times are in ``runtime/limits.py``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from countersink.producers.errors import InvalidBatch
from countersink.runtime.dimensions import MAX_DIMENSIONS, RowKey, check_row_key
from countersink.runtime.limits import (
    MAX_AMOUNT,
    MAX_KEY_BYTES,
    MAX_MINUTE,
    MIN_AMOUNT,
    check_amount,
    check_counter,
    minute_of,
)
from countersink.runtime.members import check_member
from countersink.stream.entry import MAX_ROWS_BYTES, ROWS_PER_ENTRY, MembersRow, Row, encode_rows

MAX_ID_LENGTH: Final = 1_000
"""Characters in an ``id``; it is hashed, so its length costs nothing later."""
MAX_BATCH: Final = ROWS_PER_ENTRY
"""Increments in a batch: one entry holds them all."""

Event = tuple[str, RowKey, int | None, int]
"""(counter, key or dimensions, minute or None for now, amount)."""
NamedEvent = Event | MembersRow
"""One that travels under a name of the app's own: a sighting has its minute and its hash."""
Names = tuple[str, ...]
"""What an entry's id is hashed from: (counter, id) of an increment, (id,) of a batch."""


Asked = tuple[str, str | Mapping[str, str], int, datetime | None, str | None]
"""What an :class:`Increment` without a member is, also as a plain tuple, of which many are made
faster."""


class Increment(NamedTuple):
    """One increment as the application gives it.

    Attributes:
        counter: the counter's name.
        key: the key, or a mapping of dimensions to values; amount: what is added to it.
        at: the event's time, aware; ``None``: now.
        id: the app's own id, if it gives one.
        member: who was seen, as for :meth:`countersink.producers.Producer.seen`; the amount is 1.
    """

    counter: str
    key: str | Mapping[str, str] = ""
    amount: int = 1
    at: datetime | None = None
    id: str | None = None
    member: str | bytes | None = None


@dataclass(slots=True, eq=False)
class IncrementBatch:
    """Checked increments that find room together, or not at all.

    Attributes:
        plain: those that coalesce with others.
        members: sightings that do.
        named: those that travel in entries of their own, with what the entry's id is made from.
        rows: how many there are in all.
        dimensions: some have dimensions.
    """

    plain: list[Event]
    named: list[tuple[Names, list[NamedEvent]]]
    rows: int
    dimensions: bool = False
    members: list[MembersRow] = field(default_factory=list)

    @property
    def room(self) -> int:
        """For how many rows with a key they need room."""
        return self.rows * MAX_DIMENSIONS if self.dimensions else self.rows


def check_id(id: object) -> None:
    """Whether ``id`` can name an event.

    Raises:
        TypeError, ValueError: it cannot.
    """
    if type(id) is not str:
        raise TypeError(f"an id is a str, not {type(id).__name__}")
    if not 1 <= len(id) <= MAX_ID_LENGTH:
        raise ValueError(f"an id has 1 to {MAX_ID_LENGTH} characters, not {len(id)}")


HashMember = Callable[[str, int | None, bytes], tuple[int, int, bytes] | None]
"""Of a counter, a minute (None: now) and a member: the minute, the number of the salt, and the
hash; None: the salt is not known yet. ValueError: there will be none."""


def check_batch(
    increments: Iterable[Asked | Increment], id: str | None, hash_member: HashMember
) -> IncrementBatch | None:
    """The checked batch; with an ``id`` of the whole none of its increments has one. None: a salt
    is not known yet.

    Raises:
        InvalidBatch: some increments cannot be.
        TypeError, ValueError: nor can the id; there are more than :data:`MAX_BATCH`.
    """
    if id is not None:
        check_id(id)
    plain: list[Event] = []
    named: list[tuple[Names, list[NamedEvent]]] = []
    members: list[MembersRow] = []
    errors: list[tuple[int, str]] = []
    checked: str | None = None  # the counter found good last: neighbours often have the same
    dimensions = False
    rows = 0
    for rows, increment in enumerate(increments, 1):
        if rows > MAX_BATCH:
            raise ValueError(f"a batch holds at most {MAX_BATCH:,} increments: send several")
        try:
            counter, key, amount, at, own = increment[:5]
            if type(counter) is not str or counter != checked:
                checked = check_counter(counter)
            if type(key) is str and len(key) <= MAX_KEY_BYTES and key.isascii():
                row_key: RowKey = key
            else:
                row_key = check_row_key(key)
                dimensions = dimensions or not isinstance(row_key, str)
            if not (type(amount) is int and MIN_AMOUNT <= amount <= MAX_AMOUNT):
                check_amount(amount)
            minute = None if at is None else minute_of(at)
            if own is not None:
                check_id(own)
                if id is not None:
                    raise ValueError("it has an id, and so has the batch: give either")
            event: NamedEvent = (counter, row_key, minute, amount)
            member = increment[5] if len(increment) > 5 else None
            if member is not None:
                if amount != 1:
                    raise ValueError("an increment with a member is one sighting: its amount is 1")
                hashed = hash_member(counter, minute, check_member(member))
                if hashed is None:
                    return None
                event = (counter, row_key, hashed[0], 1, *hashed[1:])
                if own is None:
                    members.append(event)
            elif own is None:
                plain.append((counter, row_key, minute, amount))
            if own is not None:
                named.append(((counter, own), [event]))
        except (TypeError, ValueError) as error:
            errors.append((rows - 1, str(error)))
    if errors:
        raise InvalidBatch(errors)
    whole: list[NamedEvent] = [*plain, *members]
    if id is not None and whole:
        if dimensions:  # a thousand keys always fit, with a member each
            _check_size(whole)
        return IncrementBatch([], [((id,), whole)], rows, dimensions)
    return IncrementBatch(plain, named, rows, dimensions, members=members)


def _check_size(events: list[NamedEvent]) -> None:
    """Whether one entry holds them all, whatever minute is now."""
    rows: list[Row] = [
        event
        if len(event) == 6
        else (event[0], event[1], MAX_MINUTE if event[2] is None else event[2], event[3])
        for event in events
    ]
    if len(encode_rows(rows)) > MAX_ROWS_BYTES:
        raise ValueError(f"a batch with an id has at most {MAX_ROWS_BYTES:,} bytes: send several")
