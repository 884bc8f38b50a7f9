"""Links that show one counter or one board to anyone who has them (``countersink link``, the button
Share). This module creates, lists and revokes them. See ``store/api_keys.py`` for their tokens.

A link is a row of the table ``api_key``. Its scope is ``share``, and its ``counters`` are one
counter, or those of a board. It is looked up like an API key. The column ``parent`` has the id of
the API key that created the link; when that key expires or is revoked, the link ends, too.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from countersink.counting.counters.all_counters import known_names
from countersink.database.session import Session, rerun_transaction
from countersink.runtime.limits import is_name
from countersink.runtime.texts import plural
from countersink.store import api_keys, boards
from countersink.store.api_keys import LIVE, VALID
from countersink.store.errors import BoardRefused, NoSuchLink, TooManyLinks

MAX_LINKS: Final = 1_000
"""Maximum of valid links. Every process of the HTTP interface has them all in memory."""
MAX_LINKS_OF_KEY: Final = 100
"""Maximum of valid links of one API key, so that other keys can create links, too."""
MAX_DAYS: Final = 366
"""Maximum of days until a link ends."""
PAGE: Final = "/shared"
"""Path of the page that shows a link's counter or board."""


@dataclass(frozen=True, slots=True)
class ShareLink:
    """A valid link without its secret. All times are naive datetimes in UTC.

    Attributes:
        id: the public part of the link's token.
        counter: the counter that the link shows; empty if it shows a board.
        board: name of the board that the link shows; empty if it shows one counter.
        api_key: id of the API key that created the link, and with which it ends; empty if no key
            was used, as on the command line.
        created: time of creation.
        expires: time at which the link ends, in whole seconds.
    """

    id: str
    counter: str
    board: str
    api_key: str
    created: datetime
    expires: datetime


def create(
    session: Session, counter: str, expires: datetime, /, *, api_key: str = ""
) -> tuple[ShareLink, str]:
    """Create a link to a counter, and delete all links that have expired.

    Args:
        session: a session outside a transaction.
        counter: name of the counter that the link shows; it need not exist.
        expires: an aware datetime in the future, at most :data:`MAX_DAYS` days ahead.
        api_key: id of the API key that creates the link, and with which the link ends; empty if it
            is created without a key.

    Returns:
        the link, and its token. The database keeps only a hash of the token's secret.

    Raises:
        ValueError: ``counter`` is no valid name, or ``expires`` is not as described above.
        TooManyLinks: there are :data:`MAX_LINKS` valid links, or :data:`MAX_LINKS_OF_KEY` valid
            links of this API key.
    """
    if not is_name(counter):
        raise ValueError("a link shows one counter, whose name has 1 to 64 of A-Z a-z 0-9 _ . : -")
    # In one transaction: nobody can revoke the link before it is read.
    return rerun_transaction(session, lambda: _create(session, [counter], expires, api_key))


def create_to_board(
    session: Session, board: str, expires: datetime, /, *, api_key: str = ""
) -> tuple[ShareLink, str]:
    """Create a link to a board, and delete all links that have expired. The link always shows the
    present counters of the board, and ends when the board is deleted.

    Args:
        session: a session outside a transaction.
        board: name of the board.
        expires: an aware datetime in the future, at most :data:`MAX_DAYS` days ahead.
        api_key: id of the API key that creates the link, and with which the link ends; empty if it
            is created without a key.

    Returns:
        the link, and its token.

    Raises:
        NoSuchBoard: no board has this name.
        BoardRefused: a counter of the board was deleted.
        ValueError: ``expires`` is in the past, or more than :data:`MAX_DAYS` days ahead.
        TooManyLinks: there are :data:`MAX_LINKS` valid links, or :data:`MAX_LINKS_OF_KEY` valid
            links of this API key.
    """

    def make() -> tuple[ShareLink, str]:
        counters = boards.counters_of(boards.show(session, board))
        deleted = sorted(set(counters) - known_names(session, counters))
        if deleted:
            raise BoardRefused(
                f"the board shows {', '.join(deleted)}, which was deleted: change the board first"
            )
        return _create(session, counters, expires, api_key, board)

    # A change of the board has to find the link, and so has the deletion of a counter.
    return boards.in_turn(session, make)


