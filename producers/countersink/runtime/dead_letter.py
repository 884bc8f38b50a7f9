"""``DeadReason``: every reason of a dead letter with its code, headline, explanation, remedy, and
whether it may have been counted; the checks of a row's items (``row_fault``); which row gets one is
decided in ``stream/decode.py`` and ``counting/apply/refusals.py``.

Here are all of them: those of the decoder (``stream.decode``), of the rules of counters
(``store.apply.refusals``) and of the worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from countersink.runtime.dimensions import check_row_key
from countersink.runtime.limits import check_amount, check_counter, check_minute

WHOLE_ENTRY: Final = -1
"""The position of a dead letter that stands for its entry as a whole."""

_SENDER = "Mend what sends it, then drop this: as it is it can never be counted."
_SPLIT = "Let the sender split its entries, then drop this."
_ENTRY = (
    "Something that is no producer of ours, or a broken one, writes to the queue. Mend it, then"
    " drop this."
)
_AGAIN = "Count it only if you are sure that it was not counted: Retry adds it once more."
_CAUSE = "Retry it once its cause is mended, or drop it."


class DeadReason(StrEnum):
    """The reasons of dead letters by their codes, which are in the column ``dead_row.reason``.

    Attributes:
        headline: what happened, in a few words.
        explanation: the same as a sentence.
        remedy: what to do.
        maybe_counted: it is counted already, or may be: it is retried only when asked for.
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
        "No counter can have this name",
        "Names have 1 to 64 characters of A-Z a-z 0-9 _ . : -.",
        _SENDER,
    )
    BAD_KEY = (
        "bad_key",
        "No key can be like this",
        "A key is text, to be written as UTF-8, or an object of at most eight dimensions.",
        _SENDER,
    )
    BAD_MINUTE = (
        "bad_minute",
        "The time is none",
        "It is before 1970, more than 366 days after it was sent, or no number.",
        _SENDER,
    )
    BAD_AMOUNT = "bad_amount", "The amount is none", "It is no whole number of 64 bits.", _SENDER
    BAD_MEMBERS = (
        "bad_members",
        "The members are none",
        "The hashes of members, or the number of their salt, cannot be like this.",
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
        "Too large to be read",
        "The entry has more bytes than are read at once.",
        _SPLIT,
    )
    TOO_MANY_ROWS = (
        "too_many_rows",
        "Too many increments in one entry",
        "More than are read at once.",
        _SPLIT,
    )
    BAD_ENTRY = (
        "bad_entry",
        "Not to be read",
        "The entry has no list of increments, or its id, time or version is none.",
        _ENTRY,
    )
    NEWER_VERSION = (
        "newer_version",
        "Sent by a newer version",
        "The sender is newer than the workers here.",
        "Upgrade the workers, then press Retry.",
    )
    TOO_OLD = (
        "too_old",
        "Too old to be sure of",
        "It was first sent so long ago that nobody can tell any more whether it was counted.",
        _AGAIN,
        True,
    )
    RECONCILED = (
        "reconciled",
        "Its day was set from a log",
        "A backfill has set this day to what a log says, which may have this in it already.",
        _AGAIN,
        True,
    )
    TRACKED_COUNTER = (
        "tracked_counter",
        "This counter follows a table",
        "Only the table's own triggers count it.",
        "Send to another counter, then drop this.",
    )
    UNKNOWN_COUNTER = (
        "unknown_counter",
        "Nobody has made this counter",
        "The workers count only counters that exist (strict).",
        "Make it with “countersink counter set”, then press Retry; or drop this.",
    )
    UNKNOWN_DIMENSION = (
        "unknown_dimension",
        "The counter does not have this dimension",
        "An increment may have those dimensions only that its counter has declared.",
        "Declare it with “countersink counter set --dimensions”, then press Retry; or drop this.",
    )
    NOT_UNIQUE = (
        "not_unique",
        "The counter does not count different members",
        "An increment brought members to a counter that counts none.",
        "Let it with “countersink counter set --unique”, then press Retry; or drop this.",
    )
    WRONG_SALT = (
        "wrong_salt",
        "Hashed with a salt that is not right for it",
        "The salt is not one of this counter, or not one of the time of the event.",
        "Drop this: nobody can tell who its members are.",
    )
    NO_SKETCHES = (
        "no_sketches",
        "The worker lacks a library",
        "Many different members take datasketches, which is not installed there.",
        "Install the extra: pip install 'countersink[sketches]', then press Retry.",
    )
    BAD_SKETCH = (
        "bad_sketch",
        "The sketch that it belongs to is damaged",
        "The database does not hold the different members that were written.",
        "See “countersink verify”; delete the key or the sketch, then press Retry; or drop this.",
    )
    INTERNAL_ERROR = (
        "internal_error",
        "It could not be counted",
        "An unexpected error in countersink; the worker's log has the traceback.",
        _CAUSE,
    )

    def document(self) -> dict[str, Any]:
        """Its attributes, for JSON."""
        return {
            name: getattr(self, name)
            for name in ("headline", "explanation", "remedy", "maybe_counted")
        }


MAYBE_COUNTED: Final = tuple(reason for reason in DeadReason if reason.maybe_counted)
"""Those that are retried only when asked for."""


class RowRefusal(NamedTuple):
    """Why a row is not counted.

    Attributes:
        reason: the code.
        detail: a sentence for people.
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
    """Fault of a row's counter, key or dimensions, minute or amount; None: there is none.

    Args:
        items: these four.
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
        position: the row's place in the entry from 0, or :data:`WHOLE_ENTRY`.
        reason: why.
        detail: a sentence for people.
        payload: the row's JSON; for a whole entry its ``rows`` field, or, where another field is to
            blame, a JSON object of all fields. ``stream.decode.decode_payload`` reads both.
        counter: the row's, if that can be one; else empty.
    """

    position: int
    reason: DeadReason
    detail: str
    payload: bytes
    counter: str = ""
