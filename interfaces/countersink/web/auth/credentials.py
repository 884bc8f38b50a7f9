"""Reads the key, a link's token or the login cookie of a request: names of headers and cookie; the
answers 429 to too many wrong keys and 503 while keys cannot be read; the arithmetic of rate limits
(``TokenBuckets``): how many requests is in ``web/options.py``; ``WaitingPlaces``, how many requests
may wait for a server at once (``WAITING_PART``, ``HOLDER_PART``); ``NameQuotas``, the answer 403 to
a key that makes counters without end."""

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
"""How the cookie's name begins."""
SECURE: Final = "__Host-"
"""In front of it where the browser came by https: no other host and no plain connection can set
one."""
KEPT: Final = 50_000
"""Names that are remembered at least; twice as many at most."""
WAITING_PART: Final = 2
"""Of so many connections one may be a request's that waits for MySQL or for the queue: increments
find room beside them."""
HOLDER_PART: Final = 10
"""Of so many connections one may wait with one key, or without one from one address."""
LEAST_PLACES: Final = 8
"""Places for one key or address, however few connections there may be: a browser asks six at
once."""
RETRY_AFTER_S: Final = 2
_ROUNDING_S: Final = 1e-6
_NO_HASH: Final = bytes(32)
"""Compared with where there is no such key, so that the work is the same. Nothing hashes to it."""


class TokenBuckets:
    """One bucket for each name, such as an address or a key.

    A bucket is one number: the time at which it is full again if nobody takes from it (the generic
    cell rate algorithm, ITU-T I.371). A name that is forgotten has a full one.

    Args:
        rate: tokens per second that flow in; 0 or less: no limit.
        burst: tokens that a full bucket holds.
        kept: names that are remembered at least.
        clock: seconds.
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
        # Two generations: when the young one is full it becomes the old one, whose last part is
        # forgotten as a whole. So the least recently seen go, and no list has to be kept in order.
        self._young: dict[str, float] = {}
        self._old: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def take(self, name: str) -> float:
        """Take one token: 0.0, or how many seconds to wait for one, and none is taken then."""
        now = self._clock()
        full_at = self._full_at(name, now)
        wait = full_at - now - self._room
        if wait <= _ROUNDING_S:
            full_at += self._pause
            wait = 0.0
        if name not in self._young and len(self._young) >= self._kept:
            self._old, self._young = self._young, {}
        # Also of one that is refused: who asks on and on is not forgotten meanwhile.
        self._young[name] = full_at
        return wait

    def wait(self, name: str) -> float:
        """How many seconds to wait for a token; 0.0: there is one. Nothing is taken."""
        now = self._clock()
        wait = self._full_at(name, now) - now - self._room
        return wait if wait > _ROUNDING_S else 0.0

    def _full_at(self, name: str, now: float) -> float:
        found = self._young.get(name)
        if found is None:
            found = self._old.get(name, now)
        return found if found > now else now


class WaitingPlaces:
    """Places of requests that may wait for a server, fewer than there are connections: while MySQL
    is away they are taken, and increments go on. For the event loop's thread.

    Args:
        connections: as many as there may be.
    """

    def __init__(self, connections: int) -> None:
        self._most = max(LEAST_PLACES, connections // WAITING_PART)
        self._most_of_one = max(LEAST_PLACES, connections // HOLDER_PART)
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, holder: str) -> Iterator[bool]:
        """Hold a place until the end of the block; False: there is none for this key or address.

        Args:
            holder: id of the key, or the address of a request without one.
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
        """The same, for what is not done without a place.

        Raises:
            Problem: 503, there is none.
        """
        with self.taken(holder) as there:
            if not there:
                raise Problem(
                    503,
                    "Too many requests wait for an answer already: try again",
                    retry_after=RETRY_AFTER_S,
                )
            yield


