"""Credentials and quotas of requests: the key, link or login cookie of a request, with 429 for too
many wrong keys and 503 while keys cannot be read; ``TokenBuckets``, the arithmetic of rate limits;
``WaitingPlaces``, limits of requests that wait for a server (503); ``NameQuotas``, limits of names
per key (403). See ``web/options.py`` for the settings."""

import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Final

from countersink.store import api_keys
from countersink.web.auth.register import Credential, Identity, Register
from countersink.web.errors import Problem

COOKIE: Final = "countersink"
"""Beginning of the cookie's name."""
SECURE: Final = "__Host-"
"""Prefix of the cookie's name over https: other hosts and plain connections cannot set it."""
KEPT: Final = 50_000
"""Names that a :class:`TokenBuckets` remembers at least; it forgets some at twice as many."""
WAITING_PART: Final = 2
"""One in so many connections may have a request that waits for MySQL or for the queue; the others
are left to increments."""
HOLDER_PART: Final = 10
"""One in so many connections may wait with the same key, or without a key from the same address."""
LEAST_PLACES: Final = 8
"""Places for a key or address at least: a browser sends six requests at once."""
RETRY_AFTER_S: Final = 2
_ROUNDING_S: Final = 1e-6
_NO_HASH: Final = bytes(32)
"""Compared with if a key is unknown, for the same duration. No secret has this hash."""


class TokenBuckets:
    """Rate limits: a token bucket for each name, such as an address or a key.

    A bucket is one number: the time at which it is full again if nothing is taken (the generic cell
    rate algorithm, ITU-T I.371). A forgotten name has a full bucket.

    Args:
        rate: tokens added per second; 0 or less: no limit.
        burst: tokens of a full bucket.
        kept: names that are remembered at least.
        clock: returns seconds.
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        kept: int = KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = 1.0 / rate if rate > 0 else 0.0
        self._room = max(0.0, burst - 1.0) * self._pause
        self._kept = kept
        self._clock = clock
        # Two generations: when the young one is full it replaces the old one. So the least recently
        # used names are forgotten, without an ordered list.
        self._young: dict[str, float] = {}
        self._old: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def take(self, name: str) -> float:
        """Take a token and return 0.0; or take none and return the seconds until there is one."""
        now = self._clock()
        full_at = self._full_at(name, now)
        wait = full_at - now - self._room
        if wait <= _ROUNDING_S:
            full_at += self._pause
            wait = 0.0
        if name not in self._young and len(self._young) >= self._kept:
            self._old, self._young = self._young, {}
        # Also when refused: a name that is used again and again must not be forgotten.
        self._young[name] = full_at
        return wait

    def wait(self, name: str) -> float:
        """The seconds until there is a token, 0.0 if there is one; takes none."""
        now = self._clock()
        wait = self._full_at(name, now) - now - self._room
        return wait if wait > _ROUNDING_S else 0.0

    def _full_at(self, name: str, now: float) -> float:
        found = self._young.get(name)
        if found is None:
            found = self._old.get(name, now)
        return found if found > now else now


class WaitingPlaces:
    """Places of requests that wait for a server, fewer than connections: when MySQL is away and all
    places are taken, increments still find connections. Only for the event loop's thread.

    Args:
        connections: the limit of connections.
    """

    def __init__(self, connections: int) -> None:
        self._most = max(LEAST_PLACES, connections // WAITING_PART)
        self._most_of_one = max(LEAST_PLACES, connections // HOLDER_PART)
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, holder: str) -> Iterator[bool]:
        """Hold a place until the end of the block; False: the key or address gets none.

        Args:
            holder: id of the key, or the address of a request without a key.
        """
        if self._taken[holder] >= self._most_of_one or self._taken.total() >= self._most:
            yield False
            return
        self._taken[holder] += 1
        try:
            yield True
        finally:
            self._taken[holder] -= 1
            if not self._taken[holder]:
                del self._taken[holder]

    @contextmanager
    def needed(self, holder: str) -> Iterator[None]:
        """Hold a place until the end of the block.

        Raises:
            Problem: 503 the key or address gets none.
        """
        with self.taken(holder) as has_place:
            if not has_place:
                text = "Too many requests are waiting already: try again"
                raise Problem(503, text, retry_after=RETRY_AFTER_S)
            yield


class NameQuotas:
    """Limits of the names of counters and sequences that each key uses in the life of the process.
    Only for the event loop's thread.

    Args:
        most: names that a key without a limit of its own may use.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used: dict[str, set[str]] = {}

    def check(self, who: Identity, kind: str, names: Set[str]) -> set[str]:
        """Check that a key may use names.

        Args:
            who: the key's identity; all requests without a key share a quota. A public identity
                has none, as it cannot create counters.
            kind: of the names, such as ``counters``; each kind has a quota.
            names: of one request.

        Returns:
            The names that the key has used; the caller adds accepted ones.

        Raises:
            Problem: 403 the key would exceed its quota.
        """
        if who.public:
            return set()
        used = self._used.setdefault(f"{kind} {who.key_id}", set())
        most = who.max_counters or self._most
        if not names <= used and len(used | names) > most:
            raise Problem(
                403,
                f"This key may use {most:,} names of {kind} while the server runs (--max-counters),"
                f" and has used {len(used):,}: nothing was done",
            )
        return used


