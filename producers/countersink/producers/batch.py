"""Class ``Increment``, and the checks of batches and ids: number of increments, length of ids,
errors that name the invalid increment.

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
"""Maximum of characters in an application's id. The id is hashed, so its length costs nothing
later."""
MAX_BATCH: Final = ROWS_PER_ENTRY
"""Maximum of increments in a batch: the maximum of rows that a producer puts into one entry."""

Event = tuple[str, RowKey, int | None, int]
"""(counter, key or dimensions, minute, amount) of an increment. The minute is None for an event
that happens now."""
NamedEvent = Event | MembersRow
"""An event that may be a sighting (a call of ``seen()``), which has two more items: the number of
the salt and the member's hash."""
Names = tuple[str, ...]
"""The texts that are hashed to an entry's id, with the option ``id_scope``: the counter and the id
of an increment, or the id of a batch alone."""


IncrementTuple = tuple[str, str | Mapping[str, str], int, datetime | None, str | None]
"""A plain tuple with the items of an :class:`Increment` without a member. It takes less time to
make."""


class Increment(NamedTuple):
    """An increment as the application passes it to a producer.

    Attributes:
        counter: the counter's name.
        key: the key, or a mapping from the names of dimensions to their values.
        amount: the integer to add; 1 if there is a ``member``.
        at: the event's time, an aware datetime; ``None`` stands for now.
        id: the application's id of the event; ``None`` where it has none.
        member: the visitor or other member that was seen: see
            :meth:`countersink.producers.Producer.seen`. ``None`` if the increment is no sighting.
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
        plain: increments without a member, if neither they nor the batch have an id; equal ones may
            be added up in one row.
        named: increments that are sent in entries of their own, because they or the batch have an
            id. There is a pair for each entry: the texts that are hashed to the entry's id, and the
            increments of the entry.
        rows: number of all increments.
        dimensions: whether some increments have dimensions.
        members: sightings (increments with a member), if neither they nor the batch have an id;
            those of one key may share a row.
    """

    plain: list[Event]
    named: list[tuple[Names, list[NamedEvent]]]
    rows: int
    dimensions: bool = False
    members: list[MembersRow] = field(default_factory=list)

    @property
    def room(self) -> int:
        """The most memory that this batch can take, measured in rows whose key is a text. It is
        reserved when the batch is accepted.
        """
        return self.rows * MAX_DIMENSIONS if self.dimensions else self.rows


def check_id(id: object) -> None:
    """Check an application's id.

    Raises:
        TypeError: the id is not a text.
        ValueError: the id is empty, or longer than :data:`MAX_ID_LENGTH`.
    """
    if type(id) is not str:
        raise TypeError(f"an id must be a str, not {type(id).__name__}")
    if not 1 <= len(id) <= MAX_ID_LENGTH:
        raise ValueError(f"an id must have 1 to {MAX_ID_LENGTH} characters, not {len(id)}")


HashMember = Callable[[str, int | None, bytes], tuple[int, int, bytes] | None]
"""Type of a function that hashes a member. It takes a counter, a minute (None stands for now) and
the member. It returns the minute, the number of the salt and the hash, or None where the salt is
not known yet. It raises ValueError where there is no salt for the member and none is expected."""


def check_batch(
    increments: Iterable[IncrementTuple | Increment], id: str | None, hash_member: HashMember
) -> IncrementBatch | None:
    """Check the increments of a batch and return the checked batch. Return None if all increments
    are valid, but the salt of a member is not known yet.

    Args:
        increments: the increments, as the application passes them.
        id: the application's id of the batch; None where it has none.
        hash_member: the function that hashes members.

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
    dimensions = awaits_salt = False
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
                    awaits_salt = True
                    continue
                event = (counter, row_key, hashed[0], 1, *hashed[1:])
                if event_id is None:
                    members.append(event)
            elif event_id is None:
                plain.append((counter, row_key, minute, amount))
            if event_id is not None:
                named.append(((counter, event_id), [event]))
        except (TypeError, ValueError, KeyError) as error:  # KeyError: a dict, from Python 3.12 on
            errors.append((rows - 1, str(error)))
    if errors:
        raise InvalidBatch(errors)
    if awaits_salt:
        return None
    events: list[NamedEvent] = [*plain, *members]
    if id is not None and events:
        if dimensions:  # an entry always holds 1,000 rows with keys, and a member each
            _check_size(events)
        return IncrementBatch([], [((id,), events)], rows, dimensions)
    return IncrementBatch(plain, named, rows, dimensions, members=members)


def _check_size(events: list[NamedEvent]) -> None:
    """Check that all events fit into one entry. An event without a minute gets its minute later, so
    it is checked with the longest possible one.

    Raises:
        ValueError: the events are too large for one entry.
    """
    rows: list[Row] = [
        event
        if len(event) == 6
        else (event[0], event[1], MAX_MINUTE if event[2] is None else event[2], event[3])
        for event in events
    ]
    if len(encode_rows(rows)) > MAX_ROWS_BYTES:
        raise ValueError(f"a batch with an id has at most {MAX_ROWS_BYTES:,} bytes: split it")
