"""From the rows of many entries to one amount per cell: an upsert is paid per cell, not per row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from countersink.store.amounts import Amounts
from countersink.store.dead import DeadRow
from countersink.store.policies import Policies

Row = tuple[int, str, str, int, int]
"""(position in its entry from 0, counter, key, event time in whole Unix minutes, amount)."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A stream entry to be counted.

    Attributes:
        id: 16 bytes; the same at every delivery of the entry.
        at: Unix ms of the first attempt to send it.
        rows: what it adds.
        dead: what of it could not be read; stored with the guard.
        stream: the stream's key, for whoever looks at a dead row.
        payload: the entry's ``rows`` field as it came, for the dead letter of an entry that is too
            old; without it each row gets a dead letter of its own.
    """

    id: bytes
    at: int
    rows: Sequence[Row]
    dead: Sequence[DeadRow] = ()
    stream: str = ""
    payload: bytes | None = None


class Merged(Amounts):
    """The amounts of the rows of entries.

    Attributes:
        rows: how many rows went in.
    """

    def __init__(self, entries: Iterable[Incoming], policies: Policies) -> None:
        super().__init__()
        self.rows = 0
        last_counter, last_minute = "", -1
        amounts: dict[str, int] = {}
        for entry in entries:
            self.rows += len(entry.rows)
            for _, counter, key, minute, amount in entry.rows:
                # Rows of one flush mostly share counter and minute: two comparisons instead of two
                # lookups.
                if minute != last_minute or counter != last_counter:
                    amounts = self.bucket(counter, policies.bucket(counter, minute))
                    last_counter, last_minute = counter, minute
                if key in amounts:
                    amounts[key] += amount
                else:
                    amounts[key] = amount
