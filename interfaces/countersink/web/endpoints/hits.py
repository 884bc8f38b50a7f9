"""``/hit/...``: pixel, badge and beacon that count a visit; who may (public counters), prefetches
that are not counted, parameters of the badge, refusals with their texts; the SVG is in
``web/badges.py``."""

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
from countersink.web.endpoints.increments import accept, until
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
"""Of a beacon's body, which nobody reads: as much as browsers send."""
FRESH_S: Final = 2.0
"""Seconds after which there may be another counter."""
REST: Final = 4.0
"""Where reading the names takes long, the pause after it is so many times as long."""
PATIENCE_S: Final = 2.0
"""Seconds that a visitor waits for that at most."""
SALT_WAIT_S: Final = 2.0
"""Seconds for which a hit waits until Redis has told whether its counter has a salt."""
_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
_AHEAD: Final = ((b"sec-purpose", b"prefetch"), (b"purpose", b"prefetch"), (b"x-moz", b"prefetch"))
"""What browsers say that load a page which nobody may ever look at."""
_WILD: Final = frozenset("*?[")
_NOTHING: Final = "(?!)"
"""Matches nothing."""


_LABEL: Final = short_text(
    "label", "a label", MAX_LABEL_LENGTH, "What stands on the left.", default="hits"
)
_COUNT: Final = choice("count", ("0", "1"), "`0` shows the number and counts nothing.", default="1")


async def pixel(request: Request, services: Services, who: Identity) -> Response:
    """Count a visit, and answer with a picture that nobody sees. Whatever the query says: a page
    may add to it what keeps others' caches away."""
    counter, key = _named(request)
    await _require_ingest(request, services, who, counter)
    await _visit(request, services, who, counter, key)
    return Response(GIF, headers=_HEADERS, media_type="image/gif")


async def number(request: Request, services: Services, who: Identity) -> Response:
    """Count a visit, and answer with a picture of the number."""
    given = request.scope["countersink.given"]
    counter, key = _named(request)
    visits, total = 0, None
    counts = given["count"] == "1"
    if counts:
        await _require_ingest(request, services, who, counter)
        visits = await _visit(request, services, who, counter, key)
    try:
        if await _may_see(request, services, who, counter):
            with services.places.needed(request.scope["countersink.holder"]):
                total = await services.one(HitNumbers).number(counter, key, visits)
        elif not counts:
            raise Problem(403, "This takes a key with the scope read, for this counter")
    except Problem:
        if not counts:
            raise
    picture = badge(given["label"], total)
    return Response(picture, headers=_HEADERS, media_type="image/svg+xml")


async def beacon(request: Request, services: Services, who: Identity) -> Response:
    """Count a visit that ``navigator.sendBeacon`` tells of."""
    counter, key = _named(request)
    await _require_ingest(request, services, who, counter)
    await bodies.read(request, services, MAX_BEACON_BYTES)
    await _visit(request, services, who, counter, key)
    return Response(status_code=204, headers=_HEADERS)


def _named(request: Request) -> tuple[str, str]:
    """Counter and key that the path names.

    Raises:
        Problem: 422 there can be no such counter or key.
    """
    counter, key = counter_of_path(request), request.path_params["key"]
    try:
        return check_counter(counter), check_key(key)
    except ValueError as error:
        raise Problem(422, f"This cannot be counted: {error}") from None


async def _may_see(request: Request, services: Services, who: Identity, counter: str) -> bool:
    """Whether they may see a counter's number: it is public, or their key has the scope read.

    Raises:
        Problem: 503 whether it is public cannot be told.
    """
    if who.may("read") and who.may_name(counter):
        return True
    return await services.one(PublicCounters).has(counter, request.scope["countersink.holder"])


async def _require_ingest(
    request: Request, services: Services, who: Identity, counter: str
) -> None:
    """Check that they may add to a counter.

    Raises:
        Problem: 403 it is neither theirs nor public; 503 that cannot be told.
    """
    if not who.public and who.may_name(counter):
        return
    if await services.one(PublicCounters).has(counter, request.scope["countersink.holder"]):
        return
    if who.public:
        raise Problem(
            403,
            "The counter is not public: show a key with the scope ingest, or let the server be"
            " started with --public-counter (a counter that only fits a pattern must exist)",
        )
    raise Problem(403, "The key may not name this counter")


async def _visit(
    request: Request, services: Services, who: Identity, counter: str, key: str
) -> int:
    """Count, if somebody looks; how many visits were counted."""
    if request.method == "HEAD" or _is_ahead(request):
        return 0
    if services.one(visitor_counters)(counter) and await _has_visitors(request, services, counter):
        agent = request.headers.get("user-agent", "")
        member = visitor_of(request.scope["countersink.client"], agent)
        accept(services, who, [Increment(counter, key, member=member)])
        return 1
    accept(services, who, [Increment(counter, key)])
    return 1


async def _has_visitors(request: Request, services: Services, counter: str) -> bool:
    """Whether a counter counts different ones, as far as is known."""
    counts_members = services.producer.counts_members
    await until(request, services, lambda: counts_members(counter) is not None, SALT_WAIT_S)
    return bool(counts_members(counter))


def _is_ahead(request: Request) -> bool:
    return any(
        name == head and said in value.lower()
        for name, value in request.scope["headers"]
        for head, said in _AHEAD
    )


def _fitting(patterns: Sequence[str]) -> Callable[[str], re.Match[str] | None]:
    return re.compile("|".join(map(translate, patterns)) or _NOTHING).match


def visitor_counters(services: Services) -> Callable[[str], re.Match[str] | None]:
    """What fits the counters whose hits tell the visitor."""
    return _fitting(services.options.hit_visitors)


class PublicCounters:
    """The public counters of one process. For the event loop's thread.

    Args:
        services: what they are looked up with.
    """

    def __init__(self, services: Services) -> None:
        patterns = services.options.public_counters
        wild = [one for one in patterns if not _WILD.isdisjoint(one)]
        self._named = frozenset(patterns).difference(wild)
        self._fits = _fitting(wild)
        self._services = services
        self._known: frozenset[str] = frozenset()
        self._names = CachedAnswer(self._read, kept_s=FRESH_S, within_s=PATIENCE_S, rest=REST)

    async def has(self, counter: str, holder: str) -> bool:
        """Whether a counter is public.

        Args:
            counter: its name.
            holder: of the place that is taken while MySQL is asked.

        Raises:
            Problem: 503, MySQL does not tell whether there is such a counter.
        """
        if counter in self._named:
            return True
        if not self._fits(counter):
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
                "Whether there is such a counter cannot be told for now; nothing was counted",
                retry_after=2,
            ) from error

    def _read(self) -> frozenset[str]:
        names = self._services.store.snapshot(counter_names)
        self._known = frozenset(filter(self._fits, names))
        return self._known


_REFUSED: Final = {
    "422": "There can be no such counter or key.",
    "503": "The queue takes no more for now, or MySQL does not tell whether there is a counter that"
    " fits a public pattern; nothing was counted.",
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
        description="Counters that the server is told are public need no key.",
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
        "Count a visit: for navigator.sendBeacon. The body is not looked at.",
        {"204": "It is counted."},
    ),
)