def shown_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key in ``Authorization: Bearer`` or ``X-API-Key``; None without either.

    Other schemes of ``Authorization`` are for a proxy before us, and ignored.
    """
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, text = authorization.decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            return text.strip()
    key = headers.get(b"x-api-key")
    return None if key is None else key.decode("latin-1").strip()


def key_of(text: str, register: Register) -> Credential | None:
    """The valid key, or link, with the id and secret in ``text``; None: there is none."""
    parts = api_keys.parse(text)
    id, shown = parts or ("", _NO_HASH)
    known = register.key(id)
    same = hmac.compare_digest(shown, _NO_HASH if known is None else known.hash)
    return known if same and parts is not None else None


async def find_credential(
    text: str, client: str, register: Register, failures: TokenBuckets, places: WaitingPlaces
) -> Credential | None:
    """The valid key, or link, in ``text``; the register is read again for an unknown one, which may
    be new. None: there is none.

    A known key is accepted however many wrong keys its address has sent, so that they do not lock
    out its neighbours; a secret of 256 bits cannot be guessed.

    Raises:
        Problem: 429 ``client`` has sent too many wrong keys; 503 the key is unknown and MySQL does
            not answer, or too many requests wait already.
    """
    known = key_of(text, register)
    if known is not None:
        return known
    wait = failures.wait(client)
    if not wait:
        if api_keys.parse(text) is not None:
            with places.needed(client):
                read = await register.refresh()
            known = key_of(text, register)
            if known is not None:
                return known
            if not read:
                raise Problem(
                    503,
                    "The key is unknown, and MySQL, where a new key would be, does not answer: try"
                    " again",
                    retry_after=RETRY_AFTER_S,
                )
        wait = failures.take(client)
    if wait:
        raise Problem(
            429,
            "This address has sent too many wrong keys: check the key, wait, and try again",
            retry_after=wait,
        )
    return None


class LoginCookie:
    """The cookie of a login to this installation.

    Its name has a hash of the installation: browsers share cookies between the ports of a host, so
    that two installations on one host would overwrite each other's.

    Args:
        installation: identifies the installation.
    """

    def __init__(self, installation: str) -> None:
        digest = hashlib.sha256(installation.encode("utf-8", "surrogateescape"))
        self._name = f"{COOKIE}-{digest.hexdigest()[:12]}"

    def name(self, scheme: str) -> str:
        """The cookie's name for the scheme of a request, ``http`` or ``https``."""
        return SECURE + self._name if scheme == "https" else self._name

    def shown(self, headers: Mapping[bytes, bytes], scheme: str) -> str | None:
        """The token in the first cookie of this name; None: there is none."""
        for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.name(scheme):
                return value
        return None

    def login(
        self, headers: Mapping[bytes, bytes], scheme: str, register: Register
    ) -> Credential | None:
        """The valid login of a request's cookie; None: there is none."""
        shown = self.shown(headers, scheme)
        return None if shown is None else register.login(api_keys.hash_of(shown))