def _create(
    session: Session, counters: list[str], expires: datetime, api_key: str, board: str = ""
) -> tuple[ShareLink, str]:
    ahead = expires - datetime.now(UTC)
    if not 0 < ahead.total_seconds() <= MAX_DAYS * 86_400:
        raise ValueError(f"a link ends in the future, within {MAX_DAYS} days")
    session.execute("DELETE FROM api_key WHERE scopes = 'share' AND expires < UTC_TIMESTAMP(3)")
    ((valid, of_key),) = session.query(
        "SELECT COUNT(*), COALESCE(SUM(parent = %s), 0) FROM api_key"
        f" WHERE scopes = 'share' AND {VALID}",
        (api_key,),
    )
    if valid >= MAX_LINKS or (api_key and of_key >= MAX_LINKS_OF_KEY):
        own = f"this key has {plural(of_key, 'link')} (at most {MAX_LINKS_OF_KEY:,}); "
        raise TooManyLinks(
            f"{own if api_key else ''}there are {plural(valid, 'link')} in all (at most"
            f" {MAX_LINKS:,}): revoke some, or wait for their end"
        )
    ends = expires.replace(microsecond=0)
    id, shown, _ = api_keys.insert(
        session, "a link", ("share",), counters, ends, parent=api_key, board=board
    )
    return _links(session, "id = %s", id)[0], f"cl_{shown}"


def path_of(link: ShareLink, token: str) -> str:
    """Return the path (:data:`PAGE`) and fragment of a link's URL, to append to the address of the
    HTTP interface: ``/shared#/counter/NAME?link=TOKEN``, or ``/shared#/board/NAME?link=TOKEN``.

    The token is in the fragment (after the ``#``). Browsers do not send the fragment, so no proxy
    logs the token.
    """
    kind, name = ("board", link.board) if link.board else ("counter", link.counter)
    return f"{PAGE}#/{kind}/{quote(name, safe='')}?link={token}"


def list_links(session: Session) -> list[ShareLink]:
    """Return the valid links, ordered by the time at which they expire, the latest first. A link is
    valid until it expires, or until the API key that created it expires or is revoked."""
    return _links(session, VALID)


def revoke(session: Session, id: str) -> None:
    """End a link for good: delete its row.

    Args:
        session: a session outside a transaction.
        id: the link's id.

    Raises:
        NoSuchLink: no link has this id, or it has expired. A link that has not expired is deleted
            even if its API key has ended.
    """
    if not id.isascii() or not _revoke(session, "id = %s", id):
        raise NoSuchLink("no valid link has this id")


def revoke_all(session: Session) -> int:
    """Delete the rows of all links that have not expired, and return the number of these links.
    Links that have ended because their API key has ended are deleted and counted, too.
    """
    return _revoke(session, "TRUE")


def _links(session: Session, condition: str, *args: object) -> list[ShareLink]:
    counter = "COALESCE(JSON_UNQUOTE(JSON_EXTRACT(counters, '$[0]')), '')"
    rows = session.query(
        f"SELECT id, IF(board = '', {counter}, ''), board, parent, created, expires FROM api_key"
        f" WHERE scopes = 'share' AND {condition} ORDER BY expires DESC, id",
        args,
    )
    return [ShareLink(*row) for row in rows]


def _revoke(session: Session, condition: str, *args: object) -> int:
    # The rows are deleted, as every process reads the whole table every two seconds.
    return session.execute(
        f"DELETE FROM api_key WHERE scopes = 'share' AND {condition} AND {LIVE}", args
    )
