"""Bodies of requests: Content-Length, gzip and media types, strict JSON, the answers 400, 413, 415
and 422 with their texts; the largest body is ``max_body_bytes`` in ``web/options.py``. And digests
of bodies that came with an Idempotency-Key: days for which they are kept (``DIGEST_DAYS``), and the
409 for another body."""

import asyncio
import json
import logging
import re
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b, sha256
from itertools import islice
from typing import Any, Final, Literal, TypeVar

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request

from countersink.producers import Increment
from countersink.producers.batch import Asked
from countersink.stream.connection import mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import bodies_key
from countersink.web.errors import Problem
from countersink.web.services import Services

LOGGER: Final = logging.getLogger("countersink.web")
MAX_OBJECT_BYTES: Final = 16 * 1024
_JSON_TYPES: Final = frozenset(("", "application/json", "text/plain"))
"""Media types under which JSON may come; ``text/plain`` is what navigator.sendBeacon sends a text
as, without asking the server first."""
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": 15}
"""Content codings, and the ``wbits`` of zlib that unpack them (RFC 9110, 8.4.1)."""
_EXACT: Final = 2**53 - 1
"""Up to which a float that is whole is the number that was written."""
_DIGITS: Final = 20
"""Characters of a whole number of 64 bits, its sign included."""
DIGEST_DAYS: Final = 3
"""Days for which a digest is kept at least, as guards are by default (``ledger_days``)."""
REDIS_WAIT_S: Final = 0.5
"""Seconds for which a request waits for Redis; then it is accepted without a comparison."""
REDIS_THREADS: Final = 8
"""Requests that ask Redis for digests at once."""
_DAY_S: Final = 86_400
_BUCKETS: Final = 4096
_NAME_BYTES: Final = 10
_DIGEST_BYTES: Final = 8
_ITEM_PARTS: Final = 50
"""Strings, commas and brackets of an increment, at most: six members, one an object of eight."""
# A group is atomic, as possessive ones go wrong before Python 3.11.5 (python/cpython#106052). A
# string that nothing closes is one up to the end: else each quote in it would be looked at anew.
_PART: Final = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"?|[,{\[]', re.DOTALL)
T = TypeVar("T", bound=msgspec.Struct)


async def read(request: Request, services: Services, limit: int | None = None) -> bytes:
    """The body, unpacked.

    Args:
        request: whose body nobody has read.
        services: for the settings.
        limit: bytes, before and after unpacking; default: ``max_body_bytes``.

    Raises:
        Problem: 413 it is larger; 415 it is packed in a way that we do not know; 400 it cannot be
            unpacked.
        ClientDisconnect: it did not arrive as a whole.
    """
    limit = services.options.max_body_bytes if limit is None else limit
    coding = _announced(request, limit)
    body = await _received(request, limit)
    if coding is None or not body:
        return body
    return unpack(body, coding.decode("latin-1"), limit)


