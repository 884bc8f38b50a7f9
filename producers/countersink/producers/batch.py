"""``Increment``, and checks of batches and ids: number of increments, length of ids, errors that
name the invalid increment.

See ``runtime/limits.py`` for limits of names, keys, amounts and times.
"""

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
"""Characters in an application's id. It is hashed, so its length costs nothing later."""
MAX_BATCH: Final = ROWS_PER_ENTRY
"""Increments in a batch: one entry holds them all."""

Event = tuple[str, RowKey, int | None, int]
"""(counter, key or dimensions, minute or None for now, amount) of an increment."""
NamedEvent = Event | MembersRow
"""An event with an id of the application, or a sighting with its minute and the member's hash."""
Names = tuple[str, ...]
"""The texts that an entry's id is hashed from: (counter, id) of an increment, (id,) of a batch."""


IncrementTuple = tuple[str, str | Mapping[str, str], int, datetime | None, str | None]
"""The items of an :class:`Increment` without a member, as a plain tuple, which is made faster."""


class Increment(NamedTuple):
    """An increment, as the application passes it.

    Attributes:
        counter: the counter's name.
        key: the key, or a mapping of dimensions to values.
        amount: the integer to add.
        at: the event's time, aware; ``None``: now.
        id: the application's id of the event, if any.
        member: the member seen, as for :meth:`countersink.producers.Producer.seen`; the amount must
            be 1 then.
    """

    counter: str
    key: str | Mapping[str, str] = ""
    amount: int = 1
    at: datetime | None = None
    id: str | None = None
    member: str | bytes | None = None


@dataclass(slots=True, eq=False)
class IncrementBatch:
    """Checked increments that are accepted together or not at all.

    Attributes:
        plain: increments that coalesce with others.
        members: sightings that coalesce with others.
        named: increments sent in entries of their own, with the texts that the id of the entry is
            hashed from.
        rows: number of all increments.
        dimensions: whether some increments have dimensions.
    """

    plain: list[Event]
    named: list[tuple[Names, list[NamedEvent]]]
    rows: int
    dimensions: bool = False
    members: list[MembersRow] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Number of rows with a plain key that take as much memory as this batch at most."""
        return self.rows * MAX_DIMENSIONS if self.dimensions else self.rows


def check_id(id: object) -> None:
    """Check an application's id.

    Raises:
        TypeError, ValueError: it is invalid.
    """
    if type(id) is not str:
        raise TypeError(f"an id must be a str, not {type(id).__name__}")
    if not 1 <= len(id) <= MAX_ID_LENGTH:
        raise ValueError(f"an id must have 1 to {MAX_ID_LENGTH} characters, not {len(id)}")


HashMember = Callable[[str, int | None, bytes], tuple[int, int, bytes] | None]
"""A function of a counter, a minute (None: now) and a member. It returns the minute, the number of
the salt and the hash; None: the salt is not known yet. It raises ValueError if there is no salt."""


def check_batch(
    increments: Iterable[IncrementTuple | Increment], id: str | None, hash_member: HashMember
) -> IncrementBatch | None:
    """The checked batch; None: the salt of a member is not known yet.

    Raises:
        InvalidBatch: some increments are invalid, or have an id although the batch has one.
        TypeError, ValueError: ``id`` is invalid, or there are more than :data:`MAX_BATCH`
            increments, or a batch with an id is too large for one entry.
    """
    if id is not None:
        check_id(id)
    plain: list[Event] = []
    named: list[tuple[Names, list[NamedEvent]]] = []
    members: list[MembersRow] = []
    errors: list[tuple[int, str]] = []
    checked: str | None = None  # the last valid counter: neighbours often have the same
    dimensions = False
    rows = 0
    for rows, increment in enumerate(increments, 1):
        if rows > MAX_BATCH:
            raise ValueError(f"a batch has at most {MAX_BATCH:,} increments: split it")
        try:
            counter, key, amount, at, event_id = increment[:5]
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
            if event_id is not None:
                check_id(event_id)
                if id is not None:
                    raise ValueError("the increment and its batch both have an id: give one")
            event: NamedEvent = (counter, row_key, minute, amount)
            member = increment[5] if len(increment) > 5 else None
            if member is not None:
                if amount != 1:
                    raise ValueError("the amount of an increment with a member must be 1")
                hashed = hash_member(counter, minute, check_member(member))
                if hashed is None:
                    return None
                event = (counter, row_key, hashed[0], 1, *hashed[1:])
                if event_id is None:
                    members.append(event)
            elif event_id is None:
                plain.append((counter, row_key, minute, amount))
            if event_id is not None:
                named.append(((counter, event_id), [event]))
        except (TypeError, ValueError) as error:
            errors.append((rows - 1, str(error)))
    if errors:
        raise InvalidBatch(errors)
    events: list[NamedEvent] = [*plain, *members]
    if id is not None and events:
        if dimensions:  # an entry always holds 1,000 rows with keys, and a member each
            _check_size(events)
        return IncrementBatch([], [((id,), events)], rows, dimensions)
    return IncrementBatch(plain, named, rows, dimensions, members=members)


def _check_size(events: list[NamedEvent]) -> None:
    """Check that one entry holds all events, in any minute.

    Raises:
        ValueError: it does not.
    """
    rows: list[Row] = [
        event
        if len(event) == 6
        else (event[0], event[1], MAX_MINUTE if event[2] is None else event[2], event[3])
        for event in events
    ]
    if len(encode_rows(rows)) > MAX_ROWS_BYTES:
        raise ValueError(f"a batch with an id has at most {MAX_ROWS_BYTES:,} bytes: split it")
