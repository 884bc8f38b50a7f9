"""What is asked of a column of a tracked table, and which values of its keys meet that.

Text is compared as the column's collation does, which may fold cases and blanks. Only the server
knows how: it is asked which of some values are equal to the one wanted, by the comparison that it
would make in the table itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
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
    """Says which values of a column meet a condition, and remembers it."""

    def __init__(self, session: Session, condition: Condition) -> None:
        self._session = session
        self._condition = condition
        self._known: dict[str | None, bool] = {}

    def meeting(self, values: Sequence[str | None]) -> list[str | None]:
        """Those of the values that meet it, in their order.

        Raises:
            StoreError: as any query.
        """
        one = self._condition
        if one is None:
            return list(values)
        if isinstance(one, Exactly):
            return [value for value in values if value == one.text]
        texts = [value for value in values if value is not None]
        if isinstance(one, Number):
            return [text for text in texts if Decimal(text) == one.value]
        assert isinstance(one, Alike)
        unknown = list(dict.fromkeys(text for text in texts if text not in self._known))
        for part in parts(unknown, _COMPARED):
            self._known.update(zip(part, _equal(self._session, part, one), strict=True))
        return [text for text in texts if self._known[text]]


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
