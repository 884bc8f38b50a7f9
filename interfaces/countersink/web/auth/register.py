"""Valid keys, logins and links in memory: how often they are read from MySQL (``REFRESH_S``), what
holds while MySQL is away, the scopes and counters of each, and noting when keys were used.

No request waits for MySQL because of its key. While MySQL is away, what was valid goes on being so
until it expires; nothing can be revoked then either.
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

from countersink.database.errors import StoreError
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.store import Store, api_keys
from countersink.store.api_keys import SCOPES, Scope

LOGGER: Final = logging.getLogger("countersink.web")
REFRESH_S: Final = 2.0
"""Seconds after which a key that was revoked is refused, and a new login is known elsewhere."""
HASTE_S: Final = 0.25
"""Seconds between two readings at least, however many unknown keys are shown."""
LOOK_S: Final = 1.0
"""Seconds for which an unknown key waits for a reading at most."""
USE_S: Final = 60.0
"""Seconds between two notes of which keys were used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The key, login or link by which a request was let in, and what it may do.

    Attributes:
        key_id: the public part of the API key or the link; empty where there is none.
        name: for people and logs.
        scopes: what they may do; ``admin`` includes the others.
        counters: shell patterns of the counters they may name; empty: all.
        max_counters: how many counters they may make; None: as many as the server allows.
        public: they may add to public counters alone, and only 1 at a time: somebody without a
            key, or with one that may not count.
        session: hash of the cookie, where they have logged in with the key; else empty.
        link: id of the link to the one counter that they may look at; empty: they have none.
    """

    key_id: str = ""
    name: str = ""
    scopes: frozenset[Scope] = frozenset()
    counters: tuple[str, ...] = ()
    max_counters: int | None = None
    public: bool = False
    session: bytes = field(default=b"", repr=False)
    link: str = ""

    def may(self, scope: Scope) -> bool:
        """Whether ``scope`` is theirs."""
        return scope in self.scopes or "admin" in self.scopes

    def may_name(self, counter: str) -> bool:
        """Whether a counter (or sequence) is theirs to name."""
        return not self.counters or any(fnmatchcase(counter, each) for each in self.counters)


EVERYBODY: Final = Identity(name="everybody", scopes=frozenset(SCOPES))
"""Whoever shows no key where none is needed (``--without-keys``): may do everything."""

NOBODY: Final = Identity(name="nobody", public=True)
"""Whoever shows no key where one is needed, for a route that is open to the public."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A key, a login or a link that is valid.

    Attributes:
        identity: whose.
        hash: SHA-256 of its secret.
        ends: when it expires, on the clock of the register.
    """

    identity: Identity
    hash: bytes = field(repr=False)
    ends: float


class Register:
    """Finds valid keys, logins and links.

    Args:
        store: where it is written.
        mysql_url: the same, for notes of use.
        clock: seconds.
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
        self._began = -math.inf
        self._lock = asyncio.Lock()
        self._thread = anyio.CapacityLimiter(1)
        self._away = False
        self._late = False  # a reading has taken longer than LOOK_S

    def key(self, id: str) -> Credential | None:
        """The key, or the link, of this id, if it is valid."""
        return self._valid(self._keys.get(id))

    def login(self, token_hash: bytes) -> Credential | None:
        """The login of this cookie, if it is valid, and its key is."""
        found = self._valid(self._logins.get(token_hash))
        return None if found is None or self.key(found.identity.key_id) is None else found

    def holds(self, who: Identity) -> bool:
        """Whether ``who`` would be let in again: for answers that never end."""
        if who.session:
            return self.login(who.session) is not None
        if who.key_id:
            return self.key(who.key_id) is not None
        return True

    def note_use(self, id: str) -> None:
        """Remember that a key was used."""
        self._used.add(id)

    async def read(self) -> None:
        """Read everything anew.

        Raises:
            StoreError: MySQL did not do its part; what was known stays.
        """
        began = self._clock()
        keys, logins = await anyio.to_thread.run_sync(
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

    async def look_again(self) -> bool:
        """Read anew before somebody is refused, as the key may have been made just now, and after
        the end of a login or a link, which ends elsewhere with the next reading.

        All who ask while a reading goes on share the next one. Never raises.

        Returns:
            Whether it was read; False at once while MySQL is away or does not answer.
        """
        if self._away or self._late:
            return False
        looking = asyncio.create_task(self._read_once_more(self._clock()))
        done, _ = await asyncio.wait({looking}, timeout=LOOK_S)
        if not done:
            self._late = True
        return bool(done) and not self._away

    async def _read_once_more(self, asked: float) -> None:
        async with self._lock:
            if self._began >= asked:
                return
            await asyncio.sleep(max(0.0, self._began + HASTE_S - asked))
            await self._try_read()

    async def keep(self) -> None:
        """Keep it up to date until cancelled."""
        noted = self._clock()
        while True:
            await asyncio.sleep(REFRESH_S)
            async with self._lock:
                await self._try_read()
            if self._clock() - noted >= USE_S:
                noted = self._clock()
                await self.write_uses()

    async def write_uses(self) -> None:
        """Write down which keys were used since the last time. Never raises."""
        used, self._used = self._used, set()
        if not used:
            return

        def note() -> None:
            with open_tables(self._mysql_url) as session:
                api_keys.note_use(session, used)

        try:
            await anyio.to_thread.run_sync(note, limiter=self._thread)
        except StoreError:
            self._used |= used  # later, then
        except Exception:
            LOGGER.exception("cannot write down which keys were used", extra={"action": "waiting"})

    async def _try_read(self) -> None:
        try:
            await self.read()
        except Exception as error:
            # Whatever it is: without the next attempt nothing could be revoked any more.
            self._began = self._clock()
            if not self._away:
                LOGGER.warning(
                    "keys cannot be read, those known stay valid: %s",
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


def _everything(session: Session) -> tuple[list[api_keys.LiveKey], list[api_keys.LiveSession]]:
    return api_keys.live(session), api_keys.live_logins(session)


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
        ),
        hash=live.hash,
        ends=math.inf if live.expires_in is None else now + live.expires_in,
    )
