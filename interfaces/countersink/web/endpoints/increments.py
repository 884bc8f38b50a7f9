"""``POST /v1/increments``: members of the body, bounds of times, ids and amounts, texts of the
errors for each increment, Idempotency-Key, 503 when the queue is full.

The body is JSON, read strictly: each error is told with its place.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, Literal

import anyio
import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from countersink.producers import Increment, InvalidBatch
from countersink.producers.batch import IncrementTuple
from countersink.runtime.dimensions import MAX_DIMENSIONS
from countersink.runtime.members import SALT_SECONDS
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route, bodies
from countersink.web.http.bodies import read_json
from countersink.web.http.openapi import Closed, response, schema_of, words
from countersink.web.http.parameters import COUNTER_NAME, choice
from countersink.web.options import DAY_S, WebOptions
from countersink.web.services import Acknowledgements, Services

State = Literal["accepted", "stored", "applied", "unknown"]
RETRY_AFTER_S: Final = 1
SALT_WAIT_S: Final = SALT_SECONDS + 2.0
"""Seconds for which a request waits until it is known whether its counter has a salt: the first
one, those right after ``--unique``, and those while no worker has made the present one."""
SALT_POLL_S: Final = 0.02
MAX_ERRORS: Final = 20
"""Errors that are told at once."""
MAX_ID_LENGTH: Final = 255
"""Characters in the ``id`` of an increment and in an ``Idempotency-Key``."""
_WAIT: Final = choice(
    "wait",
    ("stored", "applied"),
    "Answer only when the increments are `stored` in Redis (or fsynced on this server's disk), or"
    " `applied` in MySQL: 200 then, and 202 if that takes too long or too many wait already; they"
    " will get there. 202 with"
    " the state `unknown`: they were stored, but Redis has lost entries since.",
)


async def add(request: Request, services: Services, who: Identity) -> Response:
    """Accept increments: all of them, or none."""
    wait: State | None = request.scope["countersink.given"]["wait"]
    media_type, name = _headers(request)
    bodies.check_json(media_type)
    body = await bodies.read(request, services)
    increments = read_increments(body, services.options, who)
    salted = {each[0] for each in increments if len(each) > 5}
    await until(request, services, partial(_have_salts, services, salted), SALT_WAIT_S)
    accept(services, who, increments, None if name is None else scoped(who, name))
    if wait is None:
        return answer(len(increments), None)
    acknowledged = services.one(Acknowledgements)
    waiting = acknowledged.applied if wait == "applied" else acknowledged.stored
    with services.places.taken(request.scope["countersink.holder"]) as may_wait:
        reached = may_wait and await waiting(services.options.wait_s)
    state: State = "unknown" if reached is None else wait if reached else "accepted"
    return answer(len(increments), state)


def _have_salts(services: Services, waiting: set[str]) -> bool:
    """Whether none of the counters awaits its salt; each that does not is taken out, and all that
    are left are asked for at once."""
    waiting -= {each for each in waiting if not services.producer.awaits_salt(each)}
    return not waiting


async def until(
    request: Request, services: Services, told: Callable[[], bool], within_s: float
) -> None:
    """Wait until ``told`` says so, for so many seconds at most: until Redis has told of salts. Not
    where there is no place to wait."""
    if told():
        return
    deadline = time.monotonic() + within_s
    with services.places.taken(request.scope["countersink.holder"]) as may_wait:
        while may_wait and not told() and time.monotonic() < deadline:
            await anyio.sleep(SALT_POLL_S)


def accept(
    services: Services,
    who: Identity,
    increments: Sequence[IncrementTuple | Increment],
    id: str | None = None,
) -> None:
    """Have the producer accept all increments.

    Raises:
        Problem: 403 their key has used too many counters; 422 some are not valid; 413 they are too
            large together; 503 there is no room, or the server is ending.
    """
    names = {each[0] for each in increments}
    used = services.quotas.check(who, "counters", names)
    try:
        accepted = services.producer.increment_batch(increments, id=id)
    except InvalidBatch as error:
        raise invalid(error.errors) from None
    except ValueError as error:  # too many bytes for the entry that a request with a name is
        raise Problem(413, f"{error}; nothing was counted") from None
    except RuntimeError:
        accepted = False  # closed: the process is ending
    if not accepted:
        raise Problem(
            503,
            "The queue does not take more for the moment, or no worker has made the salts of its"
            " visitors yet; nothing was counted: send it again later",
            retry_after=RETRY_AFTER_S,
        )
    used |= names


def answer(accepted: int, state: State | None) -> Response:
    """What is told of increments that were accepted."""
    if state is None:
        body, status = b'{"accepted":%d}' % accepted, 202
    else:
        body = b'{"accepted":%d,"state":"%b"}' % (accepted, state.encode())
        status = 200 if state in ("stored", "applied") else 202
    return Response(body, status, media_type="application/json")


def _headers(request: Request) -> tuple[str, str | None]:
    """The media type, empty where none is given, and the Idempotency-Key."""
    found: Mapping[bytes, bytes] = request.scope["countersink.headers"]
    media_type = found.get(b"content-type", b"").decode("latin-1")
    name = found.get(b"idempotency-key")
    if name is None:
        return media_type, None
    text = name.decode("latin-1")
    if not (1 <= len(text) <= MAX_ID_LENGTH and text.isascii() and text.isprintable()):
        raise Problem(
            422, f"An Idempotency-Key is 1 to {MAX_ID_LENGTH} visible characters of ASCII"
        )
    return media_type, text


def read_increments(
    body: bytes,
    options: WebOptions,
    who: Identity,
    clock: Callable[[], float] = time.time,
) -> list[IncrementTuple | Increment]:
    """The increments of a body: of one JSON object, or an array of them.

    Counters, keys and 64 bits are left to the producer, whose rules they are.

    Args:
        body: the bytes.
        options: the bounds of amounts and times, and of how many there may be.
        who: sent them.
        clock: Unix seconds; asked once, and only where an increment says its time.

    Raises:
        Problem: 400 the body is no JSON; 413 there are too many; 422 some are not valid; 403 one is
            for a counter that is not theirs to name.
    """
    items = _items(body, options.max_items)
    most = options.max_amount
    increments: list[IncrementTuple | Increment] = []
    errors: list[tuple[int, str]] = []
    checked: set[str] = set()
    now: float | None = None
    for position, item in enumerate(items):
        counter, key, amount, at, id = item.counter, item.key, item.amount, item.at, item.id
        if counter not in checked:
            if not who.may_name(counter):
                raise Problem(403, "The key may not name one of these counters")
            checked.add(counter)
        try:
            if amount is UNSET:
                amount = 1
            elif not -most <= amount <= most:
                raise ValueError(f"the amount is at most {most:,} here, and at least {-most:,}")
            when = None
            if at is not UNSET and at is not None:
                when = read_time(at)
                now = clock() if now is None else now
                _check_time(when, now, options)
            name = None if id is UNSET or id is None else scoped(who, _checked_id(id))
        except ValueError as error:
            errors.append((position, str(error)))
        else:
            plain = (counter, key or "", amount, when, name)
            visitor = item.visitor
            if visitor is UNSET or visitor is None:
                increments.append(plain)
            else:
                increments.append(Increment(*plain, visitor))
    if errors:
        raise invalid(errors)
    return increments


def _check_time(when: datetime, now: float, options: WebOptions) -> None:
    """Whether an increment's time is within bounds, both ends included.

    Raises:
        ValueError: it is not.
    """
    seconds = when.timestamp()
    if seconds > now + options.max_ahead_s:
        raise ValueError(
            f"'at' lies more than {options.max_ahead_s:,.15g} s ahead of this server's clock: set"
            " the sender's right"
        )
    if options.max_age_days and seconds < now - options.max_age_days * DAY_S:
        raise ValueError(
            f"'at' lies more than {options.max_age_days:,} days back, and this server takes nothing"
            " older: count it by `countersink backfill`"
        )


def scoped(who: Identity, id: str) -> str:
    """``id`` in the scope of somebody's key: two keys' ids never meet."""
    return f"http:{who.key_id}/{id}"


def read_time(at: str | float) -> datetime:
    """An event's time: ISO 8601 with a time zone, or Unix seconds.

    Raises:
        ValueError: it is neither.
    """
    try:
        if not isinstance(at, str):
            return datetime.fromtimestamp(at, UTC)
        when = datetime.fromisoformat(at)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            "'at' is a time such as 2026-11-21T08:00:00Z, or Unix seconds (not milliseconds)"
        ) from None
    if when.utcoffset() is None:
        raise ValueError("'at' needs a time zone, such as Z or +01:00")
    return when


def _checked_id(id: str) -> str:
    if not 1 <= len(id) <= MAX_ID_LENGTH:
        raise ValueError(f"'id' has 1 to {MAX_ID_LENGTH} characters")
    return id


class IncrementAsked(Closed, gc=False):
    """What to add to a counter."""

    counter: Annotated[str, Meta(extra_json_schema=dict(COUNTER_NAME))]
    key: (
        Annotated[
            str | dict[str, str],
            Meta(
                description="One of more than 255 bytes of UTF-8 is counted under its beginning,"
                " `~` and the first 16 hex digits of its SHA-256. For a counter that has"
                " dimensions, an object of their names and values.",
                extra_json_schema={
                    "default": "",
                    "propertyNames": {"pattern": "^[a-z][a-z0-9_]{0,31}$"},
                    "maxProperties": MAX_DIMENSIONS,
                },
            ),
        ]
        | UnsetType
    ) = UNSET
    amount: (
        Annotated[
            int,
            Meta(
                description="0 declares the key. The server may be set to other limits.",
                extra_json_schema={
                    "default": 1,
                    "minimum": -1_000_000_000,
                    "maximum": 1_000_000_000,
                },
            ),
        ]
        | UnsetType
    ) = UNSET
    at: (
        Annotated[
            str | int | float | None,
            Meta(
                description="ISO 8601 with a time zone, or Unix seconds, from 3,650 days back to a"
                " day ahead of the server's clock. Default: now. It may be set to other limits.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    id: (
        Annotated[
            str | None,
            Meta(
                description="The event's own name: with the same counter, id and API key it is"
                " counted once within `ledger_days`, however often it is sent.",
                extra_json_schema={"minLength": 1, "maxLength": MAX_ID_LENGTH},
            ),
        ]
        | UnsetType
    ) = UNSET
    visitor: (
        Annotated[
            str | None,
            words(
                "Who was seen, of a counter that counts different visitors (`counter set"
                " --unique`); the amount is 1 then. It is hashed here, and neither stored nor sent"
                " on."
            ),
        ]
        | UnsetType
    ) = UNSET


_decode = msgspec.json.Decoder(list[IncrementAsked] | IncrementAsked).decode


def _items(body: bytes, most: int) -> Sequence[IncrementAsked]:
    bodies.check_parts(body, most)
    try:
        found = _decode(body)
    except msgspec.ValidationError:
        return _items_one_by_one(body, most)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _no_json() from None
    items = found if isinstance(found, list) else [found]
    _check_number(len(items), most)
    if not _is_told_once(body, items):
        read_json(body)
    return items


def _is_told_once(body: bytes, items: Sequence[IncrementAsked]) -> bool:
    """Whether surely no member is in ``body`` twice: it has no string besides those of ``items``.

    Looking at each member takes three times as long as all the rest.
    """
    strings = 2 * len(items)
    for item in items:
        if isinstance(item.key, str):
            strings += 2
        elif item.key is not UNSET:
            strings += 1 + 2 * len(item.key)
        if item.amount is not UNSET:
            strings += 1
        if item.at is not UNSET:
            strings += 1 + isinstance(item.at, str)
        if item.id is not UNSET:
            strings += 1 + isinstance(item.id, str)
        if item.visitor is not UNSET:
            strings += 1 + isinstance(item.visitor, str)
    return b"\\" not in body and body.count(b'"') == 2 * strings


def _items_one_by_one(body: bytes, most: int) -> Sequence[IncrementAsked]:
    """The same, slowly, when some are not valid, to tell which, or have whole numbers as floats."""
    try:
        found = read_json(body)
    except msgspec.ValidationError as error:  # a number that is too large, or too long
        raise Problem(422, f"The body is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _no_json() from None
    each = found if isinstance(found, list) else [found]
    _check_number(len(each), most)
    items: list[IncrementAsked] = []
    errors: list[tuple[int, str]] = []
    for position, item in enumerate(each):
        try:
            items.append(msgspec.convert(item, IncrementAsked))
        except (msgspec.ValidationError, RecursionError) as error:
            errors.append((position, str(error)))
    if errors:
        raise invalid(errors)
    return items


def _check_number(items: int, most: int) -> None:
    if items > most:
        raise Problem(413, f"At most {most:,} increments fit into one request: send several")
    if not items:
        raise Problem(422, "There is no increment in the array: send at least one")


def invalid(errors: Sequence[tuple[int, str]]) -> Problem:
    """A 422 for increments by their position from 0."""
    return Problem(
        422,
        "Some increments are not valid; nothing was counted",
        extra={
            "errors": [
                {"index": index, "detail": detail} for index, detail in sorted(errors)[:MAX_ERRORS]
            ]
        },
    )


def _no_json() -> Problem:
    return Problem(400, 'The body is not JSON: send {"counter": "page_views", "key": "/home"}')


class Accepted(Closed):
    """Increments that were accepted."""

    accepted: Annotated[int, Meta(ge=1)]
    state: State | UnsetType = UNSET


_INCREMENT: Final = schema_of(IncrementAsked)
_BODY: Final[dict[str, Any]] = {
    "schema": {
        "oneOf": [
            _INCREMENT,
            {"type": "array", "items": _INCREMENT, "minItems": 1, "maxItems": 1_000},
        ]
    }
}
_IDEMPOTENCY_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": (
        "Names the request: of all requests with the same name and API key one is counted, as a"
        " whole, within `ledger_days`, however often and concurrently it is sent. None of its"
        " increments has an `id` then. Another body under the same name is not counted."
    ),
    "schema": {"type": "string", "pattern": f"^[!-~][ -~]{{0,{MAX_ID_LENGTH - 1}}}$"},
}
ROUTES: Final = (
    Route(
        "POST",
        "/v1/increments",
        add,
        scope="ingest",
        waits=False,
        parameters=(_WAIT,),
        name="addIncrements",
        summary="Count: one increment, or up to 1,000, all or none.",
        headers=[_IDEMPOTENCY_KEY],
        body={"required": True, "content": {"application/json": _BODY, "text/plain": _BODY}},
        responses={
            "200": response("They are where `wait` asked for.", Accepted),
            "202": response(
                "They are accepted: in this server's memory, and on their way."
                " State `unknown`: Redis had them, and has lost entries since; sent again"
                " with the same Idempotency-Key they count once all the same.",
                Accepted,
            ),
            "400": "The body is not JSON.",
            "413": "Too many increments, or too many bytes.",
            "415": "The body is announced as something else than JSON.",
            "422": "Some increments are not valid; nothing was counted.",
            "503": "The queue takes no more for now, or no worker has made the salts of visitors"
            " yet; nothing was counted.",
        },
    ),
)
