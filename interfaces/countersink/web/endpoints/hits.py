"""The endpoints ``/hit/...``: a pixel, a badge and a beacon. Each request counts a visit, except
prefetches, HEAD requests, and badges with ``count=0``. It needs a key unless the counter is public.
See ``web/badges.py`` for the SVG."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from countersink.counting.counters.all_counters import counter_names
from countersink.database.errors import StoreError
from countersink.metrics.health import CachedAnswer
from countersink.producers import Increment
from countersink.runtime.limits import check_counter, check_key
from countersink.runtime.members import visitor_of
from countersink.web.auth.register import Identity
from countersink.web.badges import MAX_LABEL_LENGTH, HitNumbers, badge
from countersink.web.endpoints.increments import accept, wait_until
from countersink.web.errors import Problem
from countersink.web.http import Handler, Route, bodies
from countersink.web.http.openapi import response
from countersink.web.http.parameters import Parameter, choice, counter_of_path, short_text
from countersink.web.services import Services

GIF: Final = bytes.fromhex(
    "474946383961"  # GIF89a
    "01000100800000"  # 1 × 1 pixel, a palette of two colours
    "000000ffffff"
    "21f9040100000000"  # graphic control: colour 0 is transparent
    "2c00000000010001000002024401003b"  # the one pixel, and the end
)
MAX_BEACON_BYTES: Final = 64 * 1024
"""Maximum bytes of a beacon's body, which is ignored: browsers send no more."""
FRESH_S: Final = 2.0
"""Minimum seconds for which the names of existing counters are kept."""
KEPT_FACTOR: Final = 4.0
"""The names of counters are kept for the duration of their read times this factor, if that is
longer."""
PATIENCE_S: Final = 2.0
"""Maximum seconds that a visitor waits for the names of counters."""
SALT_WAIT_S: Final = 2.0
"""Maximum seconds that a hit waits until the producer knows whether its counter counts different
members."""
_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
_PREFETCH_HEADERS: Final = frozenset((b"sec-purpose", b"purpose", b"x-moz"))
"""Headers in which browsers say that they prefetch a page. The page may never be shown."""
_WILD: Final = frozenset("*?[")
_NOTHING: Final = "(?!)"
"""A regular expression that matches nothing."""


_LABEL: Final = short_text(
    "label", "a label", MAX_LABEL_LENGTH, "The text on the left.", default="hits"
)
_COUNT: Final = choice("count", ("0", "1"), "`0` shows the number and counts nothing.", default="1")


