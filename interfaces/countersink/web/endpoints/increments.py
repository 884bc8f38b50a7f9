"""The endpoint ``POST /v1/increments``: the body's members with their bounds and errors, the header
Idempotency-Key, ``?wait=``, and 503 while the producer accepts no more.

The body is strict JSON. Errors in increments, 20 at most, are answered with their positions."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
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
from countersink.runtime.texts import plural
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Route, bodies
from countersink.web.http.answers import EncodedResponse
from countersink.web.http.bodies import read_json
from countersink.web.http.openapi import Closed, doc, response, schema_of
from countersink.web.http.parameters import COUNTER_NAME, choice
from countersink.web.options import DAY_S, WebOptions
from countersink.web.services import Acknowledgements, Services

State = Literal["accepted", "stored", "applied", "unknown"]
RETRY_AFTER_S: Final = 1
SALT_WAIT_S: Final = SALT_SECONDS + 2.0
"""Maximum seconds that a request with visitors waits until the producer knows the salt with which
the counter's visitors are hashed. It waits if it is the first such request, comes right after
``--unique``, or comes before a worker has made the current salt."""
SALT_POLL_S: Final = 0.02
MAX_ERRORS: Final = 20
"""Maximum number of errors in one answer."""
MAX_ID_LENGTH: Final = 255
"""Maximum characters of the ``id`` of an increment and of an ``Idempotency-Key``."""
_WAIT: Final = choice(
    "wait",
    ("stored", "applied"),
    "Answer only when the increments are `stored` in Redis (or fsynced on this server's disk), or"
    " `applied` in MySQL: then 200; 202 if that takes too long or too many requests wait already:"
    " the increments are still stored and applied later. 202 with the state `unknown`: they were"
    " stored, but Redis has lost entries since.",
)


async def add(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``POST /v1/increments``: wait for salts if some increments have visitors, and accept
    all increments of the body, or none. With the parameter ``wait``, answer when they have this
    state, or with 202 if they do not reach it in ``wait_s`` or too many requests wait already."""
    wait: State | None = request.scope["countersink.given"]["wait"]
    media_type, name = _headers(request)
    bodies.check_json(media_type)
    body = await bodies.read(request, services)
    increments = read_increments(body, services.options, who)
    salted = {each[0] for each in increments if len(each) > 5}
    if salted:
        await wait_until(request, services, partial(_have_salts, services, salted), SALT_WAIT_S)
    accept(services, who, increments, None if name is None else scoped(who, name))
    if wait is None:
        return answer(len(increments), None)
    acknowledged = services.single(Acknowledgements)
    waiting = acknowledged.applied if wait == "applied" else acknowledged.stored
    with services.places.taken(request.scope["countersink.holder"]) as may_wait:
        reached = may_wait and await waiting(services.options.wait_s)
    state: State = "unknown" if reached is None else wait if reached else "accepted"
    return answer(len(increments), state)


def _have_salts(services: Services, waiting: set[str]) -> bool:
    """Remove from ``waiting`` each counter whose salt the producer knows, or for which a wait is
    useless: Redis has long answered that it has no salt. Return True if no counter is left."""
    waiting -= {each for each in waiting if not services.producer.awaits_salt(each)}
    return not waiting


async def wait_until(
    request: Request, services: Services, is_known: Callable[[], bool], within_s: float
) -> None:
    """Wait until ``is_known()`` is True, for at most ``within_s`` seconds. ``request`` holds one of
    the WaitingPlaces meanwhile; do not wait if there is none for it. The caller has to call
    ``is_known`` again to see whether the wait was successful."""
    if is_known():
        return
    deadline = time.monotonic() + within_s
    with services.places.taken(request.scope["countersink.holder"]) as may_wait:
        while may_wait and not is_known() and time.monotonic() < deadline:
            await anyio.sleep(SALT_POLL_S)


