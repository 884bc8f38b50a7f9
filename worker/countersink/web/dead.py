"""Dead letters: rows that could not be counted, to be seen, retried or dropped."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.store import dead
from countersink.store.dead_document import document
from countersink.store.retry import Retried, retry
from countersink.store.slot_lease import leased_slot
from countersink.store.tables import open_tables
from countersink.stream.decode import decode_payload
from countersink.web import bodies
from countersink.web.door import Door
from countersink.web.identity import Identity
from countersink.web.parameters import Parameter, read, whole
from countersink.web.problem import Problem
from countersink.web.services import Services

MAX_ROWS: Final = 500
"""Dead letters in one answer."""
MAX_REFS: Final = 1_000
"""Dead letters that one request may name."""
SHOWN_BYTES: Final = 2_000
"""Characters of a payload that a list shows; ``countersink dead list`` has all of it."""
_REASON_LENGTH: Final = 64
_REASON_SCHEMA: Final = {"type": "string", "pattern": f"^[ -~]{{1,{_REASON_LENGTH}}}$"}


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters; exactly one of these.

    Attributes:
        refs: by name.
        reason: all with this reason.
        all: all of them; of a retry but those that may be counted already.
    """

    refs: list[str] | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    all: bool | UnsetType = UNSET


def _reason(text: str) -> str:
    if not (text.isascii() and text.isprintable() and 1 <= len(text) <= _REASON_LENGTH):
        raise ValueError(f"a reason has 1 to {_REASON_LENGTH} visible characters of ASCII")
    return text


_PARAMETERS: Final = (
    Parameter(
        name="reason",
        read=_reason,
        description="Only those with this reason.",
        schema=_REASON_SCHEMA,
    ),
    Parameter(
        name="limit",
        read=whole(1, MAX_ROWS),
        description="At most so many.",
        schema={"type": "integer", "minimum": 1, "maximum": MAX_ROWS, "default": 100},
        default=100,
    ),
)
_DECODER: Final = msgspec.json.Decoder(Choice)


async def listed(request: Request, services: Services, who: Identity) -> Response:
    """``GET /v1/dead``."""
    _require_all_counters(who)
    given = read(request, _PARAMETERS)
    return JSONResponse(
        await services.run(_list, services.options.mysql_url, given["reason"], given["limit"])
    )


async def retried(request: Request, services: Services, who: Identity) -> Response:
    """``POST /v1/dead/retry``."""
    refs, reason = await _choice(request, services, who)
    done = await services.run(_retry, services.options.mysql_url, refs, reason)
    return JSONResponse(asdict(done))


async def dropped(request: Request, services: Services, who: Identity) -> Response:
    """``POST /v1/dead/drop``."""
    refs, reason = await _choice(request, services, who)
    number = await services.run(_drop, services.options.mysql_url, refs, reason)
    return JSONResponse({"dropped": number})


def _list(mysql_url: str, reason: str | None, limit: int) -> dict[str, Any]:
    with open_tables(mysql_url) as session:
        rows = dead.list_rows(session, reason=reason, limit=limit)
        by_reason = dead.count(session)
    return {
        "rows": [_shortened(document(row)) for row in rows],
        "by_reason": by_reason,
        "total": sum(by_reason.values()),
    }


def _retry(mysql_url: str, refs: Sequence[str] | None, reason: str | None) -> Retried:
    with open_tables(mysql_url) as session, leased_slot(session, "dead-retry") as slot:
        return retry(session, slot=slot, decode=decode_payload, reason=reason, refs=refs)


def _drop(mysql_url: str, refs: Sequence[str] | None, reason: str | None) -> int:
    with open_tables(mysql_url) as session:
        return dead.drop(session, reason=reason, refs=refs)


def _shortened(row: dict[str, object]) -> dict[str, object]:
    payload = str(row["payload"])
    return {**row, "payload": payload[:SHOWN_BYTES], "payload_characters": len(payload)}


def _require_all_counters(who: Identity) -> None:
    """What could not be counted may be of any counter, or of none."""
    if who.counters:
        raise Problem(403, "This key is for some counters only: dead letters may be of any")


