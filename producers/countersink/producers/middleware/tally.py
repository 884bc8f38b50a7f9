"""Counting beside an app's real work: keys of a bounded number and length, and never an error."""

import zlib
from threading import Lock
from typing import Final, Protocol

from countersink.producers.journal import Journal
from countersink.stream.limits import check_counter

MAX_NAMES: Final = 1_000
"""Names (routes, tasks, functions) that one process tells apart, unless told otherwise."""
BEYOND: Final = "__other__"
"""What stands for names beyond that."""

FLUSH_SECONDS: Final = 5.0
"""How long the end of a process, or of a server, is held up at most for what was counted."""

_NAME_BYTES: Final = 200
"""Bytes of UTF-8 of a name that a key has room for, beside what stands before and after it."""
_PART_BYTES: Final = 26
"""Bytes of what stands before and after a name."""
_KEYS: Final = 10_000
"""Keys that are remembered as made; beyond that the memory is emptied."""


class Increments(Protocol):
    """What counts: a :class:`~countersink.producers.Producer`, or in tests the recording one."""

    def increment(self, counter: str, key: str) -> None:
        """Add 1 to ``key`` of ``counter``."""


class Flushable(Increments, Protocol):
    """What counts, and can be told to store it."""

    def flush(self, timeout: float) -> bool:
        """Wait until everything counted is stored, at most so many seconds; whether it is."""
        ...


class Tally:
    """Adds 1 for what happened, to a key such as ``GET /users/{id} 200``. Thread-safe.

    Whatever is wrong is logged, once a minute at most, and never raised: the app goes on.

    Args:
        producer: what counts.
        counter: the counter's name.
        max_names: names beyond this number are counted as ``__other__``.

    Raises:
        TypeError, ValueError: ``producer`` is none, ``counter`` cannot be a counter's name, or
            ``max_names`` is below 1.
    """

    def __init__(self, producer: Increments, counter: str, *, max_names: int = MAX_NAMES) -> None:
        if not callable(getattr(producer, "increment", None)):
            raise TypeError(f"what counts is a Producer, not {type(producer).__name__}")
        if max_names < 1:
            raise ValueError(f"at least 1 name must be told apart, not {max_names}")
        self._producer = producer
        self._counter = check_counter(counter)
        self._max_names = max_names
        self._journal = Journal()
        self._lock = Lock()
        self._names: dict[str, str] = {}
        self._keys: dict[tuple[str, str, str], str] = {}

    def add(self, before: str, name: str, after: str) -> None:
        """Add 1 to the key ``before name after``; an empty ``before`` is left out."""
        try:
            key = self._keys.get((before, name, after))
            if key is None:
                key = self._make(before, name, after)
            self._producer.increment(self._counter, key)
        except Exception:
            self.complain()

    def flush(self) -> None:
        """Wait until what was counted is stored, at most 5 seconds, if the producer can do so."""
        flush = getattr(self._producer, "flush", None)
        try:
            if flush is not None:
                flush(FLUSH_SECONDS)
        except Exception:
            self.complain()

    def complain(self) -> None:
        """Log the exception being handled, once a minute at most."""
        self._journal.bug(f"what counts {self._counter}")

    def _make(self, before: str, name: str, after: str) -> str:
        with self._lock:
            shown = self._names.get(name)
            if shown is None:
                if len(self._names) >= self._max_names:
                    shown = BEYOND
                else:
                    shown = self._names[name] = fitting(name)
            parts = (fitting(before, _PART_BYTES), shown, fitting(after, _PART_BYTES))
            key = " ".join(part for part in parts if part)
            if shown is not BEYOND:  # a client must not decide how much is remembered
                if len(self._keys) >= _KEYS:
                    self._keys.clear()
                self._keys[before, name, after] = key
            return key


def fitting(text: str, room: int = _NAME_BYTES) -> str:
    """``text`` in at most ``room`` bytes: what is longer is cut, and told apart by a checksum."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= room:
        return encoded.decode()
    cut = encoded[: room - 12].decode("utf-8", "ignore")
    return f"{cut}...~{zlib.crc32(encoded):08x}"