def accept(
    services: Services,
    who: Identity,
    increments: Sequence[IncrementTuple | Increment],
    id: str | None = None,
) -> None:
    """Pass all increments to the producer, or none.

    Args:
        services: have the producer.
        who: identity of the sender.
        increments: the increments.
        id: the batch's name, or None. A batch with a name counts once, however often it is sent.

    Raises:
        Problem: 403 the key would use too many counters; 422 some increments are not valid; 413 a
            batch with an id is too large; 503 the producer is full, has no salt for visitors, or is
            closing.
    """
    names = {each[0] for each in increments}
    used = services.quotas.check(who, "counters", names)
    try:
        accepted = services.producer.increment_batch(increments, id=id)
    except InvalidBatch as error:
        raise invalid(error.errors) from None
    except ValueError as error:  # a batch with an id is one entry, with a limit of bytes
        raise Problem(413, f"{error}; nothing was counted") from None
    except RuntimeError:
        accepted = False  # the producer is closed: the process is ending
    if not accepted:
        raise Problem(
            503,
            "The queue accepts no increments at the moment, or no worker has made the salt of its"
            " visitors yet; nothing was counted: send the request again later",
            retry_after=RETRY_AFTER_S,
        )
    used |= names


@lru_cache
def answer(accepted: int, state: State | None) -> Response:
    """Return the answer to a request whose increments were accepted: 200 if ``state`` is ``stored``
    or ``applied``, else 202. Without ``wait`` the state is None, and the answer has none. Calls
    with equal arguments return the same object while it is cached."""
    if state is None:
        body, status = b'{"accepted":%d}' % accepted, 202
    else:
        body = b'{"accepted":%d,"state":"%b"}' % (accepted, state.encode())
        status = 200 if state in ("stored", "applied") else 202
    return EncodedResponse(body, status)


def _headers(request: Request) -> tuple[str, str | None]:
    """Return a request's Content-Type, empty if missing, and Idempotency-Key, None if missing.

    Raises:
        Problem: 422 the Idempotency-Key is not valid.
    """
    found: Mapping[bytes, bytes] = request.scope["countersink.headers"]
    media_type = found.get(b"content-type", b"").decode("latin-1")
    name = found.get(b"idempotency-key")
    if name is None:
        return media_type, None
    text = name.decode("latin-1")
    if not (1 <= len(text) <= MAX_ID_LENGTH and text.isascii() and text.isprintable()):
        raise Problem(
            422, f"An Idempotency-Key has 1 to {MAX_ID_LENGTH} printable ASCII characters"
        )
    return media_type, text


