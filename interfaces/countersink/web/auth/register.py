"""``Register`` has the valid keys, logins and links in memory, and reads them from MySQL every
``REFRESH_S`` seconds; it also writes when keys were last used. ``Identity`` has the scopes and
counters of a key, login or link.

A request with a known key does not wait for MySQL. While MySQL is away, known keys stay valid until
they expire, and cannot be revoked.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

import anyio

from countersink.database.errors import StoreError, Unavailable
from countersink.database.migrate import identity
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.store import Store, api_keys
from countersink.store.api_keys import SCOPES, Scope

LOGGER: Final = logging.getLogger("countersink.web")
REFRESH_S: Final = 2.0
"""Seconds between two reads. After this time at most, a revoked key is refused, and a new login is
known to other processes."""
READ_PAUSE_S: Final = 0.25
"""Minimum seconds from one read to the next for an unknown key, however many of these are sent."""
READ_WAIT_S: Final = 1.0
"""Maximum seconds that a request with an unknown key waits for a read."""
USE_S: Final = 60.0
"""Seconds between two writes of the times at which keys were last used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a request: its key, login or link, and what it may do.

    Attributes:
        key_id: id (the public part) of the API key, of the login's key or of the link; empty where
            there is none.
        name: name of the key; ``a link`` for a link; else ``everybody`` or ``nobody``.
        scopes: permitted scopes; ``admin`` includes the others. A link has ``read``.
        counters: shell patterns of the counters that it may name; empty for all.
        max_counters: maximum number of counters, and of sequences, that it may use while the server
            runs; None for the server's setting.
        public: True for :data:`NOBODY`, and if the key or login lacks the scope of a public route.
            It may then add to public counters only, 1 for each visit.
        session: hash of the login's cookie; empty where there is no login.
        link: id of the link, which may read ``counters`` only; empty where it is no link.
        board: name of the board that the link shows; empty where it shows one counter, and where
            there is no link.
    """

    key_id: str = ""
    name: str = ""
    scopes: frozenset[Scope] = frozenset()
    counters: tuple[str, ...] = ()
    max_counters: int | None = None
    public: bool = False
    session: bytes = field(default=b"", repr=False)
    link: str = ""
    board: str = ""

    def may(self, scope: Scope) -> bool:
        """Return whether the identity has ``scope``, or has ``admin``, which includes all
        scopes."""
        return scope in self.scopes or "admin" in self.scopes

    def may_name(self, counter: str) -> bool:
        """Return whether the identity may name a counter or sequence: one of the patterns in
        ``counters`` matches the name, or there are no patterns."""
        return not self.counters or any(fnmatchcase(counter, each) for each in self.counters)


EVERYBODY: Final = Identity(name="everybody", scopes=frozenset(SCOPES))
"""The identity of requests without a key if the server runs ``--without-keys``. It has all
rights."""

NOBODY: Final = Identity(name="nobody", public=True)
"""The identity of requests without a key on routes that are public or need no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A valid key, login or link.

    Attributes:
        identity: what its holder may do.
        hash: SHA-256 of its secret; of a login, of its cookie's token.
        ends: the time at which it expires, on the register's clock; infinite where it never does.
    """

    identity: Identity
    hash: bytes = field(repr=False)
    ends: float


class Register:
    """The valid keys, logins and links, in memory.

    Args:
        store: reads them from MySQL.
        mysql_url: URL of the database in which the times of last use are written.
        clock: returns the time in seconds.
    """

    def __init__(
        self, store: Store, mysql_url: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._mysql_url = mysql_url
        self._clock = clock
        self._keys: dict[str, Credential] = {}
        self._logins: dict[bytes, Credential] = {}
        self._used: set[str] = set()
        self._installation: str | None = None
        self._began = -math.inf  # start of the last read
        self._lock = asyncio.Lock()
        self._thread = anyio.CapacityLimiter(1)
        self._away = False  # the last read failed
        self._late = False  # a read has taken longer than READ_WAIT_S

    @property
    def installation(self) -> str:
        """The identity of the tables that the register is read from: the same text in all
        processes of the installation. The name of the login's cookie is made from it.

        Raises:
            Unavailable: no read succeeded yet.
        """
        if self._installation is None:
            raise Unavailable("MySQL did not answer since the start of this process")
        return self._installation

    def key(self, id: str) -> Credential | None:
        """Return the valid key or link with an id; None where there is none."""
        return self._valid(self._keys.get(id))

    def login(self, token_hash: bytes) -> Credential | None:
        """Return the login with this hash of its cookie, if the login and its key are valid;
        otherwise None."""
        found = self._valid(self._logins.get(token_hash))
        return None if found is None or self.key(found.identity.key_id) is None else found

    def is_valid(self, who: Identity) -> bool:
        """Return whether the login, key or link of ``who`` is still valid; True where ``who`` has
        none. The event streams of ``GET /v1/live`` check this repeatedly."""
        if who.session:
            return self.login(who.session) is not None
        if who.key_id:
            return self.key(who.key_id) is not None
        return True

    def note_use(self, id: str) -> None:
        """Remember that a key was used, until :meth:`write_uses` writes it."""
        self._used.add(id)

    async def read(self) -> None:
        """Read all valid keys, logins and links from MySQL, in place of those read before.

        Raises:
            StoreError: the read failed; the keys, logins and links known before stay.
        """
        began = self._clock()
        self._installation, keys, logins = await anyio.to_thread.run_sync(
            self._store.snapshot, _everything, limiter=self._thread
        )
        self._began = began
        self._keys = {each.key.id: _known_key(each, began) for each in keys if each.key.scopes}
        self._logins = {
            each.token_hash: Credential(
                identity=replace(self._keys[each.api_key].identity, session=each.token_hash),
                hash=each.token_hash,
                ends=began + each.expires_in,
            )
            for each in logins
            if each.api_key in self._keys
        }

    async def refresh(self) -> bool:
        """Read keys, logins and links without waiting for the next regular read, but not sooner
        than :data:`READ_PAUSE_S` after the last read began. Callers use it for an unknown key,
        which may be new, and after a change of a login, link or board. Calls that arrive during a
        read share one next read. Never raises.

        Returns:
            True if the read succeeded; False if it failed, or did not end within
            :data:`READ_WAIT_S` of this call.
            If the last read failed, or an earlier call gave up on a read that is still running,
            return False at once, without another read.
        """
        if self._away or self._late:
            return False
        reading = asyncio.create_task(self._read_since(self._clock()))
        done, _ = await asyncio.wait({reading}, timeout=READ_WAIT_S)
        if not done:
            self._late = True
        return bool(done) and not self._away

    async def _read_since(self, asked: float) -> None:
        async with self._lock:
            if self._began >= asked:
                return
            await asyncio.sleep(max(0.0, self._began + READ_PAUSE_S - asked))
            await self.try_read()

    async def keep_fresh(self) -> None:
        """Read the register every :data:`REFRESH_S` seconds, and write the uses of keys every
        :data:`USE_S` seconds, until the task is cancelled. The first read comes after
        :data:`REFRESH_S`. A failed read ends nothing; of failures in a row, the first is logged."""
        noted = self._clock()
        while True:
            await asyncio.sleep(REFRESH_S)
            async with self._lock:
                await self.try_read()
            if self._clock() - noted >= USE_S:
                noted = self._clock()
                await self.write_uses()

    async def write_uses(self) -> None:
        """Set the time of last use to the current time in MySQL, for each key that was used since
        the last write. If this fails with a StoreError (MySQL is away), the next call writes them;
        any other error is logged, and these uses are forgotten. Never raises."""
        used, self._used = self._used, set()
        if not used:
            return

        def note() -> None:
            with open_tables(self._mysql_url) as session:
                api_keys.note_use(session, used)

        try:
            await anyio.to_thread.run_sync(note, limiter=self._thread)
        except StoreError:
            self._used |= used  # written next time
        except Exception:
            LOGGER.exception("cannot write the last use of keys", extra={"action": "waiting"})

    async def try_read(self) -> None:
        """Read all valid keys, logins and links from MySQL. If this fails for any reason, keep
        those known before; of failures in a row, only the first is logged. Never raises."""
        try:
            await self.read()
        except Exception as error:
            # Any exception: without further reads no key could be revoked.
            self._began = self._clock()
            if not self._away:
                LOGGER.warning(
                    "cannot read keys; known keys stay valid: %s",
                    error if isinstance(error, StoreError) else type(error).__name__,
                    extra={"action": "waiting"},
                    exc_info=None if isinstance(error, StoreError) else error,
                )
            self._away = True
        else:
            if self._away:
                LOGGER.info("keys can be read again", extra={"action": "resumed"})
            self._away = False
        self._late = False

    def _valid(self, known: Credential | None) -> Credential | None:
        return known if known is not None and self._clock() < known.ends else None


def _everything(
    session: Session,
) -> tuple[str, list[api_keys.LiveKey], list[api_keys.LiveSession]]:
    return identity(session), api_keys.live_keys(session), api_keys.live_logins(session)


def _known_key(live: api_keys.LiveKey, now: float) -> Credential:
    key = live.key
    return Credential(
        identity=Identity(
            key_id=key.id,
            name=key.name,
            scopes=frozenset(("read",) if key.is_link else key.scopes),
            counters=key.counters,
            max_counters=key.max_counters,
            link=key.id if key.is_link else "",
            board=key.board,
        ),
        hash=live.hash,
        ends=math.inf if live.expires_in is None else now + live.expires_in,
    )
