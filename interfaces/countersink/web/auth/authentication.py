"""``Authenticator`` finds the key, login or link of a request, and refuses requests: 401 (the key
is missing or wrong), 403 (scope, link, origin), 429 (rate limits) and 503 (the key cannot be looked
up). See ``web/options.py`` for the rates."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.types import Scope

from countersink.web.auth import origins
from countersink.web.auth.credentials import TokenBuckets, find_credential, shown_key
from countersink.web.auth.register import EVERYBODY, NOBODY, Identity
from countersink.web.errors import Problem
from countersink.web.http import Route
from countersink.web.services import Services

BURST_S: Final = 2.0
"""The size of a burst, as seconds of the rate: so many requests may arrive at once."""
_READING: Final = ("GET", "HEAD")
_CHALLENGE: Final = 'Bearer realm="countersink"'


class Authenticator:
    """Finds the identity of a request, and checks that it may use its route.

    Args:
        services: have the settings, the valid keys, links and logins, and the limits of wrong keys
            and of waiting requests.
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
        """Return the identity of a request if it may use its route. Count the request for the rate
        limit of its key or link, of its login's key, or else of its address. If its headers have a
        valid key, record the use of the key by :meth:`Register.note_use`; the use of links and
        logins is not recorded.

        If the route needs no key, a key or login is ignored, and the identity is :data:`NOBODY`. On
        a public route, a request without a key or login gets :data:`NOBODY` as well, or
        :data:`EVERYBODY` if the server runs without keys (see :meth:`_without_key`). If a key or
        login lacks the scope of a public route, ``public`` of the identity is True.

        Args:
            route: the route of the request.
            headers: headers of the request, from
                :func:`~countersink.web.http.answers.read_headers`.
            client: address of the client; limits per client count by it.
            scope: the ASGI scope of the request.

        Raises:
            Problem: 401 the key is not valid, or the route needs a key, and the request has neither
                a key nor a login; 403 the identity may not do this, or a page of another origin may
                have sent the request; 429 there are too many requests or wrong keys; 503 the key is
                unknown, and MySQL is away or too many requests wait already.
            Unavailable: the request has a login's cookie and no key, the route needs a key or is
                public, and MySQL did not answer since the start.
        """
        if route.scope is None and not route.public:
            self.limit_address(client)
            if scope["method"] not in _READING and not origins.is_same_origin(
                headers, scope["scheme"], default=True
            ):
                raise origins.cross_origin_problem()
            return NOBODY
        shown = shown_key(headers)
        if shown is not None:
            known = await find_credential(
                shown, client, self._register, self._failures, self._places
            )
            if known is None:
                raise Problem(
                    401,
                    "The key is wrong, revoked or expired: create a new one with countersink key"
                    " create",
                    headers={"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'},
                )
            who = known.identity
            _take(self._per_key, who.key_id)
            if who.link and not route.shared:
                shown = "board" if who.board else "counter"
                raise Problem(403, f"A link gives access to the numbers of its {shown} only")
            if not who.link:
                self._register.note_use(who.key_id)
        else:
            who = self._without_key(route, headers, client, scope)
        if not (who.public or route.scope is None or who.may(route.scope)):
            if route.public:
                return replace(who, public=True)
            raise Problem(403, f"This needs a key with the scope {route.scope}")
        if route.installation_wide and who.counters:
            raise Problem(403, "This needs a key for all counters; this key is for some only")
        return who

    def limit_address(self, client: str) -> None:
        """Count a request for the rate limit of its address. This is for requests without a key or
        login, and for those whose key is ignored: OPTIONS, no such route, or a route that needs no
        key. (A server without keys counts requests without a key by their address as well, but
        allows each address the rate of a key.)

        Raises:
            Problem: 429 the address has sent too many requests.
        """
        _take(self._per_address, client)

    def _without_key(
        self, route: Route, headers: Mapping[bytes, bytes], client: str, scope: Scope
    ) -> Identity:
        """Return the identity of a request without a key. If the request has a valid login, this is
        the identity of the login. Otherwise it is :data:`EVERYBODY` if the server runs without
        keys, and :data:`NOBODY` on a public route. On a public route, it is :data:`NOBODY` in place
        of the login or :data:`EVERYBODY` if a page of another origin may have sent the request.

        Raises:
            Problem: 401 the route needs a key; 403 the route is not public, the request is not GET
                or HEAD, and a page of another origin may have sent it; 429 there are too many
                requests.
            Unavailable: the request has a login's cookie, and MySQL did not answer since the start.
        """
        scheme = scope["scheme"]
        login = self._cookie.login(headers, scheme)
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
            # A public route may count by GET: a pixel on a page of another origin, for which a
            # browser may send no header about the page.
            if reading and not route.public:
                return who
            if origins.is_same_origin(headers, scheme, default=login is None and not reading):
                return who
        if route.public:
            return NOBODY
        if who is not None:
            raise origins.cross_origin_problem()
        raise Problem(
            401,
            "This needs a key: create one with countersink key create, and send it as"
            " Authorization: Bearer KEY",
            headers={"WWW-Authenticate": _CHALLENGE},
        )


def _take(buckets: TokenBuckets, name: str) -> None:
    wait = buckets.take(name)
    if wait:
        raise Problem(
            429,
            "Too many requests: wait for the time in Retry-After, or send more in each request",
            retry_after=wait,
        )


def _buckets(rate: float) -> TokenBuckets:
    return TokenBuckets(rate, max(1.0, rate * BURST_S))
