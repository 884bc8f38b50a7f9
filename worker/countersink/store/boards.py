"""Boards: pages of the dashboard that show several counters (``countersink board``), in the table
``board``. This module creates, lists, changes and deletes them.

A link to a board has the names of the board's counters in its row of ``api_key`` (see
``store/links.py``). A change of the board changes these rows in the same transaction, so a link
never shows a counter that the board does not.

Creations, changes and deletions of boards, and creations of links to boards, run one after another.
No counter can be deleted while one of them runs; workers go on counting. See :func:`in_turn`.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from countersink.counting.apply.guards import read_control, short_waits
from countersink.counting.counters.all_counters import require
from countersink.database.session import Session, rerun_transaction
from countersink.store.errors import BoardRefused, NoSuchBoard

MAX_BOARDS: Final = 1_000
MAX_ITEMS: Final = 24
MAX_TOP: Final = 25
"""Maximum number of keys that one item lists."""
NAME: Final = re.compile("^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")
"""Names of boards: the names that counters can have, except those that a client could take for a
step in a path, such as ``..``."""
Days = Literal[1, 7, 30, 90, 365, None]
Width = Literal["half", "full"]
_COLUMNS: Final = "name, items, author, changed"
Result = TypeVar("Result")


class BoardItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A counter on a board, and how it is shown."""

    counter: Annotated[str, Meta(description="Name of the counter.")]
    days: Annotated[
        Days, Meta(description="Number of last days that are shown, today included; null for all.")
    ] = 30
    width: Annotated[
        Width, Meta(description="Width on a large screen, as part of the board's width.")
    ] = "half"
    top: Annotated[
        int, Meta(ge=0, le=MAX_TOP, description="Number of keys that are listed, largest first.")
    ] = 0
    cumulative: Annotated[bool, Meta(description="Whether the chart has running totals.")] = False


@dataclass(frozen=True, slots=True)
class Board:
    """A board.

    Attributes:
        name: its name.
        items: its counters, in the order in which they are shown.
        author: name of the API key that created it or changed it last; empty if that was done
            without a key, as on the command line.
        changed: time of the creation or of the last change, a naive datetime in UTC.
    """

    name: str
    items: tuple[BoardItem, ...]
    author: str
    changed: datetime


def create(session: Session, name: str, items: Sequence[BoardItem], author: str = "") -> Board:
    """Create a board, and return it.

    Args:
        session: a session outside a transaction.
        name: a name that :data:`NAME` matches and no board has.
        items: 1 to :data:`MAX_ITEMS` items.
        author: name of the API key that creates it; empty if it is created without a key.

    Raises:
        ValueError: ``name`` does not match, or the number of items is wrong.
        UnknownCounter: the counter of an item does not exist.
        BoardRefused: a board has this name already, or there are :data:`MAX_BOARDS` boards already.
    """
    if NAME.fullmatch(name) is None:
        raise ValueError(
            f"board name {name[:80]!r}: use 1 to 64 characters of A-Z a-z 0-9 _ . : - that begin"
            " with a letter or digit"
        )

    def insert() -> Board:
        text = _checked(session, items)
        ((boards,),) = session.query("SELECT COUNT(*) FROM board")
        if boards >= MAX_BOARDS:
            raise BoardRefused(f"the maximum of {MAX_BOARDS:,} boards is reached: delete some")
        made = session.execute(
            f"INSERT IGNORE INTO board ({_COLUMNS}) VALUES (%s, %s, %s, UTC_TIMESTAMP(3))",
            (name, text, author),
        )
        if not made:
            problem = f"there is a board {name!r} already: change it, or choose another name"
            raise BoardRefused(problem)
        return show(session, name)

    return in_turn(session, insert)


def change(session: Session, name: str, items: Sequence[BoardItem], author: str = "") -> Board:
    """Replace the items and the author of a board, and return the board. Links to it then show the
    new items.

    Args:
        session: a session outside a transaction.
        name: name of the board.
        items: 1 to :data:`MAX_ITEMS` items, in place of all present ones.
        author: name of the API key that changes it; empty if it is changed without a key.

    Raises:
        NoSuchBoard: no board has this name.
        ValueError: the number of items is wrong.
        UnknownCounter: the counter of an item does not exist.
    """

    def update() -> Board:
        show(session, name)
        session.execute(
            "UPDATE board SET items = %s, author = %s, changed = UTC_TIMESTAMP(3) WHERE name = %s",
            (_checked(session, items), author, name),
        )
        changed = show(session, name)
        session.execute(
            "UPDATE api_key SET counters = %s WHERE scopes = 'share' AND board = %s",
            (json.dumps(counters_of(changed)), name),
        )
        return changed

    return in_turn(session, update)


def delete(session: Session, name: str) -> None:
    """Delete a board, and all links to it.

    Args:
        session: a session outside a transaction.
        name: name of the board.

    Raises:
        NoSuchBoard: no board has this name.
    """

    def remove() -> None:
        show(session, name)
        session.execute("DELETE FROM board WHERE name = %s", (name,))
        session.execute("DELETE FROM api_key WHERE scopes = 'share' AND board = %s", (name,))

    in_turn(session, remove)


def in_turn(session: Session, work: Callable[[], Result]) -> Result:
    """Run ``work`` in a transaction during which nobody else changes boards or creates links to
    them, and no counter is deleted. Commit, and return the result of ``work``.

    Transactions of this function run one after another, because each takes the exclusive lock on
    the row of version 1 in ``schema_version``; workers do not lock this row. Each also takes the
    share lock on the control row, as workers do. The deletion of a counter takes the exclusive lock
    on the control row, so it waits.

    Args:
        session: a session outside a transaction.
        work: called without arguments in the transaction, and uses ``session``. Called again in a
            new transaction after a conflict with another transaction, a few times.
    """

    def locked() -> Result:
        session.query("SELECT 1 FROM schema_version WHERE version = 1 FOR UPDATE")
        read_control(session)
        return work()

    with short_waits(session):  # who needs the control row alone waits for this transaction
        return rerun_transaction(session, locked)


def show(session: Session, name: str) -> Board:
    """Return a board.

    Raises:
        NoSuchBoard: no board has this name.
    """
    if NAME.fullmatch(name):
        for row in session.query(f"SELECT {_COLUMNS} FROM board WHERE name = %s", (name,)):
            return _board(row)
    raise NoSuchBoard(f"there is no board {name[:80]!r}")


def list_boards(session: Session) -> list[Board]:
    """Return all boards, ordered by name."""
    return list(map(_board, session.query(f"SELECT {_COLUMNS} FROM board ORDER BY name")))


def counters_of(board: Board) -> list[str]:
    """Return the names of a board's counters, each once, in the order of the items."""
    return list(dict.fromkeys(item.counter for item in board.items))


def _checked(session: Session, items: Sequence[BoardItem]) -> str:
    """Check the number and the counters of a board's items, and return the items as JSON text for
    the table. Raises ValueError if the number of items is wrong, and UnknownCounter if a counter
    does not exist."""
    if not 1 <= len(items) <= MAX_ITEMS:
        raise ValueError(f"a board has 1 to {MAX_ITEMS} items")
    for counter in dict.fromkeys(item.counter for item in items):
        require(session, counter)
    return msgspec.json.encode(items).decode()


def _board(row: Sequence[Any]) -> Board:
    name, items, *others = row
    return Board(name, msgspec.json.decode(items, type=tuple[BoardItem, ...]), *others)
