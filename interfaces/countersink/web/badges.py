"""Badges of hit counters: their SVG (sizes, longest label), and the number shown: how long it is
kept, limits of reads.

Numbers are close, never ahead, and not asked of MySQL for every visit. Of a visit that comes while
a number is being read nobody can tell whether it is in that. It is taken to be: so no visit is ever
shown twice, and a badge may be behind by those few until the next reading.
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
"""Seconds for which a number from MySQL is good."""
PATIENCE_S: Final = 2.0
"""Seconds that a visitor waits for one at most."""
MAX_NUMBERS: Final = 10_000
MAX_READINGS: Final = 64
"""Numbers that are being read, or wait for it: others are shown as they were known. Anybody may ask
for badges of keys that nobody has ever seen."""
THREADS: Final = 2
"""Of its own, so that badges leave those alone who have a key and ask for totals."""
MAX_QUEUE: Final = 500
"""Entries in the queue up to which a badge has them, too: reading them takes time."""
HEIGHT: Final = 20
PADDING: Final = 6
MAX_LABEL_LENGTH: Final = 64
_FONT_SIZE: Final = 11
_CHARACTER: Final = 7
_WIDE_CHARACTER: Final = 11
"""Pixels of a character in 11 px Verdana, about."""
_UNPRINTABLE: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What an XML 1.0 document cannot hold (section 2.2, Char)."""


def badge(label: str, number: int | None) -> bytes:
    """The badge, in UTF-8.

    Args:
        label: on the left; any text.
        number: on the right, its digits in groups of three; None: unknown.
    """
    label = _UNPRINTABLE.sub("\ufffd", label)
    shown = "–" if number is None else f"{number:,}".replace(",", "\u202f")
    said = escape(f"{label}: {'unknown' if number is None else number}")
    left, right = _width(label), _width(shown)
    # Both texts are stretched to what was reckoned: whatever font there is, nothing overflows.
    # No style element or attribute: a content security policy may forbid them.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}"'
        f' role="img" aria-label="{said}"><title>{said}</title>'
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
    """Pixels of a text with the space around it."""
    if not text:
        return 0
    # From here on mostly scripts with square characters.
    wide = sum(ord(character) >= 0x2E80 for character in text)
    return _CHARACTER * (len(text) - wide) + _WIDE_CHARACTER * wide + 2 * PADDING


@dataclass(slots=True, eq=False)
class _Number:
    """One key's number.

    Attributes:
        base: the total as it was known after the last reading; None: there was none.
        visits: those counted here since.
        read_at: monotonic seconds of the last attempt.
        reading: the attempt under way.
    """

    base: int | None = None
    visits: int = 0
    read_at: float = -FRESH_S
    reading: asyncio.Task[None] | None = None


class HitNumbers:
    """Totals of keys, each with the visits that this process has counted since it was read."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._numbers: OrderedDict[tuple[str, str], _Number] = OrderedDict()
        self._readings = 0
        self._threads = anyio.CapacityLimiter(THREADS)

    async def number(self, counter: str, key: str, visits: int) -> int | None:
        """The key's total; None while it cannot be told.

        Args:
            counter, key: whose.
            visits: how many the caller has just had accepted.
        """
        number = self._numbers.pop((counter, key), None) or _Number()
        self._numbers[counter, key] = number  # at the end, behind those not seen for longer
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
            # What the producer has accepted before is in the number, or it is not read.
            if await self._services.one(Acknowledgements).stored(PATIENCE_S / 2):
                found = await anyio.to_thread.run_sync(
                    self._total, counter, key, limiter=self._threads
                )
                if found is not None:
                    total, whole = found
                    known = (number.base or 0) + number.visits
                    # A whole one that is smaller can only be so because something was taken away.
                    number.base, number.visits = total if whole else max(total, known), 0
        finally:
            number.read_at = time.monotonic()
            number.reading = None
            self._readings -= 1

    def _total(self, counter: str, key: str) -> tuple[int, bool] | None:
        """The total, and whether it has all that was stored; None while it cannot be told."""
        services = self._services
        spooled = services.producer.mark() is None
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
