"""API keys and logins in the database: form of keys and of links' tokens, scopes (``SCOPES``),
limits of names, patterns and counters, expiry, revoking, logins per key, with error messages;
``store/links.py`` has links, which are rows of the same table.

Only hashes are kept of the keys' secrets, and of the random tokens that logins have in a cookie.

A key reads ``ck_<id>_<secret>``, a link's token ``cl_<id>_<secret>``. The id names it and is no
secret; the secret has 256 random bits, so that a plain SHA-256 of it is enough: there is nothing to
guess that a slow hash would protect.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from countersink.database.session import Session
from countersink.runtime.limits import is_name
from countersink.store.errors import NoSuchKey

Scope = Literal["ingest", "read", "admin", "share"]
SCOPES: Final[tuple[Scope, ...]] = ("ingest", "read", "admin")
"""Scopes of keys. ``ingest``: add to counters and take numbers. ``read``: see totals and the
system's state. ``admin``: both, and change what is there, such as dead letters. A link has the
scope ``share`` alone."""

MAX_NAME: Final = 255
MAX_PATTERNS: Final = 100
MAX_COUNTERS: Final = 1_000_000
"""Counters to which a key can be bound at most."""
_ID_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
"""Without those that look like another one."""
_ID_LENGTH: Final = 10
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(r"c[kl]_([a-z0-9]{1,16})_([A-Za-z0-9_-]{43})", re.ASCII)
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:*?!\[\]-]{1,64}", re.ASCII)
_COLUMNS: Final = "id, name, scopes, counters, max_counters, created, expires, revoked, last_used"
_IS_KEY: Final = "scopes <> 'share'"
LIVE: Final = "revoked IS NULL AND (expires IS NULL OR expires > UTC_TIMESTAMP(3))"
"""Condition: rows that are neither revoked nor expired."""
VALID: Final = f"{LIVE} AND (parent = '' OR parent IN (SELECT id FROM api_key WHERE {LIVE}))"
"""Condition: the same, without links whose key is revoked or expired."""
_NO_KEY: Final = f"NOT EXISTS (SELECT 1 FROM api_key WHERE {_IS_KEY} AND {LIVE})"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, or a link, without its secret. All times are naive UTC.

    Attributes:
        id: names it.
        name: for people.
        scopes: what it is for; none where its row cannot be read, since somebody has edited it.
        counters: shell patterns of the counters it may name; empty: all.
        max_counters: how many counters it may make at most; None: as many as the server allows.
        created, revoked, last_used: None: never; the last one is right to a minute or so.
        expires: None: never.
    """

    id: str
    name: str
    scopes: tuple[Scope, ...]
    counters: tuple[str, ...]
    max_counters: int | None
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    last_used: datetime | None

    @property
    def is_link(self) -> bool:
        """Whether it is a link to the one counter in ``counters``."""
        return self.scopes == ("share",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveKey:
    """A valid key or link with the hash of its secret.

    Attributes:
        key: the rest of it.
        hash: SHA-256 of the secret.
        expires_in: seconds, on the database's clock; None: never.
    """

    key: ApiKey
    hash: bytes = field(repr=False)
    expires_in: float | None


def split(text: str) -> tuple[str, bytes] | None:
    """The id in a key or a link's token, and the hash of its secret; None where it is neither."""
    match = _KEY.fullmatch(text)
    return None if match is None else (match[1], hash_of(match[2]))


def hash_of(secret: str) -> bytes:
    """What is kept of a secret, or of a login's token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def create(
    session: Session,
    name: str,
    scopes: Iterable[str],
    *,
    counters: Sequence[str] = (),
    max_counters: int | None = None,
    expires: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Make a key.

    Args:
        session: outside a transaction.
        name: for people: 1 to 255 printable characters.
        scopes: one or more of :data:`SCOPES`.
        counters: shell patterns of the counters that it may name; none: all.
        max_counters: how many counters it may make, up to :data:`MAX_COUNTERS`; None: as many as
            the server allows.
        expires: aware, and to come.

    Returns:
        the key, and the text that is shown to its owner once and kept nowhere.

    Raises:
        ValueError: an argument is not as above.
    """
    wanted = set(scopes)
    chosen = tuple(scope for scope in SCOPES if scope in wanted)
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        raise ValueError(
            f"a key's name has 1 to {MAX_NAME} printable characters, and no space at its ends"
        )
    if not wanted or not wanted <= set(SCOPES):
        raise ValueError(f"a key has one or more of the scopes {', '.join(SCOPES)}")
    if len(counters) > MAX_PATTERNS:
        raise ValueError(f"a key has at most {MAX_PATTERNS} patterns of counters")
    for pattern in counters:
        check_pattern(pattern)
    if max_counters is not None and not 1 <= max_counters <= MAX_COUNTERS:
        raise ValueError(f"a key may make 1 to {MAX_COUNTERS:,} counters")
    if expires is not None and expires <= datetime.now(UTC):
        raise ValueError("the time at which a key expires is in the past")
    id, shown, _ = insert(session, name, chosen, counters, expires, max_counters=max_counters)
    made = _key(session.query(f"SELECT {_COLUMNS} FROM api_key WHERE id = %s", (id,))[0])
    return made, f"ck_{shown}"


def create_first(session: Session, name: str) -> str | None:
    """Make a key that may do everything, if no key is valid; its text, None where one is."""
    _, shown, made = insert(session, name, ("admin",), (), None, condition=_NO_KEY)
    return f"ck_{shown}" if made else None


def insert(
    session: Session,
    name: str,
    scopes: Iterable[Scope],
    counters: Sequence[str],
    expires: datetime | None,
    *,
    max_counters: int | None = None,
    parent: str = "",
    condition: str = "TRUE",
) -> tuple[str, str, bool]:
    """Make a row with a secret, if ``condition`` (SQL) holds.

    Returns:
        Its id; ``<id>_<secret>``, of which only the hash is kept; whether it was made.
    """
    id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    ends = None if expires is None else expires.astimezone(UTC).replace(tzinfo=None)
    made = session.execute(
        "INSERT INTO api_key"
        " (id, name, hash, scopes, counters, max_counters, parent, created, expires)"
        " SELECT %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(3), %s FROM DUAL"
        f" WHERE {condition}",
        (
            *(id, name, hash_of(secret), ",".join(scopes), json.dumps(list(counters))),
            *(max_counters, parent, ends),
        ),
    )
    return id, f"{id}_{secret}", made == 1


def list_keys(session: Session) -> list[ApiKey]:
    """All keys that were ever made, the newest first."""
    rows = session.query(
        f"SELECT {_COLUMNS} FROM api_key WHERE {_IS_KEY} ORDER BY created DESC, id"
    )
    return [_key(row) for row in rows]


def revoke(session: Session, which: str) -> ApiKey:
    """End a key, and the logins that were made with it, for good.

    Args:
        session: outside a transaction.
        which: its id, or its name.

    Raises:
        NoSuchKey: no key that is not revoked has it, or more than one has the name.
    """
    with session.transaction():
        rows = session.query(
            f"SELECT {_COLUMNS} FROM api_key WHERE (id = %s OR name = %s) AND {_IS_KEY}"
            " AND revoked IS NULL ORDER BY id FOR UPDATE",
            (which if which.isascii() else "", which),
        )
        keys = [_key(row) for row in rows]
        found = [key for key in keys if key.id == which] or keys
        if not found:
            raise NoSuchKey("no key in use has this id or name: see countersink key list")
        if len(found) > 1:
            ids = ", ".join(key.id for key in found)
            raise NoSuchKey(f"{len(found)} keys have this name: say which by its id ({ids})")
        id = found[0].id
        session.execute("UPDATE api_key SET revoked = UTC_TIMESTAMP(3) WHERE id = %s", (id,))
        session.execute("DELETE FROM web_session WHERE api_key = %s", (id,))
        return _key(session.query(f"SELECT {_COLUMNS} FROM api_key WHERE id = %s", (id,))[0])


def any_valid(session: Session) -> bool:
    """Whether there is a key that is neither revoked nor expired."""
    return bool(session.query(f"SELECT 1 FROM api_key WHERE {_IS_KEY} AND {LIVE} LIMIT 1"))


def is_valid(session: Session, text: str) -> bool:
    """Whether ``text`` is a key that is neither revoked nor expired."""
    query = f"SELECT 1 FROM api_key WHERE id = %s AND hash = %s AND {_IS_KEY} AND {LIVE}"
    parts = split(text)
    return parts is not None and bool(session.query(query, parts))


def live(session: Session) -> list[LiveKey]:
    """All keys that are neither revoked nor expired, and the links of which the same is true, and
    of the key that each was made with."""
    rows = session.query(
        f"SELECT {_COLUMNS}, hash, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), expires)"
        f" FROM api_key WHERE {VALID}"
    )
    return [
        LiveKey(key=_key(key), hash=hash, expires_in=None if left is None else int(left) / 1e6)
        for *key, hash, left in rows
    ]


def note_use(session: Session, ids: Iterable[str]) -> None:
    """Write down that these keys were used about now."""
    for id in sorted(ids):
        session.execute("UPDATE api_key SET last_used = UTC_TIMESTAMP(3) WHERE id = %s", (id,))


def check_pattern(pattern: str) -> None:
    """Whether counters can fit a shell pattern.

    Raises:
        ValueError: none can.
    """
    if _PATTERN.fullmatch(pattern) is None:
        raise ValueError(
            f"{pattern!r} fits no counter: a pattern has 1 to 64 of A-Z a-z 0-9 _ . : -"
            " and of * ? [ ] !"
        )


def _key(row: Sequence[Any]) -> ApiKey:
    id, name, scopes, counters, *others = row
    patterns = json.loads(counters)  # the column takes nothing but JSON
    # Anything else than texts must not end up as no restriction at all.
    readable = isinstance(patterns, list) and all(isinstance(each, str) for each in patterns)
    allowed = tuple(scope for scope in SCOPES if readable and scope in scopes.split(","))
    if scopes == "share" and readable and len(patterns) == 1 and is_name(patterns[0]):
        allowed = ("share",)  # a name has no letters of patterns: it fits itself alone
    return ApiKey(id, name, allowed, tuple(patterns) if readable else (), *others)


LOGINS_PER_KEY: Final = 100
"""Logins with one key at a time; the oldest end when there are more."""


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


def begin_login(session: Session, api_key: str, seconds: float) -> str:
    """Begin a login, and forget those that have ended; the token, which is kept nowhere.

    Args:
        session: outside a transaction.
        api_key: id of the key that was shown.
        seconds: how long it lasts at most.
    """
    token = secrets.token_urlsafe(_SECRET_BYTES)
    session.execute("DELETE FROM web_session WHERE expires <= UTC_TIMESTAMP(3)")
    there = session.query("SELECT COUNT(*) FROM web_session WHERE api_key = %s", (api_key,))
    surplus = int(there[0][0]) - (LOGINS_PER_KEY - 1)
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


def end_login(session: Session, token_hash: bytes) -> bool:
    """End a login; False where there was none."""
    return session.execute("DELETE FROM web_session WHERE token_hash = %s", (token_hash,)) == 1


def live_logins(session: Session) -> list[LiveSession]:
    """All that have not ended; the keys that they were made with may have."""
    rows = session.query(
        "SELECT token_hash, api_key, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), expires)"
        " FROM web_session WHERE expires > UTC_TIMESTAMP(3)"
    )
    return [
        LiveSession(token_hash=bytes(row[0]), api_key=row[1], expires_in=int(row[2]) / 1e6)
        for row in rows
    ]
