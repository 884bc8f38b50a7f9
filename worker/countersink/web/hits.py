"""``/hit/…``: pages that count their visitors, by a picture or a beacon."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from countersink.producers import Increment
from countersink.stream.limits import MAX_KEY_BYTES, check_counter, check_key
from countersink.web import bodies
from countersink.web.badge import MAX_LABEL_LENGTH, badge
from countersink.web.door import Door
from countersink.web.hit_numbers import HIT_NUMBERS
from countersink.web.identity import Identity
from countersink.web.ingest import accept
from countersink.web.parameters import COUNTER_NAME, Parameter, read
from countersink.web.problem import Problem
from countersink.web.public import PUBLIC
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
_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
_AHEAD: Final = ((b"sec-purpose", b"prefetch"), (b"purpose", b"prefetch"), (b"x-moz", b"prefetch"))
"""What browsers say that load a page which nobody may ever look at."""


def _label(text: str) -> str:
    if len(text) > MAX_LABEL_LENGTH:
        raise ValueError(f"a label has at most {MAX_LABEL_LENGTH} characters")
    return text


def _count(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("give 0 to show the number without counting, or 1")
    return text == "1"


_LABEL: Final = Parameter(
    name="label",
    read=_label,
    description="What stands on the left.",
    schema={"type": "string", "maxLength": MAX_LABEL_LENGTH, "default": "hits"},
    default="hits",
)
_COUNT: Final = Parameter(
    name="count",
    read=_count,
    description="`0` shows the number and counts nothing.",
    schema={"type": "string", "enum": ["0", "1"], "default": "1"},
    default=True,
)


async def pixel(request: Request, services: Services, who: Identity) -> Response:
    """Count a visit, and answer with a picture that nobody sees. Whatever the query says: a page
    may add to it what keeps others' caches away."""
    counter, key = await _place(request, services, who)
    _visit(request, services, counter, key)
    return Response(GIF, headers=_HEADERS, media_type="image/gif")


async def number(request: Request, services: Services, who: Identity) -> Response:
    """Count a visit, and answer with a picture of the number."""
    given = read(request, (_LABEL, _COUNT))
    counter, key = _named(request)
    visits, total = 0, None
    if given["count"]:
        await _require_ingest(services, who, counter)
        visits = _visit(request, services, counter, key)
    try:
        if await _may_see(services, who, counter):
            total = await HIT_NUMBERS.of(services).number(counter, key, visits)
        elif not given["count"]:
            raise Problem(403, "This takes a key with the scope read, for this counter")
    except Problem:
        if not given["count"]:
            raise
    picture = badge(given["label"], total)
    return Response(picture, headers=_HEADERS, media_type="image/svg+xml")


async def beacon(request: Request, services: Services, who: Identity) -> Response:
    """Count a visit that ``navigator.sendBeacon`` tells of."""
    return await _told(request, services, who)


async def beacon_gif(request: Request, services: Services, who: Identity) -> Response:
    """The same of a key that ends like the pixel's path."""
    return await _told(request, services, who, ".gif")


async def beacon_svg(request: Request, services: Services, who: Identity) -> Response:
    """The same of a key that ends like the badge's path."""
    return await _told(request, services, who, ".svg")


async def _told(request: Request, services: Services, who: Identity, ending: str = "") -> Response:
    request.path_params["key"] += ending
    counter, key = await _place(request, services, who)
    await bodies.discard(request, MAX_BEACON_BYTES)
    _visit(request, services, counter, key)
    return Response(status_code=204, headers=_HEADERS)


async def _place(request: Request, services: Services, who: Identity) -> tuple[str, str]:
    """Counter and key that the path names, if they may add to it.

    Raises:
        Problem: as :func:`_named` and :func:`_require_ingest`.
    """
    counter, key = _named(request)
    await _require_ingest(services, who, counter)
    return counter, key


def _named(request: Request) -> tuple[str, str]:
    """Counter and key that the path names.

    Raises:
        Problem: 422 there can be no such counter or key.
    """
    counter, key = request.path_params["counter"], request.path_params["key"]
    try:
        check_counter(counter)
        check_key(key)
    except ValueError as error:
        raise Problem(422, f"This cannot be counted: {error}") from None
    return counter, key


