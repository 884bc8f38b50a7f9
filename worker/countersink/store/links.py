"""Links that show one counter (``countersink link``, Share): most links, longest life, revoking,
links of a counter that is deleted, and error messages; the form of tokens: ``store/api_keys.py``.

A link is a row of ``api_key`` with the scope ``share`` and one counter, found like a key. Its
``parent`` is the key that made it, with which it ends.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from countersink.counting.counters.deletion_sql import LINKED_COUNTER
from countersink.database.session import Session
from countersink.runtime.limits import is_name
from countersink.store import api_keys
from countersink.store.api_keys import LIVE, VALID
from countersink.store.errors import NoSuchLink, TooManyLinks

MOST: Final = 1_000
"""Links that are valid at a time: every process of the HTTP interface holds them in memory."""
MOST_OF_KEY: Final = 100
"""The same of those that one key has made: others find room beside them."""
MOST_DAYS: Final = 366
"""Days until a link ends, at most."""
PAGE: Final = "/shared"
"""Path of the page that shows what a link shows."""


@dataclass(frozen=True, slots=True)
class ShareLink:
    """A valid link, without its secret. All times are naive UTC.

    Attributes:
        id: names it.
        counter: what it shows.
        api_key: id of the key that made it, with which it ends; empty: the command line has.
        created, expires: the latter to the second.
    """

    id: str
    counter: str
    api_key: str
    created: datetime
    expires: datetime


def create(
    session: Session, counter: str, expires: datetime, *, api_key: str = ""
) -> tuple[ShareLink, str]:
    """Make a link.

    Args:
        session: outside a transaction.
        counter: what it shows.
        expires: aware, to come, and at most :data:`MOST_DAYS` ahead.
        api_key: id of the key it is made with; empty: none.

    Returns:
        the link, and its token, of which only a hash is kept.

    Raises:
        ValueError: an argument is not as above.
        TooManyLinks: there are :data:`MOST` already, or :data:`MOST_OF_KEY` that this key has made.
    """
    if not is_name(counter):
        raise ValueError("a link shows a counter: its name has 1 to 64 of A-Z a-z 0-9 _ . : -")
    ahead = expires - datetime.now(UTC)
    if not 0 < ahead.total_seconds() <= MOST_DAYS * 86_400:
        raise ValueError(f"a link ends in the future, and within {MOST_DAYS} days")
    session.execute("DELETE FROM api_key WHERE scopes = 'share' AND expires < UTC_TIMESTAMP(3)")
    ((valid, own),) = session.query(
        "SELECT COUNT(*), COALESCE(SUM(parent = %s), 0) FROM api_key"
        f" WHERE scopes = 'share' AND {VALID}",
        (api_key,),
    )
    if valid >= MOST or (api_key and own >= MOST_OF_KEY):
        raise TooManyLinks(
            f"there are {own:,} links of this key, of {MOST_OF_KEY:,}, and {valid:,} in all, of"
            f" {MOST:,}: revoke some, or let them end"
        )
    ends = expires.replace(microsecond=0)
    id, shown, _ = api_keys.insert(session, "a link", ("share",), (counter,), ends, parent=api_key)
    return _links(session, "id = %s", id)[0], f"cl_{shown}"


def path_of(counter: str, token: str) -> str:
    """What stands behind the address of the HTTP interface in a link.

    The token is behind the ``#``, which browsers send to nobody: no proxy's log has it.
    """
    return f"{PAGE}#/counter/{quote(counter, safe='')}?link={token}"


def list_links(session: Session) -> list[ShareLink]:
    """The links that are valid, those first that end last."""
    return _links(session, VALID)


def revoke(session: Session, id: str) -> None:
    """End a link for good.

    Raises:
        NoSuchLink: none that is valid has this id.
    """
    if not id.isascii() or not _revoke(session, "id = %s", id):
        raise NoSuchLink("no link that is valid has this id")


def revoke_all(session: Session) -> int:
    """End all links for good; how many were valid."""
    return _revoke(session, "TRUE")


def _links(session: Session, which: str, *args: object) -> list[ShareLink]:
    rows = session.query(
        f"SELECT id, {LINKED_COUNTER}, parent, created, expires FROM api_key"
        f" WHERE scopes = 'share' AND {which} ORDER BY expires DESC, id",
        args,
    )
    return [ShareLink(*row) for row in rows]


def _revoke(session: Session, which: str, *args: object) -> int:
    # Deleted, as every process reads the whole table every two seconds.
    return session.execute(
        f"DELETE FROM api_key WHERE scopes = 'share' AND {which} AND {LIVE}", args
    )
