"""Badges of hit counters: the SVG (``badge``), and the numbers in it (``HitNumbers``).

The number of a key is read at most every :data:`FRESH_S` seconds, from MySQL and, if the queue is
short, from the queue. Between two reads, this process adds the visits that it counts by requests
for the badge; visits by pixels and beacons appear with the next read. It does not add visits that
it counts during a read: they may be in the result, and no visit may be shown twice. (If the result
lacks entries that wait in the queue, the larger of both numbers is kept.) So a badge may be a few
visits behind until the next read.
"""

import asyncio
import re
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import Final

import anyio

from countersink.counting.errors import UnknownCounter
from countersink.counting.totals.query import Query
from countersink.counting.totals.selection import Selection
from countersink.database.errors import StoreError
from countersink.stream.connection import mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import stream_keys
from countersink.web.services import Acknowledgements, Services

FRESH_S: Final = 2.0
"""Minimum seconds between two reads of a key's number, also after a failed one."""
PATIENCE_S: Final = 2.0
"""Maximum seconds that a visitor waits for a number."""
MAX_NUMBERS: Final = 10_000
"""Maximum number of keys whose numbers are remembered."""
MAX_READINGS: Final = 64
"""Numbers that may be read, or wait to be read, at the same time; other badges show the last known
number. There is a limit because anybody may request badges of any number of keys."""
THREADS: Final = 2
"""Threads that read numbers of badges only, so that badges do not hold up clients with a key."""
MAX_QUEUE: Final = 500
"""Entries of the queue up to which a badge includes pending rows: reading more takes too long. The
option ``max_pending_entries`` may be lower."""
HEIGHT: Final = 20
PADDING: Final = 6
MAX_LABEL_LENGTH: Final = 64
_FONT_SIZE: Final = 11
_CHARACTER: Final = 7
"""Approximate width in pixels of a character in 11 px Verdana."""
_WIDE_CHARACTER: Final = 11
"""Approximate width in pixels of a wide character, such as a Chinese one, in 11 px Verdana."""
_UNPRINTABLE: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Matches characters that an XML 1.0 document cannot hold (section 2.2, Char)."""


def badge(label: str, number: int | None) -> bytes:
    """Return a badge, as SVG in UTF-8.

    Args:
        label: the text on the left.
        number: the number on the right, shown with its digits in groups of three; None shows a
            dash.
    """
    label = _UNPRINTABLE.sub("\ufffd", label)
    shown = "–" if number is None else f"{number:,}".replace(",", "\u202f")
    title = escape(f"{label}: {'unknown' if number is None else number}")
    left, right = _width(label), _width(shown)
    # textLength stretches both texts to the computed width: no font makes them overflow.
    # No style element or attribute: a content security policy may forbid them.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}"'
        f' role="img" aria-label="{title}"><title>{title}</title>'
        f'<clipPath id="r"><rect width="{left + right}" height="{HEIGHT}" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="{HEIGHT}" fill="#4a4f57"/>'
        f'<rect x="{left}" width="{right}" height="{HEIGHT}" fill="#1f6feb"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,Geneva,sans-serif"'
        f' font-size="{_FONT_SIZE}" text-anchor="middle">'
        f"{_text(label, left / 2, left)}{_text(shown, left + right / 2, right)}</g></svg>"
    ).encode()


def _text(text: str, middle: float, width: int) -> str:
    if not text:
        return ""
    return f'<text x="{middle:g}" y="14" textLength="{width - 2 * PADDING}">{escape(text)}</text>'


def _width(text: str) -> int:
    """Return the approximate width of a text of a badge with the padding on both sides, in pixels;
    0 for an empty text."""
    if not text:
        return 0
    # From U+2E80 on, most scripts have square characters.
    wide = sum(ord(character) >= 0x2E80 for character in text)
    return _CHARACTER * (len(text) - wide) + _WIDE_CHARACTER * wide + 2 * PADDING


@dataclass(slots=True, eq=False)
class _Number:
    """The number that the badge of one key shows.

    Attributes:
        base: the total that the last successful read returned; None before the first one. If the
            read missed stored visits, and its total was smaller than the number shown before, this
            is the number shown before.
        visits: number of visits by requests for this badge that this process has counted since the
            last successful read ended.
        read_at: time at which the last read ended, with or without success, in seconds of
            :func:`time.monotonic`.
        reading: the task of the running read; None if no read is running.
    """

    base: int | None = None
    visits: int = 0
    read_at: float = -FRESH_S
    reading: asyncio.Task[None] | None = None


class HitNumbers:
    """The totals of keys for badges. A total is the result of the last read, plus the visits that
    this process has counted since then by requests for the badge of the key.

    Args:
        services: the objects that endpoints share.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._numbers: OrderedDict[tuple[str, str], _Number] = OrderedDict()
        self._readings = 0
        self._threads = anyio.CapacityLimiter(THREADS)

    async def number(self, counter: str, key: str, visits: int) -> int | None:
        """Return the total of a key. Read it first if the last read of this key, also a failed one,
        ended :data:`FRESH_S` ago or earlier, or there was none.

        If this read fails or takes longer than :data:`PATIENCE_S`, or if :data:`MAX_READINGS` other
        reads are running, return the last known total plus the ``visits`` passed since then. Return
        None if no read of this key has succeeded yet.

        Args:
            counter, key: the counter and the key that the badge shows.
            visits: number of visits of this request that the producer has just accepted; they are
                added to the total.
        """
        number = self._numbers.pop((counter, key), None) or _Number()
        self._numbers[counter, key] = number  # at the end: the least recently used come first
        if len(self._numbers) > MAX_NUMBERS:
            self._numbers.popitem(last=False)
        number.visits += visits
        if time.monotonic() - number.read_at >= FRESH_S:
            if number.reading is None and self._readings < MAX_READINGS:
                self._readings += 1
                number.reading = asyncio.create_task(self._read(number, counter, key))
            if number.reading is not None:
                await asyncio.wait([number.reading], timeout=PATIENCE_S)
        return None if number.base is None else number.base + number.visits

    async def _read(self, number: _Number, counter: str, key: str) -> None:
        try:
            # The read includes all visits accepted before it, or does not happen.
            if await self._services.single(Acknowledgements).stored(PATIENCE_S / 2):
                found = await anyio.to_thread.run_sync(
                    self._total, counter, key, limiter=self._threads
                )
                if found is not None:
                    total, complete = found
                    known = (number.base or 0) + number.visits
                    # A complete total is smaller than before only after a decrement or deletion.
                    number.base, number.visits = total if complete else max(total, known), 0
        finally:
            number.read_at = time.monotonic()
            number.reading = None
            self._readings -= 1

    def _total(self, counter: str, key: str) -> tuple[int, bool] | None:
        """Read the total of a key. Return it, and whether it includes all stored visits: it lacks
        some if the queue is too long or cannot be read, or entries wait in the producer's spool.
        If the counter does not exist, the total is 0, and includes all only if the queue and the
        spool are empty. Return None if the total cannot be read."""
        services = self._services
        spooled = services.producer.checkpoint() is None
        queued: int | None = None
        with suppress(StreamError), mapped():
            queued = sum(int(services.redis.xlen(each)) for each in stream_keys(services.redis))
        try:
            most = min(MAX_QUEUE, services.options.max_pending_entries)
            pending = queued is not None and queued <= most
            selection = Selection(counter, keys=[key])
            query = Query(selection, by="total", include_pending=pending)
            ((total,),) = services.reads.ask(query).rows
            return total, pending and not spooled
        except UnknownCounter:
            return 0, queued == 0 and not spooled
        except (StoreError, StreamError):
            return None  # the badge shows what was known before
