"""The key, link or login cookie of a request, and limits per key and address: 429 for too many
wrong keys, 503 while keys cannot be read. ``TokenBuckets`` computes rate limits. ``WaitingPlaces``
limits requests that wait for MySQL or Redis (503). ``NameQuotas`` limits the names that a key uses
(403). See ``web/options.py`` for the settings."""

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
"""Prefix of the cookie's name over https. Browsers let neither other hosts nor plain connections
set a cookie with this prefix."""
KEPT: Final = 50_000
"""Minimum number of names that a :class:`TokenBuckets` remembers. It forgets the least recently
used ones when it has twice as many."""
WAITING_PART: Final = 2
"""The divisor of the connections: the quotient is how many of them may have a request that waits
for MySQL or for the queue. The other connections are left to increments."""
HOLDER_PART: Final = 10
"""The divisor of the connections for waiting requests (see :data:`WAITING_PART`) with the same key,
or without a key from the same address."""
LEAST_PLACES: Final = 8
"""Minimum of the limits by :data:`WAITING_PART` and :data:`HOLDER_PART`, in requests: a browser
sends six requests at once."""
RETRY_AFTER_S: Final = 2
_ROUNDING_S: Final = 1e-6
_NO_HASH: Final = bytes(32)
"""A hash to compare with where a key is unknown, so that the check takes as long as for a known
key. No secret has this hash."""


