"""``/v1/dead``, ``/v1/dead/retry``, ``/v1/dead/drop``: limits, members of the answers, texts of
refusals (409, 422); texts of reasons are in ``runtime/dead_letter.py``."""

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from countersink.counting.apply import dead
from countersink.counting.apply.dead import document
from countersink.counting.apply.dead_retry import Retried, retry
from countersink.database.lease import any_slot
from countersink.database.session import Session
from countersink.runtime.dead_letter import DeadReason
from countersink.stream.decode import decode_payload
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Handler, Route
from countersink.web.http.bodies import read_object
from countersink.web.http.openapi import Count, closed_object, json_body, words
from countersink.web.http.parameters import Parameter, number
from countersink.web.services import Services

MAX_ROWS: Final = 500
"""Dead letters in one answer."""
MAX_REFS: Final = 1_000
"""Dead letters that one request may name."""
MAX_BODY_BYTES: Final = 64 * 1024
"""Of a request that names them."""
SHOWN_BYTES: Final = 2_000
"""Characters of a payload that a list shows; ``countersink dead list`` has all of it."""
_Reason = Annotated[str, Meta(pattern="^[ -~]{1,64}$")]
_REASON_SCHEMA: Final = msgspec.json.schema(_Reason)
_Ref = Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}(:(-1|[0-9]{1,9}))?$")]
_Refs = Annotated[list[_Ref], Meta(min_length=1, max_length=MAX_REFS)]
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
        most: of a reason or all, where there are more than so many none is touched.
    """

    refs: _Refs | UnsetType = UNSET
    reason: _Reason | UnsetType = UNSET
    all: bool | UnsetType = UNSET
    most: _Most | UnsetType = UNSET


_PARAMETERS: Final = (
    Parameter(
        "reason",
        partial(msgspec.convert, type=_Reason),
        "Only those with this reason.",
        _REASON_SCHEMA,
    ),
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
    by_reason = dead.count(session)
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
    }


def _retry(session: Session, choice: Choice) -> Retried:
    return retry(session, slot=any_slot(), decode=decode_payload, **_chosen(session, choice))


def _drop(session: Session, choice: Choice) -> int:
    return dead.drop(session, **_chosen(session, choice))


def _chosen(session: Session, choice: Choice) -> dict[str, Any]:
    """The choice as the store takes it, without those that are set aside from now on; neither refs
    nor a reason: all.

    Raises:
        Problem: 409, there are more than its sender has seen.
    """
    by_reason, newest = dead.counted(session)
    number = by_reason.get(choice.reason, 0) if choice.reason else sum(by_reason.values())
    if choice.most is not UNSET and number > choice.most:
        raise Problem(
            409, f"There are {number:,} by now, not {choice.most:,}: none was touched, look again"
        )
    return {"refs": choice.refs or None, "reason": choice.reason or None, "up_to": newest}


def _shortened(row: dict[str, object]) -> dict[str, object]:
    payload = str(row["payload"])
    return {**row, "payload": payload[:SHOWN_BYTES], "payload_characters": len(payload)}


async def _choice(request: Request, services: Services) -> Choice:
    """What the body names."""
    choice = await read_object(request, services, Choice, limit=MAX_BODY_BYTES)
    try:
        for ref in choice.refs or ():
            dead.parse_ref(ref)
    except ValueError as error:
        raise Problem(422, f"The body is not valid: {error}") from error
    given = [one for one in (choice.refs, choice.reason, choice.all) if one is not UNSET]
    if len(given) != 1 or choice.all is False:
        raise Problem(422, 'Say which: {"refs": [...]}, {"reason": "..."} or {"all": true}')
    if choice.refs is not UNSET and choice.most is not UNSET:
        raise Problem(422, "most goes with reason or all: refs say which")
    return choice


class DeadLetter(msgspec.Struct):
    """A row, or a whole entry, that could not be counted."""

    ref: Annotated[str, words("its name")]
    reason: Annotated[str, words("a code for machines")]
    detail: Annotated[str, words("a sentence for people")]
    stream: str
    at: Annotated[str, words("when its entry was first sent")]
    created: Annotated[str | None, words("when it was set aside")]
    payload: Annotated[str, words(f"its first {SHOWN_BYTES:,} characters")]
    payload_characters: Count
    truncated: Annotated[bool, words("it was cut off: it cannot be retried")]


class DeadReasonWords(msgspec.Struct):
    """What a reason means."""

    headline: Annotated[str, words("what happened, in a few words")]
    explanation: Annotated[str, words("the same as a sentence")]
    remedy: Annotated[str, words("what to do")]
    maybe_counted: Annotated[
        bool, words("it is counted already, or may be: it is retried only when asked for")
    ]


class DeadList(msgspec.Struct):
    """Dead letters, and how many there are of each reason."""

    rows: list[DeadLetter]
    by_reason: dict[str, Count]
    reasons: dict[str, DeadReasonWords]
    total: Count
    not_kept: Annotated[
        dict[str, Count],
        words(
            "By reason, how many more could not be counted of which there is only the"
            " number: they cannot be retried."
        ),
    ]


class DeadRetried(msgspec.Struct):
    """What became of dead letters that were retried."""

    retried: Count
    failed: Count
    rows: Count
    left_out: Count


class DeadDropped(msgspec.Struct):
    """How many dead letters were dropped."""

    dropped: Count


_CHOICE: Final = {
    "oneOf": [
        closed_object({"refs": msgspec.json.schema(_Refs)}),
        *(
            closed_object({name: schema, "most": msgspec.json.schema(_Most)}, [name])
            for name, schema in (("reason", _REASON_SCHEMA), ("all", {"const": True}))
        ),
    ]
}


def _on_choice(what: str, handler: Handler, done: type, **told: Any) -> Route:
    """A route that does something with dead letters that the body names."""
    return Route(
        "POST",
        f"/v1/dead/{what}",
        handler,
        scope="admin",
        whole=True,
        name=f"{what}DeadLetters",
        body=json_body(_CHOICE),
        responses={"200": done, "409": "There are more than `most`; none was touched."},
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
        responses={"200": DeadList},
    ),
    _on_choice(
        "retry",
        retried,
        DeadRetried,
        summary="Count dead letters after all, each exactly once",
        description="What fails again stays. What may be counted already (`too_old`, `reconciled`)"
        " is retried only by its ref or by reason. Asking twice counts once.",
    ),
    _on_choice(
        "drop",
        dropped,
        DeadDropped,
        summary="Delete dead letters for good",
        description="What they would have counted is never counted. Of a reason, or of all, the"
        " numbers in `not_kept` up to then are forgotten as well.",
    ),
)
"""The routes to dead letters, which may be of any counter, or of none."""
