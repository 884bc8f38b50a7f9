"""Increments as they come by HTTP: JSON, read strictly, each error with its place."""

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from countersink.producers.increments import Asked
from countersink.web.bodies import read_json
from countersink.web.identity import Identity
from countersink.web.options import DAY_S, WebOptions
from countersink.web.problem import Problem

MAX_ERRORS: Final = 20
"""Errors that are told at once."""
MAX_ID_LENGTH: Final = 255
"""Characters in the ``id`` of an increment and in an ``Idempotency-Key``."""


class _Item(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    counter: str
    key: str | UnsetType = UNSET
    amount: int | UnsetType = UNSET
    at: str | int | float | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET


_decode = msgspec.json.Decoder(list[_Item] | _Item).decode


def read_increments(
    body: bytes,
    options: WebOptions,
    who: Identity,
    clock: Callable[[], float] = time.time,
) -> list[Asked]:
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
    increments: list[Asked] = []
    errors: list[tuple[int, str]] = []
    checked: set[str] = set()
    bounds: _Bounds | None = None
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
                bounds = bounds or _Bounds(options, clock())
                bounds.check(when)
            name = None if id is UNSET or id is None else scoped(who, _checked_id(id))
        except ValueError as error:
            errors.append((position, str(error)))
        else:
            increments.append((counter, "" if key is UNSET else key, amount, when, name))
    if errors:
        raise invalid(errors)
    return increments


class _Bounds:
    """Between which the times of a request's increments lie, both ends included."""

    def __init__(self, options: WebOptions, now: float) -> None:
        self._options = options
        self._latest = now + options.max_ahead_s
        self._earliest = now - options.max_age_days * DAY_S if options.max_age_days else -math.inf

    def check(self, when: datetime) -> None:
        """Raise ValueError where it does not."""
        seconds = when.timestamp()
        if seconds > self._latest:
            raise ValueError(
                f"'at' lies more than {self._options.max_ahead_s:,.15g} s ahead of this server's"
                " clock: set the sender's right"
            )
        if seconds < self._earliest:
            raise ValueError(
                f"'at' lies more than {self._options.max_age_days:,} days back, and this server"
                " takes nothing older: count it by `countersink backfill`"
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


def _checked_id(id: str) -> str:
    if not 1 <= len(id) <= MAX_ID_LENGTH:
        raise ValueError(f"'id' has 1 to {MAX_ID_LENGTH} characters")
    return id


def _items(body: bytes, most: int) -> Sequence[_Item]:
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


def _is_told_once(body: bytes, items: Sequence[_Item]) -> bool:
    """Whether surely no member is in ``body`` twice: it has no string besides those of ``items``.

    Looking at each member takes three times as long as all the rest.
    """
    strings = 2 * len(items)
    for item in items:
        if item.key is not UNSET:
            strings += 2
        if item.amount is not UNSET:
            strings += 1
        if item.at is not UNSET:
            strings += 1 + isinstance(item.at, str)
        if item.id is not UNSET:
            strings += 1 + isinstance(item.id, str)
    return b"\\" not in body and body.count(b'"') == 2 * strings


def _items_one_by_one(body: bytes, most: int) -> Sequence[_Item]:
    """The same, slowly, when some are not valid, to tell which, or have whole numbers as floats."""
    try:
        found = read_json(body)
    except msgspec.ValidationError as error:  # a number that is too large, or too long
        raise Problem(422, f"The body is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _no_json() from None
    each = found if isinstance(found, list) else [found]
    _check_number(len(each), most)
    items: list[_Item] = []
    errors: list[tuple[int, str]] = []
    for position, item in enumerate(each):
        try:
            items.append(msgspec.convert(item, _Item))
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


def _no_json() -> Problem:
    return Problem(400, 'The body is not JSON: send {"counter": "page_views", "key": "/home"}')
