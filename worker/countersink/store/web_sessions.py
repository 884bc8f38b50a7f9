"""Logins to the dashboard: a random token in a cookie, of which only the hash is kept."""

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Final

from countersink.store.connection import Session

PER_KEY: Final = 100
"""Logins with one key at a time; the oldest end when there are more."""
_TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSession:
    """A login.

    Attributes:
        token_hash: SHA-256 of the token.
        api_key: id of the key that it was made with; it ends with that.
        expires_in: seconds, on the database's clock.
    """

    token_hash: bytes = field(repr=False)
    api_key: str
    expires_in: float


def hash_of(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def create(session: Session, api_key: str, seconds: float) -> str:
    """Begin a login, and forget those that have ended; the token, which is kept nowhere.

    Args:
        session: outside a transaction.
        api_key: id of the key that was shown.
        seconds: how long it lasts at most.
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    session.execute("DELETE FROM web_session WHERE expires <= UTC_TIMESTAMP(3)")
    there = session.query("SELECT COUNT(*) FROM web_session WHERE api_key = %s", (api_key,))
    surplus = int(there[0][0]) - (PER_KEY - 1)
    if surplus > 0:
        session.execute(
            "DELETE FROM web_session WHERE api_key = %s ORDER BY created, token_hash LIMIT %s",
            (api_key, surplus),
        )
    session.execute(
        "INSERT INTO web_session (token_hash, api_key, created, expires)"
        " VALUES (%s, %s, UTC_TIMESTAMP(3), UTC_TIMESTAMP(3) + INTERVAL %s MICROSECOND)",
        (hash_of(token), api_key, round(seconds * 1e6)),
    )
    return token


def end(session: Session, token_hash: bytes) -> bool:
    """End a login; False where there was none."""
    return session.execute("DELETE FROM web_session WHERE token_hash = %s", (token_hash,)) == 1


def live(session: Session) -> list[LiveSession]:
    """All that have not ended; the keys that they were made with may have."""
    rows = session.query(
        "SELECT token_hash, api_key, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), expires)"
        " FROM web_session WHERE expires > UTC_TIMESTAMP(3)"
    )
    return [
        LiveSession(token_hash=bytes(row[0]), api_key=row[1], expires_in=int(row[2]) / 1e6)
        for row in rows
    ]