async def pixel(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /hit/{counter}/{key}.gif``: count a visit, unless the request is a HEAD or a
    prefetch, and return a transparent pixel. The query is ignored: a page may change it to bypass
    caches."""
    counter, key = _counter_and_key(request)
    await _require_ingest(request, services, who, counter)
    await _count_visit(request, services, who, counter, key)
    return Response(GIF, headers=_HEADERS, media_type="image/gif")


async def number(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /hit/{counter}/{key}.svg`` with a badge that shows the total of the key. The
    badge shows a dash if the total cannot be read.

    Unless the parameter ``count`` is 0, count a visit first (not for a HEAD or prefetch). Errors of
    reading the total are then no problems: the badge shows a dash also if ``who`` may not see the
    total, too many requests wait, or it is unknown whether the counter is public.

    Raises:
        Problem: 422 the path is not valid. With ``count`` 1: 403 ``who`` may not add to the
            counter; 503 it is unknown whether the counter is public; or :func:`accept` refuses the
            visit. With ``count`` 0: 403 ``who`` may not see the total; 503 it is unknown whether
            the counter is public, or too many requests wait.
    """
    given = request.scope["countersink.given"]
    counter, key = _counter_and_key(request)
    visits, total = 0, None
    counts = given["count"] == "1"
    if counts:
        await _require_ingest(request, services, who, counter)
        visits = await _count_visit(request, services, who, counter, key)
    try:
        if await _may_see(request, services, who, counter):
            with services.places.needed(request.scope["countersink.holder"]):
                total = await services.single(HitNumbers).number(counter, key, visits)
        elif not counts:
            raise Problem(403, "This needs a key with the scope read for this counter")
    except Problem:
        if not counts:
            raise
    picture = badge(given["label"], total)
    return Response(picture, headers=_HEADERS, media_type="image/svg+xml")


async def beacon(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``POST /hit/{counter}/{key}`` (204): count a visit that a page reports with
    ``navigator.sendBeacon``, unless the request is a prefetch. The body is read and ignored; 413 if
    it has more than :data:`MAX_BEACON_BYTES`."""
    counter, key = _counter_and_key(request)
    await _require_ingest(request, services, who, counter)
    await bodies.read(request, services, MAX_BEACON_BYTES)
    await _count_visit(request, services, who, counter, key)
    return Response(status_code=204, headers=_HEADERS)


def _counter_and_key(request: Request) -> tuple[str, str]:
    """Return the counter in the path of a request, and the key under which it counts.

    Raises:
        Problem: 422 the counter's name or the key is not valid.
    """
    counter, key = counter_of_path(request), request.path_params["key"]
    try:
        return check_counter(counter), check_key(key)
    except ValueError as error:
        raise Problem(422, f"The path is not valid: {error}") from None


async def _may_see(request: Request, services: Services, who: Identity, counter: str) -> bool:
    """Return whether ``who`` may see the totals of a counter: the counter is public, or ``who`` has
    the scope read and may name the counter.

    Raises:
        Problem: 503 ``who`` lacks these rights, and :meth:`PublicCounters.has` cannot find out
            whether the counter is public.
    """
    if who.may("read") and who.may_name(counter):
        return True
    return await services.single(PublicCounters).has(counter, request.scope["countersink.holder"])


async def _require_ingest(
    request: Request, services: Services, who: Identity, counter: str
) -> None:
    """Check that ``who`` may add to a counter.

    Raises:
        Problem: 403 the counter is not public, and ``who`` lacks the scope ingest or may not name
            the counter; 503 ``who`` lacks these rights, and :meth:`PublicCounters.has` cannot find
            out whether the counter is public.
    """
    if not who.public and who.may_name(counter):
        return
    if await services.single(PublicCounters).has(counter, request.scope["countersink.holder"]):
        return
    if who.public:
        raise Problem(
            403,
            "The counter is not public: send a key with the scope ingest, or start the server"
            " with --public-counter (a counter that matches a pattern must exist)",
        )
    raise Problem(403, "This key may not name this counter")


async def _count_visit(
    request: Request, services: Services, who: Identity, counter: str, key: str
) -> int:
    """Count a visit, unless the request is a HEAD or a prefetch. Return the number of counted
    visits, 1 or 0. If the option ``hit_visitors`` has the counter or a pattern for it, and the
    counter is known to count different members, the client's address and User-Agent are the member.

    Raises:
        Problem: :func:`accept` refuses the visit, for example with 503 if the producer is full.
    """
    if request.method == "HEAD" or _is_prefetch(request):
        return 0
    if services.single(visitor_counters)(counter) and await _has_visitors(
        request, services, counter
    ):
        agent = request.headers.get("user-agent", "")
        member = visitor_of(request.scope["countersink.client"], agent)
        accept(services, who, [Increment(counter, key, member=member)])
        return 1
    accept(services, who, [Increment(counter, key)])
    return 1


async def _has_visitors(request: Request, services: Services, counter: str) -> bool:
    """Return whether a counter counts different members. The producer, which asks Redis, may not
    know this yet: wait at most :data:`SALT_WAIT_S` until it does, or not at all if too many other
    requests wait. Return False if it still does not know."""
    counts_members = services.producer.counts_members
    await wait_until(request, services, lambda: counts_members(counter) is not None, SALT_WAIT_S)
    return bool(counts_members(counter))


def _is_prefetch(request: Request) -> bool:
    return any(
        name in _PREFETCH_HEADERS and b"prefetch" in value.lower()
        for name, value in request.scope["headers"]
    )


def _matcher(patterns: Sequence[str]) -> Callable[[str], re.Match[str] | None]:
    return re.compile("|".join(map(translate, patterns)) or _NOTHING).match


def visitor_counters(services: Services) -> Callable[[str], re.Match[str] | None]:
    """Return a function that takes the name of a counter. It returns a match if the option
    ``hit_visitors`` contains the name or a pattern for it, else None. With a match, hits of the
    counter are counted together with their visitors, if the counter counts different members."""
    return _matcher(services.options.hit_visitors)


class PublicCounters:
    """Tells whether a counter is public: anybody may count visits in it, and see its badges. Use it
    only in the event loop's thread.

    Args:
        services: have the option ``public_counters``, the store, and the places of waiting
            requests.
    """

    def __init__(self, services: Services) -> None:
        patterns = services.options.public_counters
        wild = [pattern for pattern in patterns if not _WILD.isdisjoint(pattern)]
        self._listed = frozenset(patterns).difference(wild)
        self._matches = _matcher(wild)
        self._services = services
        self._known: frozenset[str] = frozenset()
        self._names = CachedAnswer(
            self._read, kept_s=FRESH_S, within_s=PATIENCE_S, kept_factor=KEPT_FACTOR
        )

    async def has(self, counter: str, holder: str) -> bool:
        """Return whether a counter is public. It is if the option ``public_counters`` contains its
        name, or if the counter exists and the option contains a pattern that matches its name.
        Names of existing counters are cached for :data:`FRESH_S` or longer, so a counter that was
        created or deleted just now may have the wrong result.

        Args:
            counter: name of the counter.
            holder: id of the key, or address of a client without one. While this call waits for
                MySQL, it counts as a waiting request of ``holder`` (see :class:`WaitingPlaces`).

        Raises:
            Problem: 503 a pattern matches, it is unknown whether the counter exists, and MySQL does
                not answer or too many requests wait already.
        """
        if counter in self._listed:
            return True
        if not self._matches(counter):
            return False
        asked = self._names.start()
        if counter in self._known:
            return True
        try:
            with self._services.places.needed(holder):
                async with asyncio.timeout(PATIENCE_S):
                    return counter in await asyncio.wrap_future(asked)
        except (StoreError, TimeoutError) as error:
            raise Problem(
                503,
                "MySQL does not answer whether this counter exists; nothing was counted",
                retry_after=2,
            ) from error

    def _read(self) -> frozenset[str]:
        names = self._services.store.snapshot(counter_names)
        self._known = frozenset(filter(self._matches, names))
        return self._known


_REFUSED: Final = {
    "422": "The counter's name or the key is not valid.",
    "503": "The queue accepts no increments at the moment, or MySQL does not answer whether a"
    " counter that matches a public pattern exists; nothing was counted.",
}
_PICTURE: Final = {"type": "string", "format": "binary"}


def _route(
    method: str,
    ending: str,
    handler: Handler,
    name: str,
    summary: str,
    responses: Mapping[str, Any],
    parameters: Sequence[Parameter] | None = None,
) -> Route:
    return Route(
        method,
        f"/hit/{{counter}}/{{key:path}}{ending}",
        handler,
        scope="ingest",
        public=True,
        waits=False,
        parameters=parameters,
        name=name,
        summary=summary,
        description="Public counters (`--public-counter`) need no key.",
        responses={**responses, **_REFUSED},
    )


ROUTES: Final = (
    _route(
        "GET",
        ".gif",
        pixel,
        "hitPixel",
        "Count a visit: a transparent pixel.",
        {"200": response("A picture.", _PICTURE, "image/gif")},
    ),
    _route(
        "GET",
        ".svg",
        number,
        "hitBadge",
        "Count a visit: a badge with the number, which takes the scope read where the counter is"
        " not public.",
        {"200": response("A picture.", _PICTURE, "image/svg+xml")},
        (_LABEL, _COUNT),
    ),
    _route(
        "POST",
        "",
        beacon,
        "hitBeacon",
        "Count a visit: for navigator.sendBeacon. The body is ignored.",
        {"204": "The visit is counted."},
    ),
)
