"""API keys, with their scopes (``SCOPES``), and logins to the dashboard. This module creates,
lists, checks and revokes them. See ``store/links.py`` for links, which are rows of the same table.

A key has the form ``ck_<id>_<secret>``, and the token of a link has the form ``cl_<id>_<secret>``.
The id is public. The database has only hashes: of the secrets, and of the tokens that the cookies
of logins contain. A secret has 256 random bits, so a plain SHA-256 is enough. A slow hash would
only help for secrets that can be guessed.
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
"""Scopes that a key can have. ``ingest``: add to counters and take numbers of sequences. ``read``:
see totals and the system's state. ``admin``: all of this, and changes, such as of dead letters. A
link has only the scope ``share``, which no key has."""

MAX_NAME: Final = 255
MAX_PATTERNS: Final = 100
MAX_COUNTERS: Final = 1_000_000
"""Maximum of counters that a key can be allowed to create."""
_ID_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
"""The letters and digits of ids, without those that look alike."""
_ID_LENGTH: Final = 10
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(r"c[kl]_([a-z0-9]{1,16})_([A-Za-z0-9_-]{43})", re.ASCII)
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:*?!\[\]-]{1,64}", re.ASCII)
_COLUMNS: Final = (
    "id, name, scopes, counters, max_counters, created, expires, revoked, last_used, board"
)
_IS_KEY: Final = "scopes <> 'share'"
LIVE: Final = "revoked IS NULL AND (expires IS NULL OR expires > UTC_TIMESTAMP(3))"
"""SQL condition for rows of keys and links that are neither revoked nor expired."""
VALID: Final = f"{LIVE} AND (parent = '' OR parent IN (SELECT id FROM api_key WHERE {LIVE}))"
"""SQL condition for rows of :data:`LIVE`, except links whose key is revoked or expired."""
_NO_KEY: Final = f"NOT EXISTS (SELECT 1 FROM api_key WHERE {_IS_KEY} AND {LIVE})"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key or a link, without its secret. All times are naive datetimes in UTC.

    Attributes:
        id: the public part of the key or token.
        name: a name for people.
        scopes: what the key may do; ``share`` alone for a link; empty if the row was edited by hand
            and cannot be read.
        counters: shell patterns for the names of counters that the key may use; empty for all. Of a
            link, the names of the counters that it shows.
        max_counters: maximum number of different counters that the key may count in, and also of
            different sequences that it may use, from the start of a web server to its end; None for
            the server's own limit.
        created: time of creation.
        expires: time at which the key expires; None if it never expires.
        revoked: time at which the key was revoked; None if it was not revoked.
        last_used: time of the last use, exact to about a minute; None if it was never used.
        board: name of the board that a link shows; empty for a link to a counter and for an API
            key.
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
    board: str

    @property
    def is_link(self) -> bool:
        """Whether this is a link. The ``counters`` of a link are names and not patterns."""
        return self.scopes == ("share",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveKey:
    """A valid key or link, with the hash of its secret.

    Attributes:
        key: the key or link.
        hash: SHA-256 of the secret.
        expires_in: seconds until the key expires, by the database's clock; None if it never
            expires.
    """

    key: ApiKey
    hash: bytes = field(repr=False)
    expires_in: float | None


def parse(text: str) -> tuple[str, bytes] | None:
    """Return the id and the hash of the secret of a key, or of a link's token. Return None if
    ``text`` has neither form.
    """
    match = _KEY.fullmatch(text)
    return None if match is None else (match[1], hash_of(match[2]))


def hash_of(secret: str) -> bytes:
    """Return the SHA-256 of the secret of a key or link, or of the token of a login."""
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
    """Create an API key.

    Args:
        session: a session outside a transaction.
        name: a name for people: 1 to 255 printable characters, without spaces at its ends. Several
            keys may have the same.
        scopes: one or more of :data:`SCOPES`.
        counters: at most 100 shell patterns for the names of counters that the key may use; empty
            for all.
        max_counters: maximum number of different counters that the key may count in, and also of
            different sequences that it may use, from the start of a web server to its end: 1 to
            :data:`MAX_COUNTERS`; None for the server's own limit.
        expires: an aware datetime in the future; None if the key never expires.

    Returns:
        the key without its secret, and the text of the key. The text is shown to the key's owner
        once, and is stored nowhere.

    Raises:
        ValueError: an argument is not as described above.
    """
    wanted = set(scopes)
    chosen = tuple(scope for scope in SCOPES if scope in wanted)
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        raise ValueError(
            f"a key's name has 1 to {MAX_NAME} printable characters, without spaces at its ends"
        )
    if not wanted or not wanted <= set(SCOPES):
        raise ValueError(f"a key has one or more of the scopes {', '.join(SCOPES)}")
    if len(counters) > MAX_PATTERNS:
        raise ValueError(f"a key has at most {MAX_PATTERNS} patterns of counter names")
    for pattern in counters:
        check_pattern(pattern)
    if max_counters is not None and not 1 <= max_counters <= MAX_COUNTERS:
        raise ValueError(f"a key may create 1 to {MAX_COUNTERS:,} counters")
    if expires is not None and expires <= datetime.now(UTC):
        raise ValueError("the time at which a key expires is in the past")
    id, shown, _ = insert(session, name, chosen, counters, expires, max_counters=max_counters)
    made = _key(session.query(f"SELECT {_COLUMNS} FROM api_key WHERE id = %s", (id,))[0])
    return made, f"ck_{shown}"


def create_first(session: Session, name: str) -> str | None:
    """Create a key with the scope ``admin``, for a web server that has none, and return its text.
    If any valid key exists already, whatever its scopes, create none and return None. Links are no
    keys here.
    """
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
    board: str = "",
    condition: str = "TRUE",
) -> tuple[str, str, bool]:
    """Insert the row of a key or a link, with a new secret, if an SQL condition holds.

    Args:
        session: a session.
        name, scopes, counters, expires, max_counters: as for :func:`create`, but not checked. A
            link has the scope ``share``; its ``counters`` are names of counters, not patterns.
        parent: id of the key that creates a link; empty if there is none.
        board: name of the board that a link shows; empty if it shows one counter.
        condition: the SQL condition, such as that no valid key exists.

    Returns:
        the row's id; the text ``<id>_<secret>``, to which the caller prefixes ``ck_`` or ``cl_``
        and whose secret is stored only as a hash; and whether the row was inserted. If it was not,
        nothing has this id or secret.
    """
    id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    ends = None if expires is None else expires.astimezone(UTC).replace(tzinfo=None)
    made = session.execute(
        "INSERT INTO api_key"
        " (id, name, hash, scopes, counters, max_counters, parent, board, created, expires)"
        " SELECT %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(3), %s FROM DUAL"
        f" WHERE {condition}",
        (
            *(id, name, hash_of(secret), ",".join(scopes), json.dumps(list(counters))),
            *(max_counters, parent, board, ends),
        ),
    )
    return id, f"{id}_{secret}", made == 1


def list_keys(session: Session) -> list[ApiKey]:
    """Return all keys that were ever created, revoked and expired ones, too, the newest first.
    Links are not among them.
    """
    rows = session.query(
        f"SELECT {_COLUMNS} FROM api_key WHERE {_IS_KEY} ORDER BY created DESC, id"
    )
    return [_key(row) for row in rows]


def revoke(session: Session, id_or_name: str) -> ApiKey:
    """Revoke a key for good, and delete the logins with it. Links that it created end with it.

    Args:
        session: a session outside a transaction.
        id_or_name: the id or the name of the key. If a key in use has this id, that key is
            revoked, even if other keys have it as their name.

    Returns:
        the revoked key.

    Raises:
        NoSuchKey: no key that is not revoked has this id or name, or several such keys have the
            name.
    """
    with session.transaction():
        rows = session.query(
            f"SELECT {_COLUMNS} FROM api_key WHERE (id = %s OR name = %s) AND {_IS_KEY}"
            " AND revoked IS NULL ORDER BY id FOR UPDATE",
            (id_or_name if id_or_name.isascii() else "", id_or_name),
        )
        keys = [_key(row) for row in rows]
        found = [key for key in keys if key.id == id_or_name] or keys
        if not found:
            raise NoSuchKey("no key in use has this id or name: see countersink key list")
        if len(found) > 1:
            ids = ", ".join(key.id for key in found)
            raise NoSuchKey(f"{len(found)} keys have this name: give the id of one of them ({ids})")
        id = found[0].id
        session.execute("UPDATE api_key SET revoked = UTC_TIMESTAMP(3) WHERE id = %s", (id,))
        session.execute("DELETE FROM web_session WHERE api_key = %s", (id,))
        return _key(session.query(f"SELECT {_COLUMNS} FROM api_key WHERE id = %s", (id,))[0])


def any_valid(session: Session) -> bool:
    """Return whether there is a key that is neither revoked nor expired. Links do not count."""
    return bool(session.query(f"SELECT 1 FROM api_key WHERE {_IS_KEY} AND {LIVE} LIMIT 1"))


def is_valid(session: Session, text: str) -> bool:
    """Return whether ``text`` is a key (not a link) that is neither revoked nor expired."""
    query = f"SELECT 1 FROM api_key WHERE id = %s AND hash = %s AND {_IS_KEY} AND {LIVE}"
    parts = parse(text)
    return parts is not None and bool(session.query(query, parts))


def live_keys(session: Session) -> list[LiveKey]:
    """Return all valid keys and links: those that are not revoked and not expired. Links whose
    creating key is revoked or expired are left out, too. Web servers keep the result in memory.
    """
    rows = session.query(
        f"SELECT {_COLUMNS}, hash, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), expires)"
        f" FROM api_key WHERE {VALID}"
    )
    return [
        LiveKey(key=_key(key), hash=hash, expires_in=None if left is None else int(left) / 1e6)
        for *key, hash, left in rows
    ]


def note_use(session: Session, ids: Iterable[str]) -> None:
    """Set the time of the last use of the keys and links with these ids to now. Web servers call
    this about once a minute, for the keys used since the last call.
    """
    for id in sorted(ids):
        session.execute("UPDATE api_key SET last_used = UTC_TIMESTAMP(3) WHERE id = %s", (id,))


def check_pattern(pattern: str) -> None:
    """Check a shell pattern for names of counters.

    Raises:
        ValueError: the pattern is empty or longer than 64 characters, or contains a character that
            is not one of ``A-Z a-z 0-9 _ . : - * ? [ ] !``.
    """
    if _PATTERN.fullmatch(pattern) is None:
        raise ValueError(
            f"{pattern!r} matches no counter: a pattern has 1 to 64 characters of"
            " A-Z a-z 0-9 _ . : - * ? [ ] !"
        )


def _key(row: Sequence[Any]) -> ApiKey:
    id, name, scopes, counters, *others = row
    patterns = json.loads(counters)  # the column accepts only JSON
    # Other values than texts must not mean "no restriction".
    readable = isinstance(patterns, list) and all(isinstance(each, str) for each in patterns)
    allowed = tuple(scope for scope in SCOPES if readable and scope in scopes.split(","))
    is_link = scopes == "share" and readable and (others[-1] or len(patterns) == 1)
    # An empty list would mean all counters. A name has no special characters of patterns: it
    # matches only itself.
    if is_link and patterns and all(map(is_name, patterns)):
        allowed = ("share",)
    return ApiKey(id, name, allowed, tuple(patterns) if readable else (), *others)


LOGINS_PER_KEY: Final = 100
"""Maximum of logins with one key. When there are more, the oldest ones end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSession:
    """A login to the dashboard that has not expired.

    Attributes:
        token_hash: SHA-256 of the token in the login's cookie.
        api_key: id of the key that was used to log in. The login ends when the key is revoked or
            expires.
        expires_in: seconds until the login expires, by the database's clock.
    """

    token_hash: bytes = field(repr=False)
    api_key: str
    expires_in: float