class NameQuotas:
    """Names of counters, or of sequences, that each key has used since the process began: it may
    not make them without end. For the event loop's thread.

    Args:
        most: names that one key may use, where it says nothing else.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used: dict[str, set[str]] = {}

    def check(self, who: Identity, kind: str, names: Set[str]) -> set[str]:
        """Check that a key may use all of these names.

        Args:
            who: uses them; all without a key share a quota. Public counters are none that anybody
                makes.
            kind: of the names, such as ``counters``; each has a quota of its own.
            names: those of one request.

        Returns:
            The names that it has used: add to them what was accepted.

        Raises:
            Problem: 403, it would have too many.
        """
        if who.public:
            return set()
        used = self._used.setdefault(f"{kind} {who.key_id}", set())
        most = who.max_counters or self._most
        if not names <= used and len(used | names) > most:
            raise Problem(
                403,
                f"This key has used {len(used):,} names of {kind} since the server started, of"
                f" {most:,} that it may (--max-counters): nothing was done",
            )
        return used


def shown_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key that ``Authorization: Bearer`` or ``X-API-Key`` holds; None without either.

    Other schemes of ``Authorization`` are for a proxy on the way, and none of ours.
    """
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, text = authorization.decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            return text.strip()
    key = headers.get(b"x-api-key")
    return None if key is None else key.decode("latin-1").strip()


def key_of(text: str, register: Register) -> Credential | None:
    """The key, or the link, whose id and secret ``text`` has."""
    parts = api_keys.split(text)
    id, shown = parts or ("", _NO_HASH)
    known = register.key(id)
    same = hmac.compare_digest(shown, _NO_HASH if known is None else known.hash)
    return known if same and parts is not None else None


async def holder_of(
    text: str, client: str, register: Register, failures: TokenBuckets, places: WaitingPlaces
) -> Credential | None:
    """The key, or the link, that ``text`` is, after another look for one that was made just now.

    A right key is always found. What many wrong ones bring to an address is that they are not
    looked up any more: a neighbour there is not locked out by them, and a secret of 256 bits is not
    found by trying.

    Raises:
        Problem: 429, ``client`` has shown too many wrong ones; 503, it is not known, and MySQL,
            which could tell, does not answer, or too many ask already.
    """
    known = key_of(text, register)
    if known is not None:
        return known
    wait = failures.wait(client)
    if not wait:
        if api_keys.split(text) is not None:
            with places.needed(client):
                read = await register.look_again()
            known = key_of(text, register)
            if known is not None:
                return known
            if not read:
                raise Problem(
                    503,
                    "The key is not known here, and MySQL, which would know a new one, does not"
                    " answer: try again",
                    retry_after=RETRY_AFTER_S,
                )
        wait = failures.take(client)
    if wait:
        raise Problem(
            429,
            "Too many wrong keys came from this address: wait, and check the key",
            retry_after=wait,
        )
    return None


class LoginCookie:
    """The cookie of a login to this installation.

    Browsers do not tell the ports of a host apart, so the name has to: two installations on one
    host would replace each other's cookie.

    Args:
        installation: what is the same in all processes of one, and differs between two.
    """

    def __init__(self, installation: str) -> None:
        digest = hashlib.sha256(installation.encode("utf-8", "surrogateescape"))
        self._name = f"{COOKIE}-{digest.hexdigest()[:12]}"

    def name(self, scheme: str) -> str:
        """What it is called for a browser that came by ``http`` or ``https``."""
        return SECURE + self._name if scheme == "https" else self._name

    def shown(self, headers: Mapping[bytes, bytes], scheme: str) -> str | None:
        """The token in it, the first of its name; None without one."""
        for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.name(scheme):
                return value
        return None

    def login(
        self, headers: Mapping[bytes, bytes], scheme: str, register: Register
    ) -> Credential | None:
        """The login that it is of."""
        shown = self.shown(headers, scheme)
        return None if shown is None else register.login(api_keys.hash_of(shown))