async def _choice(
    request: Request, services: Services, who: Identity
) -> tuple[Sequence[str] | None, str | None]:
    """The refs or the reason that the body names; neither: all of them."""
    _require_all_counters(who)
    body = await bodies.read(request, services)
    try:
        choice = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(422, f"The body is not as it should be: {error}") from error
    given = [one for one in (choice.refs, choice.reason, choice.all) if one is not UNSET]
    if len(given) != 1 or choice.all is False:
        raise Problem(422, 'Say which: {"refs": [...]}, {"reason": "..."} or {"all": true}')
    refs = None if choice.refs is UNSET else choice.refs
    reason = None if choice.reason is UNSET else choice.reason
    if refs is not None and not 1 <= len(refs) <= MAX_REFS:
        raise Problem(422, f"Name 1 to {MAX_REFS:,} dead letters")
    if reason is not None:
        try:
            _reason(reason)
        except ValueError as error:
            raise Problem(422, f"In reason: {error}") from None
    for ref in refs or ():
        try:
            dead.parse_ref(ref)
        except ValueError:
            raise Problem(
                422, "A ref is 32 hex digits, or those and :POSITION, as the list has it"
            ) from None
    return refs, reason


_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_ROW: Final = {
    "type": "object",
    "properties": {
        "ref": _TEXT | {"description": "its name"},
        "reason": _TEXT | {"description": "a code for machines"},
        "detail": _TEXT | {"description": "a sentence for people"},
        "stream": _TEXT,
        "at": _TEXT | {"description": "when its entry was first sent"},
        "created": {"type": ["string", "null"], "description": "when it was set aside"},
        "payload": _TEXT | {"description": f"its first {SHOWN_BYTES:,} characters"},
        "payload_characters": _COUNT,
        "truncated": {"type": "boolean", "description": "it was cut off: it cannot be retried"},
    },
    "required": ["ref", "reason", "detail", "at", "created", "payload", "truncated"],
}
_CHOICE: Final = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {
                    "refs": {
                        "type": "array",
                        "items": {
                            "type": "string",
                            "pattern": "^[0-9a-fA-F]{32}(:(-1|[0-9]{1,9}))?$",
                        },
                        "minItems": 1,
                        "maxItems": MAX_REFS,
                    },
                    "reason": _REASON_SCHEMA,
                    "all": {"const": True},
                },
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
            }
        }
    },
}


def _answer(description: str, properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "200": {
            "description": description,
            "content": {"application/json": {"schema": schema}},
        },
        "422": {"description": "A parameter or the body is not as it should be."},
    }


_LIST: Final[dict[str, Any]] = {
    "operationId": "deadLetters",
    "tags": ["system"],
    "summary": "Dead letters, newest first",
    "parameters": [parameter.document() for parameter in _PARAMETERS],
    "responses": _answer(
        "Dead letters, and how many there are of each reason.",
        {
            "rows": {"type": "array", "items": _ROW},
            "by_reason": {"type": "object", "additionalProperties": _COUNT},
            "total": _COUNT,
        },
    ),
}
_RETRY: Final[dict[str, Any]] = {
    "operationId": "retryDeadLetters",
    "tags": ["system"],
    "summary": "Count dead letters after all, each exactly once",
    "description": "What fails again stays. What may be counted already (`too_old`, `reconciled`)"
    " is retried only by its ref or by reason. Asking twice counts once.",
    "requestBody": _CHOICE,
    "responses": _answer(
        "What became of them.",
        {"retried": _COUNT, "failed": _COUNT, "rows": _COUNT, "left_out": _COUNT},
    ),
}
_DROP: Final[dict[str, Any]] = {
    "operationId": "dropDeadLetters",
    "tags": ["system"],
    "summary": "Delete dead letters for good",
    "description": "What they would have counted is never counted.",
    "requestBody": _CHOICE,
    "responses": _answer("How many are gone.", {"dropped": _COUNT}),
}

DOORS: Final[tuple[Door, ...]] = (
    Door(method="GET", path="/v1/dead", handler=listed, scope="read", operation=_LIST),
    Door(method="POST", path="/v1/dead/retry", handler=retried, scope="admin", operation=_RETRY),
    Door(method="POST", path="/v1/dead/drop", handler=dropped, scope="admin", operation=_DROP),
)
