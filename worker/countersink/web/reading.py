"""What the doors of the read API have in common: parameters, names, errors, documentation."""

import logging
import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import Request

from countersink.reads.query import Query
from countersink.reads.queue import QueueTooLong, Stopped
from countersink.store import buckets
from countersink.store.errors import (
    InexactZone,
    RolledUp,
    StoreError,
    UnknownCounter,
    UnknownZone,
)
from countersink.store.keys import is_name, key_bytes
from countersink.stream.limits import MAX_KEY_BYTES
from countersink.web.answers import COMPLETE, CSV, ROLLED_UP, TRUNCATED
from countersink.web.identity import Identity
from countersink.web.parameters import COUNTER_NAME, Parameter, one_of, yes_or_no
from countersink.web.problem import MEDIA_TYPE, Problem
from countersink.web.read_call import ReadCall
from countersink.web.read_places import Kind
from countersink.web.services import Services

T = TypeVar("T")
LOGGER: Final = logging.getLogger("countersink.web")

MAX_WAITING: Final = 16
"""Requests that may wait to read the queue."""

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAY_SCHEMA: Final = {"type": "string", "format": "date", "examples": ["2026-11-21"]}


def _day(text: str) -> date:
    if _DAY.fullmatch(text) is None:
        raise ValueError("give a day such as 2026-11-21")
    return date.fromisoformat(text)


def _zone(text: str) -> str:
    # A name is no longer than this; what is looked up in a list is not for megabytes.
    return buckets.zone(text[:80]).key


def _part_of_key(text: str) -> str:
    if len(key_bytes(text)) > MAX_KEY_BYTES:
        raise ValueError(f"a key has at most {MAX_KEY_BYTES} bytes")
    return text


START: Final = Parameter(
    name="from",
    read=_day,
    description="First day, inclusive. Default: where the data begins.",
    schema=_DAY_SCHEMA,
)
END: Final = Parameter(
    name="to",
    read=_day,
    description="Last day, inclusive. Default: where the data ends.",
    schema=_DAY_SCHEMA,
)
TIME_ZONE: Final = Parameter(
    name="time_zone",
    read=_zone,
    description="Whose days, hours and months: an IANA name. Default: each counter's own.",
    schema={"$ref": "#/components/schemas/TimeZone"},
)
KEYS: Final = Parameter(
    name="key",
    read=_part_of_key,
    description="This key alone; may be given several times.",
    schema={"type": "string", "maxLength": MAX_KEY_BYTES},
    repeatable=True,
)
INCLUDE_PENDING: Final = Parameter(
    name="include_pending",
    read=yes_or_no,
    description="Add, exactly, what is still in the queue. Takes time with the queue's length, and"
    " is 503 where there is too much in it.",
    schema={"type": "boolean", "default": False},
    default=False,
)
FORMAT: Final = Parameter(
    name="format",
    read=one_of("json", "csv"),
    description="Default: csv where the header Accept asks for text/csv alone, else json.",
    schema={"type": "string", "enum": ["json", "csv"]},
)
PREFIX: Final = Parameter(
    name="prefix",
    read=_part_of_key,
    description="Only keys that begin so, byte by byte.",
    schema={"type": "string", "maxLength": MAX_KEY_BYTES},
    default="",
)
SEARCH: Final = Parameter(
    name="search",
    read=_part_of_key,
    description="Only keys that have this in them, byte by byte.",
    schema={"type": "string", "maxLength": MAX_KEY_BYTES},
    default="",
)

COUNTER: Final[Mapping[str, Any]] = {
    "name": "counter",
    "in": "path",
    "required": True,
    "description": "The counter's name.",
    "schema": COUNTER_NAME,
}


NOT_VALID: Final[Mapping[str, Any]] = {
    "description": "A parameter is not valid, or the numbers do not tell what is asked for.",
    "content": {
        MEDIA_TYPE: {
            "schema": {
                "type": "object",
                "required": ["type", "title", "status", "detail"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer", "const": 422},
                    "detail": {"type": "string"},
                    "rolled_up_to": {
                        "type": "string",
                        "format": "date",
                        "description": "The first day that can be asked for by day.",
                    },
                    "errors": {
                        "type": "array",
                        "description": "What is wrong with which parameter.",
                        "items": {
                            "type": "object",
                            "required": ["parameter", "detail"],
                            "properties": {
                                "parameter": {"type": "string"},
                                "detail": {"type": "string"},
                            },
                        },
                    },
                },
            }
        }
    },
}
"""The answer to a question that cannot be answered (OpenAPI)."""