def begin_login(session: Session, api_key: str, seconds: float) -> str:
    """Begin a login, and return its token, which is stored nowhere. Delete expired logins. If the
    key then has more than :data:`LOGINS_PER_KEY` logins, delete its oldest ones, too.

    Args:
        session: a session outside a transaction.
        api_key: id of the key that was used to log in.
        seconds: duration of the login.
    """
    token = secrets.token_urlsafe(_SECRET_BYTES)
    session.execute("DELETE FROM web_session WHERE expires <= UTC_TIMESTAMP(3)")
    ((logins,),) = session.query("SELECT COUNT(*) FROM web_session WHERE api_key = %s", (api_key,))
    surplus = int(logins) - (LOGINS_PER_KEY - 1)
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
    """End the login whose token has this hash, and return True; return False if there is none."""
    return session.execute("DELETE FROM web_session WHERE token_hash = %s", (token_hash,)) == 1


def live_logins(session: Session) -> list[LiveSession]:
    """Return all logins that have not expired. The caller checks that their keys are valid."""
    rows = session.query(
        "SELECT token_hash, api_key, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), expires)"
        " FROM web_session WHERE expires > UTC_TIMESTAMP(3)"
    )
    return [
        LiveSession(token_hash=bytes(row[0]), api_key=row[1], expires_in=int(row[2]) / 1e6)
        for row in rows
    ]