class TokenBuckets:
    """Rate limits: a token bucket for each name, such as an address or a key.

    A bucket is stored as one number: the time at which it will be full if nothing more is taken
    (the generic cell rate algorithm, ITU-T I.371). A name that is not remembered has a full bucket.

    Args:
        rate: tokens added per second; 0 or less for no limit.
        burst: number of tokens in a full bucket.
        kept: minimum number of names that are remembered. When there are twice as many, the least
            recently used ones are forgotten.
        clock: returns the time in seconds.
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
        """Take a token from the bucket of ``name``, and return 0.0. If the bucket has no token,
        return the seconds until it has one, and take nothing."""
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
        """Return the seconds until the bucket of ``name`` has a token, or 0.0 if it has one now. No
        token is taken."""
        now = self._clock()
        wait = self._full_at(name, now) - now - self._room
        return wait if wait > _ROUNDING_S else 0.0

    def _full_at(self, name: str, now: float) -> float:
        found = self._young.get(name)
        if found is None:
            found = self._old.get(name, now)
        return found if found > now else now


class WaitingPlaces:
    """Limits how many requests wait for MySQL or Redis at the same time. Use it only in the event
    loop's thread.

    Each waiting request holds a place. There are half as many places as connections, at least 8: if
    MySQL is away, waiting requests take all places, but increments still find connections. One key
    or address may hold a tenth as many places as connections, at least 8.

    Args:
        connections: maximum number of connections of the server.
    """

    def __init__(self, connections: int) -> None:
        self._most = max(LEAST_PLACES, connections // WAITING_PART)
        self._most_of_one = max(LEAST_PLACES, connections // HOLDER_PART)
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, holder: str) -> Iterator[bool]:
        """Hold a place until the end of the block, and yield True. If the key or address holds as
        many places as it may, or no place is free, hold none and yield False.

        Args:
            holder: id of the valid key, login's key or link; for other requests, the address.
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

        Args:
            holder: id of the valid key, login's key or link; for other requests, the address.

        Raises:
            Problem: 503 there is no place for this key or address.
        """
        with self.taken(holder) as has_place:
            if not has_place:
                text = "Too many requests are waiting already: try again"
                raise Problem(503, text, retry_after=RETRY_AFTER_S)
            yield


class NameQuotas:
    """Limits how many different names of counters and of sequences each key may use while the
    process runs. Use it only in the event loop's thread.

    Args:
        most: number of names of each kind that a key may use if it has no limit of its own
            (``max_counters`` of its identity).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used: dict[str, set[str]] = {}

    def check(self, who: Identity, kind: str, names: Set[str]) -> set[str]:
        """Check that a key may use the names in a request. Names that it has used before do not
        count again.

        Args:
            who: identity of the key. All requests without a key share a quota. A public identity
                has no quota: it counts in public counters only.
            kind: the kind of things with these names, ``counters`` or ``sequences``; each kind has
                its own quota.
            names: the names in the request.

        Returns:
            The set of names that the key has used: the set itself, not a copy. The caller adds the
            names of the request to it once they are accepted. For a public identity, the result is
            a new empty set, which nothing else refers to.

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
    """Return the key, or the token of a link, in ``Authorization: Bearer``, or else in
    ``X-API-Key``; None where a request has neither. The key is not checked.

    Other schemes of ``Authorization`` are ignored: they are for a proxy in front of this server.
    """
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, text = authorization.decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            return text.strip()
    key = headers.get(b"x-api-key")
    return None if key is None else key.decode("latin-1").strip()


def key_of(text: str, register: Register) -> Credential | None:
    """Return the key or link whose id and secret are in ``text``; None where ``text`` has another
    form, the id is unknown, the secret is wrong, or the key or link has expired."""
    parts = api_keys.parse(text)
    id, shown = parts or ("", _NO_HASH)
    known = register.key(id)
    same = hmac.compare_digest(shown, _NO_HASH if known is None else known.hash)
    return known if same and parts is not None else None


async def find_credential(
    text: str, client: str, register: Register, failures: TokenBuckets, places: WaitingPlaces
) -> Credential | None:
    """Return the valid key or link in ``text``; None where it is not valid. An unknown text in the
    form of a key may be a new key: the register is read again before the text is refused, unless
    ``client`` has sent too many wrong keys.

    A known key is accepted however many wrong keys its address has sent: other clients at an
    address must not lock it out. This helps nobody to guess a key, because a secret has 256 bits.

    Args:
        text: the key or token, as the client sent it.
        client: address of the client.
        register: has the valid keys and links.
        failures: limits wrong keys; each for which None is returned takes a token from the bucket
            of ``client``.
        places: while the register is read again, the request holds one of these for ``client``.

    Raises:
        Problem: 429 the key is unknown or wrong, and ``client`` has sent too many wrong keys; 503
            the key is unknown, and MySQL does not answer or too many requests wait already.
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

    Browsers share cookies between all ports of a host. The cookie's name contains a hash of the
    installation's identity, so that installations on one host do not overwrite each other's cookie.

    Args:
        register: has the logins, and the identity of the installation.
    """

    def __init__(self, register: Register) -> None:
        self._register = register

    def name(self, scheme: str) -> str:
        """Return the cookie's name for the scheme of a request, ``http`` or ``https``. For
        ``https`` it begins with :data:`SECURE`.

        Raises:
            Unavailable: MySQL did not answer since the start of the process.
        """
        digest = hashlib.sha256(self._register.installation.encode("utf-8", "surrogateescape"))
        name = f"{COOKIE}-{digest.hexdigest()[:12]}"
        return SECURE + name if scheme == "https" else name

    def shown(self, headers: Mapping[bytes, bytes], scheme: str) -> str | None:
        """Return the token in the request's first cookie that has the name from :meth:`name`; None
        where there is no such cookie. The token is not checked.

        Raises:
            Unavailable: the name of a cookie contains :data:`COOKIE`, and MySQL did not answer
                since the start of the process.
        """
        for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if COOKIE in name and name == self.name(scheme):
                return value
        return None

    def login(self, headers: Mapping[bytes, bytes], scheme: str) -> Credential | None:
        """Return the valid login whose cookie a request has; None where there is none.

        Raises:
            Unavailable: the name of a cookie contains :data:`COOKIE`, and MySQL did not answer
                since the start of the process.
        """
        shown = self.shown(headers, scheme)
        return None if shown is None else self._register.login(api_keys.hash_of(shown))