async def _may_see(services: Services, who: Identity, counter: str) -> bool:
    """Whether they may see a counter's number: it is public, or their key has the scope read.

    Raises:
        Problem: 503 whether it is public cannot be told.
    """
    if who.may("read") and who.may_name(counter):
        return True
    return await PUBLIC.of(services).has(counter)


async def _require_ingest(services: Services, who: Identity, counter: str) -> None:
    """Check that they may add to a counter.

    Raises:
        Problem: 403 it is neither theirs nor public; 503 that cannot be told.
    """
    if not who.public and who.may_name(counter):
        return
    if await PUBLIC.of(services).has(counter):
        return
    if who.public:
        raise Problem(
            403,
            "The counter is not public: show a key with the scope ingest, or let the server be"
            " started with --public-counter (a counter that only fits a pattern must exist)",
        )
    raise Problem(403, "The key may not name this counter")


def _visit(request: Request, services: Services, counter: str, key: str) -> int:
    """Count, if somebody looks; how many visits were counted."""
    if request.method == "HEAD" or _is_ahead(request):
        return 0
    accept(services, [Increment(counter, key)])
    return 1


def _is_ahead(request: Request) -> bool:
    return any(
        name == head and said in value.lower()
        for name, value in request.scope["headers"]
        for head, said in _AHEAD
    )


_COUNTER_PARAMETER: Final[dict[str, Any]] = {
    "name": "counter",
    "in": "path",
    "required": True,
    "schema": COUNTER_NAME,
}
_REFUSED: Final[dict[str, Any]] = {
    "403": {"description": "The counter is neither public nor the key's."},
    "422": {"description": "There can be no such counter or key."},
    "503": {
        "description": "The queue takes no more for now, or MySQL does not tell whether there is"
        " a counter that fits a public pattern; nothing was counted."
    },
}


def _key(longest: int) -> dict[str, Any]:
    return {
        "name": "key",
        "in": "path",
        "required": True,
        "description": "May hold slashes.",
        "schema": {"type": "string", "maxLength": longest},
    }


def _beacon(id: str, ending: str = "") -> dict[str, Any]:
    summary = "Count a visit: for navigator.sendBeacon. The body is not looked at."
    if ending:
        summary += f" The key ends in {ending}."
    longest = MAX_KEY_BYTES - len(ending)
    return _operation(id, summary, {"204": {"description": "It is counted."}}, [], longest)


def _operation(
    id: str,
    summary: str,
    answer: dict[str, Any],
    parameters: list[dict[str, Any]],
    longest: int = MAX_KEY_BYTES,
) -> dict[str, Any]:
    return {
        "operationId": id,
        "summary": summary,
        "description": "Counters that the server is told are public need no key.",
        "tags": ["sending"],
        "parameters": [_COUNTER_PARAMETER, _key(longest), *parameters],
        "responses": {**answer, **_REFUSED},
    }


def _picture(media_type: str) -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"}
    return {"200": {"description": "A picture.", "content": {media_type: {"schema": schema}}}}


DOORS: Final = (
    Door(
        method="GET",
        path="/hit/{counter}/{key:path}.gif",
        handler=pixel,
        scope="ingest",
        public=True,
        operation=_operation(
            "hitPixel", "Count a visit: a transparent pixel.", _picture("image/gif"), []
        ),
    ),
    Door(
        method="GET",
        path="/hit/{counter}/{key:path}.svg",
        handler=number,
        scope="ingest",
        public=True,
        operation=_operation(
            "hitBadge",
            "Count a visit: a badge with the number, which takes the scope read where the counter"
            " is not public.",
            _picture("image/svg+xml"),
            [_LABEL.document(), _COUNT.document()],
        ),
    ),
    # One path may be of two doors: the document has to tell what each of them does with it.
    Door(
        method="POST",
        path="/hit/{counter}/{key:path}.gif",
        handler=beacon_gif,
        scope="ingest",
        public=True,
        operation=_beacon("hitBeaconGif", ".gif"),
    ),
    Door(
        method="POST",
        path="/hit/{counter}/{key:path}.svg",
        handler=beacon_svg,
        scope="ingest",
        public=True,
        operation=_beacon("hitBeaconSvg", ".svg"),
    ),
    Door(
        method="POST",
        path="/hit/{counter}/{key:path}",
        handler=beacon,
        scope="ingest",
        public=True,
        operation=_beacon("hitBeacon"),
    ),
)