async def read_object(
    request: Request,
    services: Services,
    kind: type[T],
    *,
    limit: int = MAX_OBJECT_BYTES,
    optional: bool = False,
    advice: str = "",
) -> T:
    """A body that is one JSON object, as a ``kind``, which forbids unknown members.

    Args:
        request, services, limit: as of :func:`read`.
        kind: of the object.
        optional: the body may be empty: it is ``kind()`` then.
        advice: what to send, for whoever sends no JSON.

    Raises:
        Problem: 400 it is no JSON; 413 it is too large; 415 it is something else; 422 it is not
            valid.
    """
    media_type = request.headers.get("content-type", "")
    check_json(media_type, "The body is JSON, or empty" if optional else "The body is JSON")
    body = await read(request, services, limit)
    if optional and not body:
        return kind()
    try:
        return msgspec.convert(read_json(body), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Problem(422, f"The body is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Problem(400, f"The body is not JSON{advice}") from None


def check_json(media_type: str, what: str = "The body is JSON") -> None:
    """Whether a body of this media type may be JSON.

    Args:
        media_type: the header Content-Type; empty where there is none.
        what: the body has to be.

    Raises:
        Problem: 415.
    """
    if media_type.partition(";")[0].strip().lower() not in _JSON_TYPES:
        raise Problem(
            415,
            f"{what}: send it with Content-Type: application/json",
            headers={"Accept": "application/json"},
        )


async def discard(request: Request, limit: int) -> None:
    """Let a body arrive of which nothing is wanted, and keep none of it.

    Args:
        request: whose body nobody has read.
        limit: bytes.

    Raises:
        Problem: 413 it is larger.
        ClientDisconnect: it did not arrive as a whole.
    """
    _announced(request, limit)
    await _received(request, limit, keep=False)


def check_parts(body: bytes, items: int) -> None:
    """Check that a body of JSON is not packed with more than ``items`` items can have, before it is
    decoded: a megabyte of ``{},{},…`` would hold the event loop.

    Raises:
        Problem: 413.
    """
    most = items * _ITEM_PARTS
    if body.count(b",") + body.count(b"{") + body.count(b"[") <= most:
        return
    # Those within strings are none: keys may be long.
    if next(islice(_PART.finditer(body), most, None), None) is not None:
        raise Problem(
            413, f"The body has more parts than {items:,} items may have: send it in parts"
        )


def read_json(body: bytes) -> Any:
    """JSON, in which a number that is whole is an int, also where it is written as ``743.0``.

    An object that has a member twice is refused, at any depth: which of the two counts, programs do
    not agree on, and whoever stands between may have looked at the other one (RFC 8259, 4).

    Raises:
        Problem: 422 a member is there twice.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: it is no JSON.
    """
    msgspec.json.decode(body)  # Python's own takes more: NaN, and halves of surrogate pairs
    return json.loads(body, object_pairs_hook=_object, parse_int=_whole, parse_float=_number)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        ((twice, _),) = Counter(name for name, _ in members).most_common(1)
        raise Problem(422, f"The body has the member {twice[:80]!r} twice in one object")
    return found


def _whole(text: str) -> int | float:
    # Beyond 64 bits it is no number of ours, and may have more digits than Python reads.
    return int(text) if len(text) <= _DIGITS else float(text)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if abs(value) <= _EXACT and value.is_integer() else value


def unpack(body: bytes, coding: str, limit: int) -> bytes:
    """``body`` without its content coding.

    Raises:
        Problem: as :func:`read`.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    window = _WINDOWS.get(coding)
    if window is None:
        raise Problem(
            415,
            "The body's Content-Encoding is not known: send it as it is, or as gzip or deflate",
            headers={"Accept-Encoding": "gzip, deflate"},
        )
    unpacker = zlib.decompressobj(window)
    try:
        found = unpacker.decompress(body, limit + 1)
    except zlib.error:
        found = b""
    if len(found) > limit:
        raise too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise Problem(400, f"The body is not whole, or not {coding} as its Content-Encoding says")
    return found


def too_large(limit: int) -> Problem:
    """What is told whose body has more than ``limit`` bytes; the connection ends with it."""
    return Problem(
        413,
        f"The body is larger than {limit:,} bytes: send it in parts",
        headers={"Connection": "close"},
    )


def _announced(request: Request, limit: int) -> bytes | None:
    """The Content-Encoding. Raises Problem if the Content-Length is beyond the limit."""
    found: Mapping[bytes, bytes] = request.scope["countersink.headers"]
    length = found.get(b"content-length")
    if length is not None and (len(length) > 15 or int(length) > limit):
        raise too_large(limit)
    return found.get(b"content-encoding")


async def _received(request: Request, limit: int, *, keep: bool = True) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise too_large(limit)
        if keep:
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class RequestBodies:
    """Digests of the bodies of named requests. For the event loop's thread.

    The guard in MySQL counts a name once. It is written when the entry is applied, and knows no
    body. So digests are in Redis, where each web process finds them from the first request on,
    while its entry is still in the queue. They lie in many small hashes, which Redis packs: 25
    bytes each.

    Args:
        services: of the process.
    """

    def __init__(self, services: Services) -> None:
        self._redis = services.redis
        self._scope = services.producer.id_scope
        self._threads = anyio.CapacityLimiter(REDIS_THREADS)
        self._compared = True

    @asynccontextmanager
    async def noted(
        self, name: str, increments: Sequence[Asked | Increment]
    ) -> AsyncIterator[None]:
        """Keep the digest of a request; given back if the block raises, as nothing is counted then.

        While Redis does not answer nothing is compared.

        Args:
            name: of the request, in the scope of its API key.
            increments: of its body. Spaces, members that have their default, and how a time is
                written make no other body of it; the order of increments does.

        Raises:
            Problem: 409 another body came with this name before.
        """
        place = sha256(f"{self._scope}\n{name}".encode()).digest()
        today = int(time.time()) // _DAY_S
        bucket = int.from_bytes(place[:2]) % _BUCKETS
        # Tomorrow's as well: the clock of the server that had the name first may be ahead.
        back = (0, -1, *range(1, DIGEST_DAYS + 1))
        keys = [bodies_key(bucket, today - days) for days in back]
        field = place[2 : 2 + _NAME_BYTES]
        work = partial(self._note, keys, field, name, increments)
        task = asyncio.create_task(anyio.to_thread.run_sync(work, limiter=self._threads))
        done, _ = await asyncio.wait({task}, timeout=REDIS_WAIT_S)
        if not done:
            task.cancel()  # if it has a thread already, it keeps that until Redis answers
        found = task.result() if done else None
        self._tell(compared=found is not None)
        if found == "other":
            raise Problem(
                409,
                "This Idempotency-Key came with another body before, so nothing was counted:"
                " give another request another key",
            )
        try:
            yield
        except Problem:
            if found == "first":
                await anyio.to_thread.run_sync(
                    self._give_back, keys[0], field, limiter=self._threads
                )
            raise

    def _note(
        self, keys: Sequence[str], field: bytes, name: str, increments: Iterable[Asked | Increment]
    ) -> Literal["first", "same", "other"] | None:
        """Which body of the name it is; None: Redis did not tell."""
        digest = _digest(name, increments)
        today, *others = keys
        try:
            with mapped(), self._redis.pipeline(transaction=False) as pipe:
                for key in others:
                    pipe.hget(key, field)
                pipe.hsetnx(today, field, digest)
                pipe.hget(today, field)
                pipe.expire(today, (DIGEST_DAYS + 1) * _DAY_S)
                *earlier, made, now, _ = pipe.execute()
        except StreamError:
            return None
        first = next((each for each in earlier if each is not None), None)
        if made and first is None:
            return "first"
        if (first or now) == digest:
            return "same"
        if made:
            self._give_back(today, field)
        return "other"

    def _give_back(self, key: str, field: bytes) -> None:
        """Forget a digest; one that Redis does not take back goes by itself."""
        try:
            with mapped():
                self._redis.hdel(key, field)
        except StreamError as error:
            LOGGER.debug("a digest stays: %s", error)

    def _tell(self, *, compared: bool) -> None:
        if self._compared and not compared:
            LOGGER.warning(
                "Redis does not answer, or refuses: bodies of Idempotency-Keys are not compared",
                extra={"action": "not_compared"},
            )
        self._compared = compared


def _digest(name: str, increments: Iterable[Asked | Increment]) -> bytes:
    """The digest of a body. With the name in it, so that who reads Redis cannot try visitors."""
    body = [
        (
            counter,
            key if isinstance(key, str) else sorted(key.items()),
            amount,
            None if at is None else at.timestamp(),
            rest,
        )
        for counter, key, amount, at, *rest in increments
    ]
    return blake2b(json.dumps([name, body]).encode(), digest_size=_DIGEST_BYTES).digest()
