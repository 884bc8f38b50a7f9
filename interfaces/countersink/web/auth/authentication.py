"""Who may use a route: the answers 401, 403 and 429 with their texts (key missing, wrong, or
without the scope; too many requests), and the burst of the rate limits (``BURST_S``); rates are in
``web/options.py``."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.types import Scope

from countersink.web.auth import origins
from countersink.web.auth.credentials import TokenBuckets, holder_of, shown_key
from countersink.web.auth.register import EVERYBODY, NOBODY, Identity
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.services import Services

BURST_S: Final = 2.0
"""Seconds of the allowed rate that may come at once."""
_READING: Final = ("GET", "HEAD")
_CHALLENGE: Final = 'Bearer realm="countersink"'


class Authenticator:
    """Decides who sends a request and whether it may use its route.

    Args:
        services: the settings, and the keys and logins that are valid.
    """

    def __init__(self, services: Services) -> None:
        options = services.options
        self._register = services.register
        self._cookie = services.cookie
        self._failures = services.failures
        self._places = services.places
        self._per_key = _buckets(options.rate_per_key)
        self._per_address = _buckets(options.rate_per_address)
        self._without_keys = options.without_keys

    async def admit(
        self, route: Route, headers: Mapping[bytes, bytes], client: str, scope: Scope
    ) -> Identity:
        """Whose request this is.

        Args:
            route: what it is for.
            headers: those that matter.
            client: the address that limits count by.
            scope: of the request.

        Raises:
            Problem: 401, 403, 429 or 503.
        """
        if route.scope is None and not route.public:
            self.limit_address(client)
            if scope["method"] not in _READING and not origins.is_own(
                headers, scope["scheme"], silent=True
            ):
                raise origins.refused()
            return NOBODY
        shown = shown_key(headers)
        if shown is not None:
            known = await holder_of(shown, client, self._register, self._failures, self._places)
            if known is None:
                raise Problem(
                    401,
                    "The key is wrong, revoked or expired: countersink key create makes another"
                    " one",
                    headers={"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'},
                )
            who = known.identity
            _take(self._per_key, who.key_id)
            if who.link and not route.shared:
                raise Problem(403, "A link shows the numbers of its counter, and nothing else")
            if not who.link:
                self._register.note_use(who.key_id)
        else:
            who = self._without_key(route, headers, client, scope)
        if not (who.public or route.scope is None or who.may(route.scope)):
            if route.public:
                return replace(who, public=True)
            raise Problem(403, f"This takes a key with the scope {route.scope}")
        if route.whole and who.counters:
            raise Problem(
                403, "This key is for some counters only, and this is about the whole installation"
            )
        return who

    def limit_address(self, client: str) -> None:
        """Count a request without a key.

        Raises:
            Problem: 429, the address has sent too many.
        """
        _take(self._per_address, client)

    def _without_key(
        self, route: Route, headers: Mapping[bytes, bytes], client: str, scope: Scope
    ) -> Identity:
        """Whose request without a key this is: of a login, everybody's, or nobody's."""
        scheme = scope["scheme"]
        login = self._cookie.login(headers, scheme, self._register)
        if login is not None:
            who: Identity | None = login.identity
            _take(self._per_key, login.identity.key_id)
        elif self._without_keys:
            who = EVERYBODY
            _take(self._per_key, client)
        else:
            who = None
            self.limit_address(client)
        if who is not None:
            reading = scope["method"] in _READING
            # What is public may count by GET, too: a pixel on somebody else's page, for which a
            # browser may leave out where it comes from.
            if reading and not route.public:
                return who
            if origins.is_own(headers, scheme, silent=login is None and not reading):
                return who
        if route.public:
            return NOBODY
        if who is not None:
            raise origins.refused()
        raise Problem(
            401,
            "This takes a key: send Authorization: Bearer and the key, which"
            " countersink key create makes",
            headers={"WWW-Authenticate": _CHALLENGE},
        )


def _take(buckets: TokenBuckets, name: str) -> None:
    wait = buckets.take(name)
    if wait:
        raise Problem(
            429,
            "Too many requests: wait as long as Retry-After says, or send more in each one",
            retry_after=wait,
        )


def _buckets(rate: float) -> TokenBuckets:
    return TokenBuckets(rate, max(1.0, rate * BURST_S))