def read_increments(
    body: bytes,
    options: WebOptions,
    who: Identity,
    clock: Callable[[], float] = time.time,
) -> list[IncrementTuple | Increment]:
    """Return the increments in a body, a JSON object (one increment) or an array of objects. An
    increment with a visitor is an Increment, any other is a tuple. The producer checks counters,
    keys and the 64-bit range later, in :func:`accept`.

    Args:
        body: the decompressed body.
        options: has the limits of amounts, of times and of the number of increments.
        who: identity of the sender, whose id :func:`scoped` puts in front of increments' ids.
        clock: returns Unix seconds; it is called once, and only if an increment has a time.

    Raises:
        Problem: 400 the body is not JSON; 413 too many increments; 422 some are not valid; 403
            ``who`` may not name a counter.
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
                raise Problem(403, "This key may not name one of these counters")
            checked.add(counter)
        try:
            if amount is UNSET:
                amount = 1
            elif not -most <= amount <= most:
                raise ValueError(f"the amount must be from {-most:,} to {most:,} on this server")
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
    """Check that the time of an increment is within the limits of the options, inclusive.

    Raises:
        ValueError: the time is too far ahead of ``now``, or over ``max_age_days`` (if not 0) ago.
    """
    seconds = when.timestamp()
    if seconds > now + options.max_ahead_s:
        raise ValueError(
            f"'at' is more than {options.max_ahead_s:,.15g} s ahead of this server's clock: correct"
            " the sender's clock"
        )
    if options.max_age_days and seconds < now - options.max_age_days * DAY_S:
        raise ValueError(
            f"'at' is more than {plural(options.max_age_days, 'day')} ago, the most that this"
            " server accepts: use `countersink backfill`"
        )


def scoped(who: Identity, id: str) -> str:
    """Return ``http:KEY/ID``, of the id of the API key (empty without a key) and the id of an event
    or a batch. So equal ids of two API keys mean different events."""
    return f"http:{who.key_id}/{id}"


def read_time(at: str | float) -> datetime:
    """Return the time in ``at``: ISO 8601 with a time zone, or Unix seconds.

    Raises:
        ValueError: ``at`` is neither, or the time is outside the range of datetime.
    """
    try:
        if not isinstance(at, str):
            return datetime.fromtimestamp(at, UTC)
        when = datetime.fromisoformat(at)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            "'at' must be a time such as 2026-11-21T08:00:00Z, or Unix seconds (not milliseconds)"
        ) from None
    if when.utcoffset() is None:
        raise ValueError("'at' needs a time zone, such as Z or +01:00")
    return when


def _checked_id(id: str) -> str:
    if not 1 <= len(id) <= MAX_ID_LENGTH:
        raise ValueError(f"'id' must have 1 to {MAX_ID_LENGTH} characters")
    return id


class IncrementAsked(Closed, gc=False):
    """An increment of a counter."""

    counter: Annotated[str, Meta(extra_json_schema=dict(COUNTER_NAME))]
    key: (
        Annotated[
            str | dict[str, str],
            Meta(
                description="A key of more than 255 bytes of UTF-8 is counted under its beginning,"
                " `~` and the first 16 hex digits of its SHA-256. For a counter with dimensions,"
                " an object with their names and values.",
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
                description="0 declares the key. The server may have other limits.",
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
                description="ISO 8601 with a time zone, or Unix seconds; from 3,650 days before to"
                " one day after the server's time. Default: now. The server may have other limits.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType
    ) = UNSET
    id: (
        Annotated[
            str | None,
            Meta(
                description="Names the event: increments with the same counter, id and API key are"
                " counted once within `ledger_days`, however often they are sent.",
                extra_json_schema={"minLength": 1, "maxLength": MAX_ID_LENGTH},
            ),
        ]
        | UnsetType
    ) = UNSET
    visitor: (
        Annotated[
            str | None,
            doc(
                "The visitor, for a counter that counts different visitors (`counter set"
                " --unique`); the amount must be 1. This server hashes it, and neither stores nor"
                " sends it."
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
    if not _has_unique_members(body, items):
        read_json(body)
    return items


def _has_unique_members(body: bytes, items: Sequence[IncrementAsked]) -> bool:
    """Return True if ``body`` has no backslash, and as many strings as ``items`` (decoded) need:
    then no JSON object in it has a member twice. If False, this is unknown, and the body has to be
    read by :func:`read_json`, which takes three times as long as all other steps."""
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
    """Decode, item by item, a body that the fast decoder refused, and return the items. This finds
    all faulty items, and accepts whole numbers with a fraction, such as ``743.0``.

    Raises:
        Problem: 400 the body is not JSON; 413 it has more than ``most`` items; 422 it has none, or
            some are not valid.
    """
    try:
        found = read_json(body)
    except msgspec.ValidationError as error:  # a number that is too large or too long
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
        raise Problem(413, f"At most {plural(most, 'increment')} per request: send several")
    if not items:
        raise Problem(422, "The array is empty: send at least one increment")


def invalid(errors: Sequence[tuple[int, str]]) -> Problem:
    """Return the problem (422) of invalid increments. ``errors`` has their positions, from 0, and
    the error of each; the answer has the first :data:`MAX_ERRORS` of them by position."""
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
    """The number of accepted increments, and their state."""

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
        "Names the request: of all requests with the same name and API key, one is counted within"
        " `ledger_days`, completely, however often and concurrently they are sent. Its increments"
        " may have no `id`. A different body with the same name is not counted."
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
        summary="Count one increment, or up to 1,000, all or none.",
        headers=[_IDEMPOTENCY_KEY],
        body={"required": True, "content": {"application/json": _BODY, "text/plain": _BODY}},
        responses={
            "200": response("The increments have the state that `wait` asked for.", Accepted),
            "202": response(
                "The increments are accepted: in this server's memory, and about to be stored."
                " State `unknown`: Redis had them, and has lost entries since; sent again with the"
                " same Idempotency-Key, they still count once.",
                Accepted,
            ),
            "400": "The body is not JSON.",
            "413": "Too many increments, or too many bytes.",
            "415": "The Content-Type is not that of JSON.",
            "422": "Some increments are not valid; nothing was counted.",
            "503": "The queue accepts no increments at the moment, or no worker has made the salt"
            " of visitors yet; nothing was counted.",
        },
    ),
)
