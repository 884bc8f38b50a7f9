"""``POST /v1/increments``: increments from programs that have no Producer of their own."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from countersink.producers import InvalidBatch
from countersink.producers.increments import Asked
from countersink.stream.limits import MAX_KEY_BYTES
from countersink.web import bodies
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.increments import MAX_ID_LENGTH, invalid, read_increments, scoped
from countersink.web.parameters import COUNTER_NAME, Parameter, one_of, read
from countersink.web.problem import Problem
from countersink.web.services import Services
from countersink.web.waiting import WAITING_ROOM

State = Literal["accepted", "stored", "applied", "unknown"]
JSON_TYPES: Final = frozenset(("", "application/json", "text/plain"))
"""Media types under which JSON may come; ``text/plain`` is what navigator.sendBeacon sends a text
as, without asking the server first."""
RETRY_AFTER_S: Final = 1

_WAIT: Final = Parameter(
    name="wait",
    read=one_of("stored", "applied"),
    description=(
        "Answer only when the increments are `stored` in Redis (or fsynced on this server's disk),"
        " or `applied` in MySQL: 200 then, and 202 if that takes too long; they will get there. 202"
        " with the state `unknown`: they were stored, but Redis has lost entries since."
    ),
    schema={"type": "string", "enum": ["stored", "applied"]},
)


async def add(request: Request, services: Services, who: Identity) -> Response:
    """Accept increments: all of them, or none."""
    scope = request.scope
    wait: State | None = read(request, (_WAIT,))["wait"] if scope["query_string"] else None
    media_type, name = _heads(request)
    if media_type.partition(";")[0].strip().lower() not in JSON_TYPES:
        raise Problem(
            415,
            "The body is JSON: send it with Content-Type: application/json",
            headers={"Accept": "application/json"},
        )
    body = await bodies.read(request, services)
    increments = read_increments(body, services.options, who)
    accept(services, increments, None if name is None else scoped(who, name))
    if wait is None:
        return answer(len(increments), None)
    room = WAITING_ROOM.of(services)
    waiting = room.applied if wait == "applied" else room.stored
    reached = await waiting.reached(services.options.wait_s)
    state: State = "unknown" if reached is None else wait if reached else "accepted"
    return answer(len(increments), state)


def accept(services: Services, increments: list[Asked], id: str | None = None) -> None:
    """Have the producer accept all increments.

    Raises:
        Problem: 422 some are not valid; 503 there is no room, or the server is ending.
    """
    try:
        accepted = services.producer.increment_batch(increments, id=id)
    except InvalidBatch as error:
        raise invalid(error.errors) from None
    except RuntimeError:
        accepted = False  # closed: the process is ending
    if not accepted:
        raise Problem(
            503,
            "The queue does not take more for the moment; nothing was counted: send it again later",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )


def answer(accepted: int, state: State | None) -> Response:
    """What is told of increments that were accepted."""
    if state is None:
        return _Answer(b'{"accepted":%d}' % accepted, 202)
    body = b'{"accepted":%d,"state":"%b"}' % (accepted, state.encode())
    return _Answer(body, 200 if state in ("stored", "applied") else 202)


class _Answer(Response):
    """JSON that is encoded: what Starlette looks for in its arguments is known of it."""

    media_type = "application/json"

    def __init__(self, body: bytes, status: int) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
        ]


def _heads(request: Request) -> tuple[str, str | None]:
    """The media type, empty where none is given, and the Idempotency-Key."""
    found: Mapping[bytes, bytes] = request.scope["countersink.heads"]
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


_INCREMENT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["counter"],
    "additionalProperties": False,
    "properties": {
        "counter": COUNTER_NAME,
        "key": {
            "type": "string",
            "maxLength": MAX_KEY_BYTES,
            "default": "",
            "description": f"At most {MAX_KEY_BYTES} bytes of UTF-8.",
        },
        "amount": {
            "type": "integer",
            "default": 1,
            "minimum": -1_000_000_000,
            "maximum": 1_000_000_000,
            "description": "0 declares the key. The server may be set to other limits.",
        },
        "at": {
            "type": ["string", "number", "null"],
            "format": "date-time",
            "description": "ISO 8601 with a time zone, or Unix seconds, from 3,650 days back to a"
            " day ahead of the server's clock. Default: now. It may be set to other limits.",
        },
        "id": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": MAX_ID_LENGTH,
            "description": "The event's own name: with the same counter, id and API key it is"
            " counted once within `ledger_days`, however often it is sent.",
        },
    },
}
_ACCEPTED: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["accepted"],
    "additionalProperties": False,
    "properties": {
        "accepted": {"type": "integer", "minimum": 1},
        "state": {"type": "string", "enum": ["accepted", "stored", "applied", "unknown"]},
    },
}
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
        " increments has an `id` then."
    ),
    "schema": {"type": "string", "pattern": f"^[!-~][ -~]{{0,{MAX_ID_LENGTH - 1}}}$"},
}

DOORS: Final = (
    Door(
        method="POST",
        path="/v1/increments",
        handler=add,
        scope="ingest",
        operation={
            "operationId": "addIncrements",
            "summary": "Count: one increment, or up to 1,000, all or none.",
            "tags": ["sending"],
            "parameters": [_WAIT.document(), _IDEMPOTENCY_KEY],
            "requestBody": {
                "required": True,
                "content": {"application/json": _BODY, "text/plain": _BODY},
            },
            "responses": {
                "200": {
                    "description": "They are where `wait` asked for.",
                    "content": {"application/json": {"schema": _ACCEPTED}},
                },
                "202": {
                    "description": "They are accepted: in this server's memory, and on their way."
                    " State `unknown`: Redis had them, and has lost entries since; sent again"
                    " with the same Idempotency-Key they count once all the same.",
                    "content": {"application/json": {"schema": _ACCEPTED}},
                },
                "400": {"description": "The body is not JSON."},
                "413": {"description": "Too many increments, or too many bytes."},
                "415": {"description": "The body is announced as something else than JSON."},
                "422": {"description": "Some increments are not valid; nothing was counted."},
                "503": {"description": "The queue takes no more for now; nothing was counted."},
            },
        },
    ),
)
