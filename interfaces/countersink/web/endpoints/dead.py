"""The endpoints ``/v1/dead``, ``/v1/dead/retry`` and ``/v1/dead/drop``, which list, retry and drop
dead letters. See ``runtime/dead_letter.py`` for texts of reasons."""

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
from countersink.runtime.dead_letter import DeadReason, check_reason
from countersink.runtime.limits import MAX_AMOUNT
from countersink.runtime.texts import plural
from countersink.stream.decode import decode_payload
from countersink.web.auth.register import Identity
from countersink.web.errors import Problem
from countersink.web.http import Handler, Route
from countersink.web.http.bodies import read_object
from countersink.web.http.openapi import Count, closed_object, doc, json_body
from countersink.web.http.parameters import Parameter, number
from countersink.web.services import Services

MAX_ROWS: Final = 500
"""Maximum number of dead letters in one answer."""
MAX_REFS: Final = 1_000
"""Maximum number of dead letters that one request may name."""
MAX_BODY_BYTES: Final = 64 * 1024
"""Maximum bytes of the body of a request that chooses dead letters."""
SHOWN_CHARACTERS: Final = 2_000
"""Maximum characters of a payload in a list. ``countersink dead list`` has all."""
_Reason = Annotated[str, Meta(pattern="^[ -~]{1,64}$")]
_REASON_SCHEMA: Final = msgspec.json.schema(_Reason)
_Ref = Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}(:(-1|[0-9]{1,9}))?$")]
_Refs = Annotated[list[_Ref], Meta(min_length=1, max_length=MAX_REFS)]
_Most = Annotated[
    int,
    Meta(
        ge=0,
        le=MAX_AMOUNT,
        description="If more dead letters match, none is changed (409).",
    ),
]


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """The dead letters that a request chooses, by exactly one of ``refs``, ``reason`` and ``all``.
    Members that the body lacks are UNSET.

    Attributes:
        refs: the names of dead letters.
        reason: chooses all dead letters with this reason.
        all: True chooses all dead letters; a retry leaves out those that may be counted already.
        most: with ``reason`` or ``all``: if more dead letters match, none is changed; UNSET for no
            limit.
    """

    refs: _Refs | UnsetType = UNSET
    reason: _Reason | UnsetType = UNSET
    all: bool | UnsetType = UNSET
    most: _Most | UnsetType = UNSET


_PARAMETERS: Final = (
    Parameter(
        "reason",
        partial(msgspec.convert, type=_Reason),
        "Only dead letters with this reason.",
        _REASON_SCHEMA,
    ),
    number("limit", 1, MAX_ROWS, "Dead letters in the answer.", default=100),
)


