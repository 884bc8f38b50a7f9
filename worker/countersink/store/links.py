"""Links that show one counter (``countersink link``, Share): form and signature of tokens, most
links, longest life, revoking, and error messages.

A link's token reads ``cl_<content>.<signature>``. The content is base64url of ``id.end.counter``,
the end in Unix seconds; the signature is base64url of the HMAC-SHA256 of the content as written.
Each link is signed with a secret of its own, so that each can be revoked alone.
"""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from countersink.runtime.limits import is_name
from countersink.store.api_keys import ID_LETTERS, random_id
from countersink.store.connection import Session
from countersink.store.errors import NoSuchLink, TooManyLinks

MOST: Final = 1_000
"""Links that are valid at a time: every process of the HTTP interface holds them in memory."""
MOST_DAYS: Final = 366
"""Days until a link ends, at most."""
PAGE: Final = "/shared"
"""Path of the page that shows what a link shows."""
PREFIX: Final = "cl_"
_ID_LENGTH: Final = 12
_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(r"cl_([A-Za-z0-9_-]{1,160})\.([A-Za-z0-9_-]{43})", re.ASCII)
_CONTENT: Final = re.compile(rf"([{ID_LETTERS}]{{1,16}})\.([0-9]{{1,12}})\.(.+)", re.ASCII)
_COLUMNS: Final = "l.id, l.counter, l.api_key, l.created, l.expires, l.revoked"
_LIVE: Final = (
    "share_link AS l LEFT JOIN api_key AS k ON k.id = l.api_key"
    " WHERE l.revoked IS NULL AND l.expires > UTC_TIMESTAMP(3) AND (l.api_key = ''"
    " OR (k.revoked IS NULL AND k.id IS NOT NULL"
    " AND (k.expires IS NULL OR k.expires > UTC_TIMESTAMP(3))))"
)


@dataclass(frozen=True, slots=True)
class ShareLink:
    """A link, without what it is signed with. All times are naive UTC.

    Attributes:
        id: names it.
        counter: what it shows.
        api_key: id of the key that made it, with which it ends; empty: the command line has.
        created, expires: to the second.
        revoked: None: it was not.
    """

    id: str
    counter: str
    api_key: str
    created: datetime
    expires: datetime
    revoked: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLink:
    """A valid link with its secret.

    Attributes:
        id, counter: as of :class:`ShareLink`.
        secret: what it is signed with.
        expires_in: seconds, on the database's clock.
    """

    id: str
    counter: str
    secret: bytes = field(repr=False)
    expires_in: float


@dataclass(frozen=True, slots=True)
class Claim:
    """What a token says, which is to be believed only where :meth:`signed_with` says so."""

    id: str
    ends: int
    counter: str
    _content: str
    _signature: str = field(repr=False)

    def signed_with(self, secret: bytes) -> bool:
        """Whether it is signed with this secret; takes the same time whatever the signature is."""
        return hmac.compare_digest(_signature(secret, self._content), self._signature)


def claim_of(token: str) -> Claim | None:
    """What a token says; None where it is none."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    try:
        padded = match[1] + "=" * (-len(match[1]) % 4)
        content = base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
    except ValueError:
        return None
    said = _CONTENT.fullmatch(content)
    if said is None or not is_name(said[3]):
        return None
    return Claim(said[1], int(said[2]), said[3], match[1], match[2])


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
        the link, and its token, which is kept nowhere.

    Raises:
        ValueError: an argument is not as above.
        TooManyLinks: there are :data:`MOST` already.
    """
    if not is_name(counter):
        raise ValueError("a link shows a counter: its name has 1 to 64 of A-Z a-z 0-9 _ . : -")
    if expires.tzinfo is None:
        raise ValueError("the time at which a link ends has a time zone")
    ahead = expires - datetime.now(UTC)
    if not 0 < ahead.total_seconds() <= MOST_DAYS * 86_400:
        raise ValueError(f"a link ends in the future, and within {MOST_DAYS} days")
    ends = int(expires.timestamp())
    session.execute("DELETE FROM share_link WHERE expires < UTC_TIMESTAMP(3) - INTERVAL 30 DAY")
    if int(session.query(f"SELECT COUNT(*) FROM {_LIVE}")[0][0]) >= MOST:
        raise TooManyLinks(f"there are {MOST:,} links already: revoke some, or let them end")
    id = random_id(_ID_LENGTH)
    secret = secrets.token_bytes(_SECRET_BYTES)
    session.execute(
        "INSERT INTO share_link (id, secret, counter, api_key, created, expires)"
        " VALUES (%s, %s, %s, %s, UTC_TIMESTAMP(3), %s)",
        (id, secret, counter, api_key, datetime.fromtimestamp(ends, UTC).replace(tzinfo=None)),
    )
    content = _encoded(f"{id}.{ends}.{counter}".encode())
    return _found(session, id), f"{PREFIX}{content}.{_signature(secret, content)}"


def path_of(counter: str, token: str) -> str:
    """What stands behind the address of the HTTP interface in a link.

    The token is behind the ``#``, which browsers send to nobody: no proxy's log has it.
    """
    return f"{PAGE}#/counter/{quote(counter, safe='')}?link={token}"


def list_links(session: Session) -> list[ShareLink]:
    """The links that are valid, those first that end last."""
    rows = session.query(f"SELECT {_COLUMNS} FROM {_LIVE} ORDER BY l.expires DESC, l.id")
    return [ShareLink(*row) for row in rows]


def revoke(session: Session, id: str) -> ShareLink:
    """End a link for good.

    Raises:
        NoSuchLink: none that is valid has this id.
    """
    with session.transaction():
        rows = session.query(
            "SELECT 1 FROM share_link WHERE id = %s AND revoked IS NULL"
            " AND expires > UTC_TIMESTAMP(3) FOR UPDATE",
            (id if id.isascii() else "",),
        )
        if not rows:
            raise NoSuchLink("no link that is valid has this id")
        session.execute("UPDATE share_link SET revoked = UTC_TIMESTAMP(3) WHERE id = %s", (id,))
        return _found(session, id)


def revoke_all(session: Session) -> int:
    """End all links for good; how many were valid."""
    return session.execute(
        "UPDATE share_link SET revoked = UTC_TIMESTAMP(3)"
        " WHERE revoked IS NULL AND expires > UTC_TIMESTAMP(3)"
    )


def live(session: Session) -> list[LiveLink]:
    """All that have neither ended nor been revoked, nor the keys that they were made with."""
    rows = session.query(
        "SELECT l.id, l.counter, l.secret,"
        f" TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), l.expires) FROM {_LIVE}"
    )
    return [
        LiveLink(id=id, counter=counter, secret=bytes(secret), expires_in=int(left) / 1e6)
        for id, counter, secret, left in rows
    ]


def _found(session: Session, id: str) -> ShareLink:
    (row,) = session.query(f"SELECT {_COLUMNS} FROM share_link AS l WHERE l.id = %s", (id,))
    return ShareLink(*row)


def _signature(secret: bytes, content: str) -> str:
    return _encoded(hmac.new(secret, content.encode("ascii"), hashlib.sha256).digest())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")