def own_counter(name: str, who: Identity) -> str:
    """A counter's name from a path, which they may see.

    Raises:
        Problem: 404 it can be none; 403 it is not theirs.
    """
    if not is_name(name):
        raise Problem(
            404, "There is no such counter: names are 1 to 64 characters of A-Z a-z 0-9 _ . : -"
        )
    if not who.may_name(name):
        raise Problem(403, "This key is not for this counter")
    return name


async def answering(
    request: Request,
    services: Services,
    who: Identity,
    work: Callable[..., T],
    *args: Any,
    kind: Kind = "one",
) -> T:
    """What ``work`` returns, in a thread of those that read; it is ended when the request's time is
    over, or its client gone.

    Args:
        request: the request.
        services: what to work with.
        who: has asked.
        work: blocks.
        args: its arguments.
        kind: ``pending``: it reads the queue, as one alone does at a time: that takes memory, and
            the interpreter from all others.

    Raises:
        Problem: 429 they have too many reads under way; 503 too many wait to read the queue, or its
            time is over; as ``work``.
    """
    waiting = services.read_places.pending.statistics().tasks_waiting
    if kind == "pending" and waiting >= MAX_WAITING:
        raise Problem(
            503,
            f"{MAX_WAITING} requests with include_pending wait for their turn already: ask without"
            " it, or again in a while",
            headers={"Retry-After": "10"},
        )
    holder = who.key_id or request.scope["countersink.client"]
    return await ReadCall(services, holder, kind, partial(work, *args)).answer(request)


def asking(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What ``work`` returns; what it cannot tell as a problem.

    Raises:
        Problem: 404 nobody has counted it; 422 what is asked for cannot be told, or is no question;
            503 it cannot be told now.
    """
    try:
        return work(*args, **kwargs)
    except UnknownCounter as error:
        # What is no Query has no include_pending.
        without = any(isinstance(arg, Query) and not arg.include_pending for arg in args)
        raise unknown(error, without_pending=without) from error
    except RolledUp as error:
        up_to = error.rolled_up_to.isoformat()
        raise Problem(422, _sentence(error), extra={"rolled_up_to": up_to}) from error
    except InexactZone as error:
        raise Problem(422, _sentence(error)) from error
    except UnknownZone as error:
        LOGGER.error("%s", error, extra={"action": "unknown_zone"})
        raise Problem(
            503,
            "A counter's time zone is unknown to the server, which needs a newer tzdata;"
            " its log says more",
            headers={"Retry-After": "60"},
        ) from error
    except QueueTooLong as error:
        raise Problem(
            503,
            f"{_sentence(error)}, which is more than is read for one answer: ask without"
            " include_pending, or again once the workers have caught up (countersink totals"
            " --include-pending reads all of it)",
            headers={"Retry-After": "30"},
        ) from error
    except Stopped as error:
        raise Problem(
            503, "This server is about to end: ask again", headers={"Retry-After": "2"}
        ) from error
    except StoreError:
        raise  # some of them are ValueErrors too
    except ValueError as error:
        raise Problem(422, _sentence(error)) from error


def unknown(error: UnknownCounter, *, without_pending: bool) -> Problem:
    """The problem that nobody has counted it.

    Args:
        error: what it says.
        without_pending: it was asked for without what is pending, where that could be asked for.
    """
    advice = "; if it was a moment ago, ask with include_pending=true" if without_pending else ""
    return Problem(404, f"{_sentence(error)}{advice}. GET /v1/counters lists what was")


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]


def responses(
    document: Mapping[str, Any], *, csv: bool = True, one: bool = False
) -> dict[str, Any]:
    """The answers that all of these doors give, besides those that every door has."""
    headers = {
        "ETag": {"description": "Of the numbers.", "schema": {"type": "string"}},
        "Cache-Control": {"schema": {"type": "string"}},
        "Vary": {"schema": {"type": "string"}},
        COMPLETE: {
            "description": "Everything that reached Redis before this time is in the answer;"
            " `unknown` where Redis did not tell.",
            "schema": {"type": "string"},
        },
        ROLLED_UP: {
            "description": "The first day of which everything can still be told.",
            "schema": {"type": "string", "format": "date"},
        },
        TRUNCATED: {
            "description": "There: only the largest, or the latest, are in the answer.",
            "schema": {"type": "string", "enum": ["true"]},
        },
    }
    content: dict[str, Any] = {"application/json": {"schema": document}}
    if csv:
        content[CSV] = {"schema": {"type": "string"}}
    made: dict[str, Any] = {
        "200": {"description": "The answer.", "headers": headers, "content": content},
        "304": {"description": "It is as If-None-Match has it.", "headers": headers},
        "422": NOT_VALID,
    }
    if one:
        made["404"] = {"description": "Nothing was ever counted under this name."}
    return made