async def listed(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``GET /v1/dead`` with at most ``limit`` dead letters, newest first, only those with
    the parameter ``reason`` if it is given; and with the numbers of all dead letters by reason."""
    given = request.scope["countersink.given"]
    return JSONResponse(await services.run_in_session(_list, given["reason"], given["limit"]))


async def retried(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``POST /v1/dead/retry``: retry the dead letters that the body chooses, and return the
    numbers of those retried, failed and left out, and of counted rows. Only a retry of ``all``
    leaves some out: those that may be counted already."""
    choice = await _choice(request, services)
    done = await services.run_in_session(_retry, choice)
    return JSONResponse(asdict(done))


async def dropped(request: Request, services: Services, who: Identity) -> Response:
    """Answer ``POST /v1/dead/drop``: delete the dead letters that the body chooses, and return
    their number. With ``reason`` or ``all``, also delete the counts of dead letters (with this
    reason) that were too many to keep; the returned number does not include these."""
    choice = await _choice(request, services)
    number = await services.run_in_session(_drop, choice)
    return JSONResponse({"dropped": number})


def _list(session: Session, reason: str | None, limit: int) -> dict[str, Any]:
    # Counted first, so that the list has at least as many.
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
    """Return a choice as the keyword arguments ``refs``, ``reason`` and ``up_to`` of the functions
    ``retry`` and ``drop``. For the choice ``all``, refs and reason are None: ``drop`` then deletes
    all dead letters, and ``retry`` retries all except those that may be counted already. By
    ``up_to``, the time of the newest dead letter, both leave out those that are added after this
    call, unless refs name them. ``up_to`` is None, which leaves out none, if there are none yet.

    Raises:
        Problem: 409 more than ``choice.most`` dead letters match; 422 there is no such reason.
    """
    by_reason, newest = dead.counted(session)
    if choice.reason:
        try:
            check_reason(choice.reason, {*by_reason, *dead.not_kept_by_reason(session)})
        except ValueError as error:
            raise Problem(422, str(error)) from error
    number = by_reason.get(choice.reason, 0) if choice.reason else sum(by_reason.values())
    if choice.most is not UNSET and number > choice.most:
        text = f"The selection has {plural(number, 'dead letter')} now, more than {choice.most:,}"
        raise Problem(409, f"{text}: none was changed; reload the list")
    return {"refs": choice.refs or None, "reason": choice.reason or None, "up_to": newest}


def _shortened(row: dict[str, object]) -> dict[str, object]:
    payload = str(row["payload"])
    return {**row, "payload": payload[:SHOWN_CHARACTERS], "payload_characters": len(payload)}


async def _choice(request: Request, services: Services) -> Choice:
    """Return the choice in a request's body.

    Raises:
        Problem: 400 the body is not JSON, or cannot be decompressed; 413 it is too large; 415 its
            media type or content coding is not supported; 422 the choice is not valid.
    """
    choice = await read_object(request, services, Choice, limit=MAX_BODY_BYTES)
    try:
        for ref in choice.refs or ():
            dead.parse_ref(ref)
    except ValueError as error:
        raise Problem(422, f"The body is not valid: {error}") from error
    given = [each for each in (choice.refs, choice.reason, choice.all) if each is not UNSET]
    if len(given) != 1 or choice.all is False:
        raise Problem(422, 'Send one of {"refs": [...]}, {"reason": "..."} and {"all": true}')
    if choice.refs is not UNSET and choice.most is not UNSET:
        raise Problem(422, "'most' needs 'reason' or 'all', not 'refs'")
    return choice


class DeadLetter(msgspec.Struct):
    """A row, or an entry, that could not be counted."""

    ref: Annotated[str, doc("its name")]
    reason: Annotated[str, doc("a code for programs")]
    detail: Annotated[str, doc("a sentence for people")]
    stream: str
    at: Annotated[str, doc("ISO 8601: the time at which its entry was first sent")]
    created: Annotated[str | None, doc("ISO 8601: the time at which it became a dead letter")]
    payload: Annotated[str, doc(f"its first {SHOWN_CHARACTERS:,} characters")]
    payload_characters: Count
    truncated: Annotated[bool, doc("it was stored incompletely and cannot be retried")]


class DeadReasonWords(msgspec.Struct):
    """A reason of dead letters, explained in words for people."""

    headline: Annotated[str, doc("what happened, in a few words")]
    explanation: Annotated[str, doc("what happened, as a sentence")]
    remedy: Annotated[str, doc("what to do")]
    maybe_counted: Annotated[
        bool, doc("it may be counted already: it is retried only by ref or reason")
    ]


class DeadList(msgspec.Struct):
    """Dead letters, and their number by reason."""

    rows: list[DeadLetter]
    by_reason: dict[str, Count]
    reasons: dict[str, DeadReasonWords]
    total: Count
    not_kept: Annotated[
        dict[str, Count],
        doc(
            "Number of further rows, by reason, that could not be counted and were not kept:"
            " they cannot be retried."
        ),
    ]


class DeadRetried(msgspec.Struct):
    """The result of a retry of dead letters."""

    retried: Count
    failed: Count
    rows: Count
    left_out: Count


class DeadDropped(msgspec.Struct):
    """The number of dropped dead letters."""

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


def _on_choice(what: str, handler: Handler, done: type, **texts: Any) -> Route:
    """Return the route ``POST /v1/dead/{what}``, which retries or drops the dead letters that the
    body chooses. It needs a key with the scope admin, for all counters.

    Args:
        what: ``retry`` or ``drop``.
        handler: answers the requests.
        done: the struct of its answer.
        texts: ``summary`` and ``description`` of the :class:`Route`.
    """
    return Route(
        "POST",
        f"/v1/dead/{what}",
        handler,
        scope="admin",
        installation_wide=True,
        name=f"{what}DeadLetters",
        body=json_body(_CHOICE),
        responses={"200": done, "409": "More than `most` match; none was changed."},
        **texts,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/dead",
        listed,
        scope="read",
        installation_wide=True,
        parameters=_PARAMETERS,
        name="deadLetters",
        summary="Dead letters, newest first",
        responses={"200": DeadList},
    ),
    _on_choice(
        "retry",
        retried,
        DeadRetried,
        summary="Retry dead letters, each counted exactly once",
        description="Rows that fail again stay. Rows that may be counted already (`too_old`,"
        " `reconciled`) are retried only by ref or reason. A repeated request counts once.",
    ),
    _on_choice(
        "drop",
        dropped,
        DeadDropped,
        summary="Delete dead letters for good",
        description="Their amounts are never counted. With `reason` or `all`, the numbers in"
        " `not_kept` are deleted as well.",
    ),
)
"""The routes of dead letters. They need a key for all counters, because a dead letter may have any
counter, or none."""
