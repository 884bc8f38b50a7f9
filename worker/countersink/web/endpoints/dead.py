"""``/v1/dead``, ``/v1/dead/retry``, ``/v1/dead/drop``: limits, members of the answers, texts of
refusals (409, 422); texts of reasons are in ``runtime/dead_letter.py``."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.runtime.dead_letter import DeadReason
from countersink.store.apply import dead
from countersink.store.apply.dead import document
from countersink.store.apply.dead_retry import Retried, retry
from countersink.store.connection import Session
from countersink.store.lease import any_slot
from countersink.stream.decode import decode_payload
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import bodies
from countersink.web.http.openapi import closed_object, json_body, object_schema, response
from countersink.web.http.parameters import Parameter, number
from countersink.web.http.route import Handler, Route
from countersink.web.services import Services

MAX_ROWS: Final = 500
"""Dead letters in one answer."""
MAX_REFS: Final = 1_000
"""Dead letters that one request may name."""
SHOWN_BYTES: Final = 2_000
"""Characters of a payload that a list shows; ``countersink dead list`` has all of it."""
_REASON_LENGTH: Final = 64
_REASON_SCHEMA: Final = {"type": "string", "pattern": f"^[ -~]{{1,{_REASON_LENGTH}}}$"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_LAST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_Ref = Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}(:(-1|[0-9]{1,9}))?$")]
_Refs = Annotated[list[_Ref], Meta(min_length=1, max_length=MAX_REFS)]
_UpTo = Annotated[
    int,
    Meta(
        ge=0,
        le=_LAST_MS,
        description="Only those set aside by then, in Unix ms: `up_to` of the list that was seen.",
    ),
]
_Most = Annotated[
    int,
    Meta(
        ge=0,
        le=2**63 - 1,
        description="Where there are more of these than so many, none is touched (409).",
    ),
]


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """The body that selects dead letters; exactly one of the first three members.

    Attributes:
        refs: by name.
        reason: all with this reason.
        all: all of them; of a retry but those that may be counted already.
        up_to: of a reason or all, those set aside by then (Unix ms).
        most: of a reason or all, where there are more than so many none is touched.
    """

    refs: _Refs | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    all: bool | UnsetType = UNSET
    up_to: _UpTo | UnsetType = UNSET
    most: _Most | UnsetType = UNSET

    @property
    def chosen(self) -> dict[str, Any]:
        """The same, as the store takes it; neither refs nor a reason: all of them."""
        return {
            "refs": self.refs or None,
            "reason": self.reason or None,
            "up_to": None if self.up_to is UNSET else _moment(self.up_to),
        }


def _reason(text: str) -> str:
    if not (text.isascii() and text.isprintable() and 1 <= len(text) <= _REASON_LENGTH):
        raise ValueError(f"a reason has 1 to {_REASON_LENGTH} visible characters of ASCII")
    return text


_PARAMETERS: Final = (
    Parameter("reason", _reason, "Only those with this reason.", _REASON_SCHEMA),
    number("limit", 1, MAX_ROWS, "At most so many.", default=100),
)


async def listed(request: Request, services: Services, who: Identity) -> Response:
    """``GET /v1/dead``."""
    given = request.scope["countersink.given"]
    return JSONResponse(await services.run_in_session(_list, given["reason"], given["limit"]))


async def retried(request: Request, services: Services, who: Identity) -> Response:
    """``POST /v1/dead/retry``."""
    choice = await _choice(request, services)
    done = await services.run_in_session(_retry, choice)
    return JSONResponse(asdict(done))


async def dropped(request: Request, services: Services, who: Identity) -> Response:
    """``POST /v1/dead/drop``."""
    choice = await _choice(request, services)
    number = await services.run_in_session(_drop, choice)
    return JSONResponse({"dropped": number})


def _list(session: Session, reason: str | None, limit: int) -> dict[str, Any]:
    # Counted first: who is told of so many can see them.
    not_kept = dead.not_kept_by_reason(session)
    by_reason, newest = dead.counted(session)
    rows = dead.list_rows(session, reason=reason, limit=limit)
    return {
        "rows": [_shortened(document(row)) for row in rows],
        "by_reason": by_reason,
        "reasons": {
            reason.value: reason.document()
            for reason in DeadReason
            if reason.value in by_reason or reason.value in not_kept
        },
        "total": sum(by_reason.values()),
        "not_kept": not_kept,
        "up_to": None if newest is None else _unix_ms(newest),
    }


def _retry(session: Session, choice: Choice) -> Retried:
    _require_no_more(session, choice)
    return retry(session, slot=any_slot(), decode=decode_payload, **choice.chosen)


def _drop(session: Session, choice: Choice) -> int:
    _require_no_more(session, choice)
    return dead.drop(session, **choice.chosen)


def _require_no_more(session: Session, choice: Choice) -> None:
    """Refuse where somebody would decide on what they have not seen.

    The time alone does not tell: what was set aside by then may be committed later.
    """
    if choice.most is UNSET:
        return
    by_reason = dead.count(session, up_to=choice.chosen["up_to"])
    number = by_reason.get(choice.reason, 0) if choice.reason else sum(by_reason.values())
    if number > choice.most:
        raise Problem(
            409, f"There are {number:,} by now, not {choice.most:,}: none was touched, look again"
        )


def _unix_ms(moment: datetime) -> int:
    """Of a naive time in UTC, as the table has it."""
    return (moment.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def _moment(ms: int) -> datetime:
    """The other way round."""
    return (_EPOCH + ms * _MILLISECOND).replace(tzinfo=None)


def _shortened(row: dict[str, object]) -> dict[str, object]:
    payload = str(row["payload"])
    return {**row, "payload": payload[:SHOWN_BYTES], "payload_characters": len(payload)}


async def _choice(request: Request, services: Services) -> Choice:
    """What the body names."""
    body = await bodies.read(request, services)
    bodies.check_parts(body, MAX_REFS)
    try:
        choice = msgspec.convert(bodies.read_json(body), Choice)
        for ref in choice.refs or ():
            dead.parse_ref(ref)
        if choice.reason is not UNSET:
            _reason(choice.reason)
    except (ValueError, RecursionError) as error:  # what cannot be decoded is a ValueError
        raise Problem(422, f"The body is not as it should be: {error}") from error
    given = [one for one in (choice.refs, choice.reason, choice.all) if one is not UNSET]
    if len(given) != 1 or choice.all is False:
        raise Problem(422, 'Say which: {"refs": [...]}, {"reason": "..."} or {"all": true}')
    if choice.refs is not UNSET and not (choice.up_to is UNSET and choice.most is UNSET):
        raise Problem(422, "up_to and most go with reason or all: refs say which")
    return choice


_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_ROW: Final = object_schema(
    {
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
    required=["ref", "reason", "detail", "at", "created", "payload", "truncated"],
)
_REASON: Final = object_schema(
    {
        "headline": _TEXT | {"description": "what happened, in a few words"},
        "explanation": _TEXT | {"description": "the same as a sentence"},
        "remedy": _TEXT | {"description": "what to do"},
        "maybe_counted": {
            "type": "boolean",
            "description": "it is counted already, or may be: it is retried only when asked for",
        },
    }
)
_BOUNDS: Final = {"up_to": msgspec.json.schema(_UpTo), "most": msgspec.json.schema(_Most)}
_CHOICE: Final = json_body(
    {
        "oneOf": [
            closed_object({"refs": msgspec.json.schema(_Refs)}),
            *(
                closed_object({name: schema, **_BOUNDS}, [name])
                for name, schema in (("reason", _REASON_SCHEMA), ("all", {"const": True}))
            ),
        ]
    }
)
_LIST: Final = object_schema(
    {
        "rows": {"type": "array", "items": _ROW},
        "by_reason": {"type": "object", "additionalProperties": _COUNT},
        "reasons": {"type": "object", "additionalProperties": _REASON},
        "total": _COUNT,
        "not_kept": {
            "type": "object",
            "additionalProperties": _COUNT,
            "description": "By reason, how many more could not be counted of which there is only"
            " the number: they cannot be retried.",
        },
        "up_to": {
            "type": ["integer", "null"],
            "description": "When the newest of all these was set aside, in Unix ms.",
        },
    }
)
_RETRIED: Final = object_schema(dict.fromkeys(("retried", "failed", "rows", "left_out"), _COUNT))


def _on_choice(what: str, handler: Handler, done: Mapping[str, Any], **told: Any) -> Route:
    """A route that does something with dead letters that the body names."""
    return Route(
        "POST",
        f"/v1/dead/{what}",
        handler,
        scope="admin",
        whole=True,
        name=f"{what}DeadLetters",
        body=_CHOICE,
        responses={
            "200": done,
            "409": "There are more than `most`; none was touched.",
        },
        **told,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/dead",
        listed,
        scope="read",
        whole=True,
        parameters=_PARAMETERS,
        name="deadLetters",
        summary="Dead letters, newest first",
        responses={
            "200": response("Dead letters, and how many there are of each reason.", _LIST),
        },
    ),
    _on_choice(
        "retry",
        retried,
        response("What became of them.", _RETRIED),
        summary="Count dead letters after all, each exactly once",
        description="What fails again stays. What may be counted already (`too_old`, `reconciled`)"
        " is retried only by its ref or by reason. Asking twice counts once.",
    ),
    _on_choice(
        "drop",
        dropped,
        response("How many are gone.", object_schema({"dropped": _COUNT})),
        summary="Delete dead letters for good",
        description="What they would have counted is never counted. Of a reason, or of all, the"
        " numbers in `not_kept` up to then are forgotten as well.",
    ),
)
"""The routes to dead letters, which may be of any counter, or of none."""
