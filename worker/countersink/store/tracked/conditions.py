"""What is asked of a column of a tracked table, and which values of its keys meet that.

Text is compared as the column's collation does, which may fold cases and blanks. Only the server
knows how: it is asked which of some values are equal to the one wanted, by the comparison that it
would make in the table itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

from countersink.store.connection import Session
from countersink.store.sums import parts

_COMPARED: Final = 500
"""Values that the server is asked about at a time."""


@dataclass(frozen=True, slots=True)
class Exactly:
    """The value has this text in the key, None for NULL, and no other."""

    text: str | None


@dataclass(frozen=True, slots=True)
class Alike:
    """The value is equal to a text, given as hex digits of its UTF-8, in the column's own character
    set and collation.
    """

    in_hex: str
    charset: str
    collation: str


@dataclass(frozen=True, slots=True)
class Number:
    """The value is this number, however many zeros it is written with."""

    value: Decimal


@dataclass(frozen=True, slots=True)
class Never:
    """No value of the column is what is asked for."""


NEVER: Final = Never()
Condition = Exactly | Alike | Number | Never | None
"""What is asked of a column; None: nothing."""


class Check:
    """Says which values of a column meet a condition."""

    def __init__(self, session: Session, condition: Condition) -> None:
        self._session = session
        self._condition = condition
        self._known: dict[str, bool] = {}

    def ask(self, values: Iterable[str | None]) -> None:
        """Find out about these values, where only the server can tell.

        Raises:
            StoreError: as any query.
        """
        one = self._condition
        if isinstance(one, Alike):
            unknown = {value for value in values if value is not None} - self._known.keys()
            for part in parts(sorted(unknown), _COMPARED):
                self._known.update(zip(part, _equal(self._session, part, one), strict=True))

    def meets(self, value: str | None) -> bool:
        """Whether a value that was asked about meets the condition."""
        one = self._condition
        if one is None:
            return True
        if isinstance(one, Exactly):
            return value == one.text
        if value is None or isinstance(one, Never):
            return False
        return _is(value, one.value) if isinstance(one, Number) else self._known[value]


def _is(text: str, number: Decimal) -> bool:
    try:
        return Decimal(text) == number
    except InvalidOperation:
        return False  # no trigger has written it


def _equal(session: Session, texts: Sequence[str], one: Alike) -> list[bool]:
    """Which of these texts the server takes for the one asked for."""
    wanted = _in_charset(one.in_hex, one.charset)
    columns = ", ".join(
        f"{_in_charset(text.encode('utf-8', 'surrogatepass').hex(), one.charset)}"
        f" COLLATE {one.collation} = {wanted}"
        for text in texts
    )
    (answers,) = session.query(f"SELECT {columns}")
    return [bool(answer) for answer in answers]


def _in_charset(in_hex: str, charset: str) -> str:
    return f"CONVERT(CONVERT(X'{in_hex}' USING utf8mb4) USING {charset})"
