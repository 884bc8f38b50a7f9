"""The reasons why a row becomes a dead letter (``DeadReason``), with the texts that explain them to
an operator, and the check of a row's items (``row_fault``).

The reason of a row is chosen by ``stream/decode.py`` when it reads entries; by the modules in
``counting/apply/`` and ``counting/visitors/`` when they count, such as ``refusals.py`` by the
settings of the row's counter; and by ``worker/intake.py`` after an unexpected error.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from countersink.runtime.dimensions import check_row_key
from countersink.runtime.limits import check_amount, check_counter, check_minute
from countersink.runtime.texts import did_you_mean

WHOLE_ENTRY: Final = -1
"""The position of a dead letter that holds a whole entry instead of one row."""

_SENDER = "Correct the sender, then drop this: as it is, it can never be counted."
_SPLIT = "Let the sender send smaller entries, then drop this."
_ENTRY = (
    "Another program than a countersink producer, or a broken producer, writes to the queue."
    " Correct it, then drop this."
)
_AGAIN = "Retry it only if you are sure that it was not counted: Retry adds it once more."
_CAUSE = "Remove the cause, then press Retry; or drop this."


class DeadReason(StrEnum):
    """The reason why a row is a dead letter. Its value is the code in the column
    ``dead_row.reason``.

    Attributes:
        headline: the fault, in a few words.
        explanation: the fault, in a sentence.
        remedy: the operator's next step.
        maybe_counted: True if it is possible that the row is counted already. Such a row is retried
            only if the operator names its reason or its ref (its id as a dead letter).
    """

    headline: str
    explanation: str
    remedy: str
    maybe_counted: bool

    def __new__(
        cls,
        code: str,
        headline: str,
        explanation: str,
        remedy: str,
        maybe_counted: bool = False,
    ) -> Self:
        self = str.__new__(cls, code)
        self._value_ = code
        self.headline, self.explanation, self.remedy = headline, explanation, remedy
        self.maybe_counted = maybe_counted
        return self

    BAD_COUNTER = (
        "bad_counter",
        "Invalid counter name",
        "Names have 1 to 64 characters of A-Z a-z 0-9 _ . : -.",
        _SENDER,
    )
    BAD_KEY = (
        "bad_key",
        "Invalid key",
        "A key is text that UTF-8 can hold, or an object of at most eight dimensions.",
        _SENDER,
    )
    BAD_MINUTE = (
        "bad_minute",
        "Invalid time",
        "The time is before 1970, more than 366 days after it was sent, or not a number.",
        _SENDER,
    )
    BAD_AMOUNT = "bad_amount", "Invalid amount", "It is not a signed 64-bit integer.", _SENDER
    BAD_MEMBERS = (
        "bad_members",
        "Invalid members",
        "The hashes of the members, or the number of their salt, are malformed.",
        _SENDER,
    )
    NOT_A_ROW = (
        "not_a_row",
        "Not an increment",
        "An increment is a counter, a key, a minute and an amount.",
        _SENDER,
    )
    TOO_LARGE = (
        "too_large",
        "Entry too large",
        "The entry has more bytes than a worker reads of an entry.",
        _SPLIT,
    )
    TOO_MANY_ROWS = (
        "too_many_rows",
        "Too many rows in one entry",
        "The entry has more rows than a worker reads of an entry.",
        _SPLIT,
    )
    BAD_ENTRY = (
        "bad_entry",
        "Unreadable entry",
        "The entry has no list of rows, or its id, time or version is malformed.",
        _ENTRY,
    )
    NEWER_VERSION = (
        "newer_version",
        "Sent by a newer version",
        "The sender has a newer version than the workers.",
        "Upgrade the workers, then press Retry.",
    )
    TOO_OLD = (
        "too_old",
        "Too old to be counted safely",
        "It was sent so long ago that the record of whether it was counted may be deleted.",
        _AGAIN,
        True,
    )
    RECONCILED = (
        "reconciled",
        "Its day was set from a log",
        "A reconcile set this day to the count of its log, which may include this row already.",
        _AGAIN,
        True,
    )
    TRACKED_COUNTER = (
        "tracked_counter",
        "This counter belongs to a tracked table",
        "Only the triggers of the table change this counter.",
        "Send to another counter, then drop this.",
    )
    UNKNOWN_COUNTER = (
        "unknown_counter",
        "This counter does not exist",
        "The workers count only counters that exist (strict).",
        "Create it with “countersink counter set”, then press Retry; or drop this.",
    )
    UNKNOWN_DIMENSION = (
        "unknown_dimension",
        "The counter does not have this dimension",
        "An increment may have only the dimensions that its counter declares.",
        "Correct a misspelling in the sender, and drop this; or declare the dimension, then Retry.",
    )
    NOT_UNIQUE = (
        "not_unique",
        "The counter does not count different members",
        "The increment has members, and its counter does not count members.",
        "Allow it with “countersink counter set --unique”, then press Retry; or drop this.",
    )
    WRONG_SALT = (
        "wrong_salt",
        "Hashed with a wrong salt",
        "The salt belongs to another counter, or to another time than the event's.",
        "Drop this: its members cannot be identified.",
    )
    NO_SKETCHES = (
        "no_sketches",
        "The worker lacks a library",
        "Counting many different members needs datasketches, which the worker does not have.",
        "Install the extra: pip install 'countersink[sketches]', then press Retry.",
    )
    BAD_SKETCH = (
        "bad_sketch",
        "The sketch of its key is damaged",
        "The database does not hold the different members that were written.",
        "See “countersink verify”; delete the key or the sketch, then press Retry; or drop this.",
    )
    INTERNAL_ERROR = (
        "internal_error",
        "Unexpected error",
        "countersink failed unexpectedly; the worker's log has the traceback.",
        _CAUSE,
    )

    def document(self) -> dict[str, Any]:
        """Return ``headline``, ``explanation``, ``remedy`` and ``maybe_counted`` as a JSON object,
        for the list of dead letters over HTTP.
        """
        return {
            name: getattr(self, name)
            for name in ("headline", "explanation", "remedy", "maybe_counted")
        }


MAYBE_COUNTED: Final = tuple(reason for reason in DeadReason if reason.maybe_counted)
"""The reasons of rows that may be counted already."""


def check_reason(reason: str, stored: Iterable[str]) -> None:
    """Raise ValueError if a reason is neither a DeadReason nor one of ``stored``, the reasons of
    stored dead letters, which may be of a newer version. The error's message suggests the most
    similar reason; if none is similar, it lists all.
    """
    known = {*DeadReason, *stored}
    if reason not in known:
        hint = did_you_mean(reason, known) or f"the reasons are {', '.join(sorted(known))}"
        raise ValueError(f"there is no reason {reason!r}: {hint}")


class RowRefusal(NamedTuple):
    """The fault of a row that cannot be counted.

    Attributes:
        reason: the fault's code.
        detail: the fault, as a sentence for people.
    """

    reason: DeadReason
    detail: str


_ITEM_CHECKS: Final = (
    (DeadReason.BAD_COUNTER, check_counter),
    (DeadReason.BAD_KEY, check_row_key),
    (DeadReason.BAD_MINUTE, check_minute),
    (DeadReason.BAD_AMOUNT, check_amount),
)


def row_fault(items: Sequence[object]) -> RowRefusal | None:
    """Return the first fault of a row's items, or None if all items are valid.

    Args:
        items: exactly four: counter, key (a text or a mapping of dimensions), minute, and amount.
            How far the minute is ahead of now is not checked.
    """
    for item, (reason, check) in zip(items, _ITEM_CHECKS, strict=True):
        try:
            check(item)
        except (TypeError, ValueError) as error:
            return RowRefusal(reason, str(error))
    return None


@dataclass(frozen=True, slots=True)
class Bad:
    """A row, or a whole entry, that cannot be counted.

    Attributes:
        position: the row's position in its entry, from 0, or :data:`WHOLE_ENTRY`.
        reason: the code of the fault.
        detail: the fault, as a sentence for people.
        payload: the row's JSON. For a whole entry it is the field ``rows``. If ``rows`` is missing,
            or the fault is in another field, it is a JSON object of all fields of the entry; after
            an unexpected error in an entry without ``rows`` it is ``b""``.
            ``stream.decode.decode_payload`` reads a payload of a whole entry; the payload of a row
            needs ``[]`` around it first.
        counter: the row's counter; ``''`` if its name is not valid, or for a whole entry.
    """

    position: int
    reason: DeadReason
    detail: str
    payload: bytes
    counter: str = ""
