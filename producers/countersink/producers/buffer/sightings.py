"""Class ``Sightings``, the sightings (calls of ``seen()``) that are not folded yet; and ``Salts``,
the salts of their members: how often they are read from Redis.

Members are hashed with the salt of their counter and minute, mostly by the fold thread. The send
thread reads salts from Redis; until then plain members wait, in memory only: see ``queues.py``.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from countersink.producers.buffer.queues import MAX_COUNTERS, CounterLists, Listed, fold_lists
from countersink.producers.buffer.rows import RowBuffer
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import (
    HASH_BYTES,
    SALT_SECONDS,
    Salt,
    check_member,
    no_salt,
    no_salt_of_time,
)
from countersink.stream.entry import MembersRow, RedisClock

ASK_EVERY_SECONDS: Final = 60.0
"""Seconds between reads of a counter's salts from Redis."""
ASK_AGAIN_SECONDS: Final = 1.0
"""Seconds between these reads for a counter without salts, or without a salt that a sighting
needs."""
STALE_SECONDS: Final = 120.0
"""Age of salts above which they are used only while Redis is away: after a pause in which nobody
needed them, they may be old."""
LARGE_MEMBER: Final = 256
"""Bytes of a member above which the caller hashes it at once, if the salt is known. Members that
are not folded yet are limited only in number, so large ones would take too much memory."""
MINUTES_AHEAD: Final = 1_440
"""Minutes ahead of now for which a missing salt is waited for: workers make salts a day ahead. A
later sighting without a salt is counted without its member."""
CHUNK: Final = 4_000
"""Number of sightings that are folded in one call into C, which holds the interpreter lock."""

Member = bytes | tuple[int, bytes]
"""A member (bytes), or the number of its salt and its hash if it is hashed already."""
Hasher = Callable[[], Any]
"""A function that returns a BLAKE2b object keyed with the salt, to be updated with a member."""


@dataclass(slots=True)
class _CounterSalts:
    """Redis's last answer about the salts of a counter.

    Attributes:
        salts: the counter's salts, the earliest first, each with a function that returns a
            hash object keyed with it.
        asked_at: monotonic time of the answer.
        since: monotonic time of the first of a series of answers, each at most ``SALT_SECONDS``
            after the answer before. If a salt is still missing in an answer ``SALT_SECONDS`` or
            more after ``since``, it is useless to wait for it: no worker makes salts.
        lacking: whether, at the last look-up that found no salt in this answer, the minute was not
            before all salts: workers may still make its salt. False without such a look-up.
    """

    salts: list[tuple[Salt, Hasher]]
    asked_at: float
    since: float
    lacking: bool = False


class Salts:
    """The salts for hashing members, such as visitors. A counter that counts different members has
    a salt for each range of time. Workers make the salts, the send thread reads them from Redis,
    and any thread may use them.

    Attributes:
        reachable: whether Redis answered the last command of the send thread.
    """

    def __init__(self) -> None:
        self.reachable = False
        self._known: dict[str, _CounterSalts] = {}
        self._wanted: dict[str, None] = {}  # requested by callers and by the fold thread

    def want(self, counter: str) -> None:
        """Request a counter's salts from the send thread, unless those of ``MAX_COUNTERS`` counters
        are requested already.
        """
        if counter not in self._wanted and len(self._wanted) < MAX_COUNTERS:
            self._wanted[counter] = None

    def find(self, counter: str, minute: int) -> tuple[int, Hasher] | None:
        """Return the number of the salt for a minute, and a function that returns a hash object
        keyed with it. If the salt is not known, request the counter's salts and return None.
        """
        known = self._known.get(counter)
        if known is None or self._is_unknown(known):
            self.want(counter)
            return None
        for salt, hasher in known.salts:
            if salt.begins <= minute and (salt.ends is None or minute < salt.ends):
                return salt.number, hasher
        known.lacking = any(salt.begins <= minute for salt, _ in known.salts)
        self.want(counter)
        return None

    def is_out_of_reach(self, counter: str, minute: int, now: int) -> bool:
        """Return True if it is useless to wait for the salt of ``minute``: the minute is before the
        first known salt of the counter; or it is after the last known salt, and also a day or more
        after ``now``, so that workers will not make its salt soon. Return False if no salt of the
        counter is known. After True, callers refuse the sighting, or count it without its member.

        Args:
            minute: the minute of the sighting.
            now: the present minute.
        """
        known = self._known.get(counter)
        if known is None or not known.salts:
            return False
        first, last = known.salts[0][0], known.salts[-1][0]
        ahead = last.ends is not None and minute >= max(last.ends, now + MINUTES_AHEAD)
        return ahead or minute < first.begins

    def counts_members(self, counter: str) -> bool | None:
        """Return whether a counter counts different members: whether it has salts by Redis's last
        answer. Return None if there is no answer yet, or if the answer is older than
        ``STALE_SECONDS`` although Redis can be reached. Unless the result is True, request the
        counter's salts.
        """
        known = self._known.get(counter)
        if known is None or not known.salts or self._is_unknown(known):
            self.want(counter)
        return None if known is None or self._is_unknown(known) else bool(known.salts)

    def has_none(self, counter: str, since: float = 0.0) -> bool:
        """Return True if it is useless to wait for a salt of the counter: by Redis's last answer,
        the counter has no salts or lacks the one that a sighting needs; Redis has answered for
        at least ``SALT_SECONDS``; and the last answer did not come before ``since`` (monotonic).
        Return False if Redis has not answered, or if no salt is missing.
        """
        known = self._known.get(counter)
        if known is None or (known.salts and not known.lacking):
            return False
        return known.asked_at >= max(since, known.since + SALT_SECONDS)

    def is_due(self, counter: str) -> bool:
        """Whether the salts of a counter were requested, and were never read or not in the last
        ``ASK_EVERY_SECONDS``. The interval is ``ASK_AGAIN_SECONDS`` if the counter has no salts,
        or lacks one that a sighting needs.
        """
        return counter in self._wanted and self._due_in(counter) <= 0.0

    @property
    def pending(self) -> bool:
        """Whether salts of at least one requested counter are unknown: they were never read, or,
        although Redis is :attr:`reachable`, not in the last ``STALE_SECONDS``. Sightings of such a
        counter have to wait for the salts."""
        return any(self._is_unknown(self._known.get(counter)) for counter in list(self._wanted))

    def _is_unknown(self, known: _CounterSalts | None) -> bool:
        return known is None or (self.reachable and self._age(known) > STALE_SECONDS)

    # --- the send thread's side --------------------------------------------------------------

    def due(self) -> list[str]:
        """Return the counters whose salts are to be read from Redis now: see :meth:`is_due`."""
        return [counter for counter in list(self._wanted) if self.is_due(counter)]

    def learn(self, counter: str, salts: list[Salt]) -> None:
        """Remember the salts of a counter that were read from Redis. An empty list means that the
        counter has none; it also ends the request for the salts.
        """
        hashers = [
            (salt, blake2b(digest_size=HASH_BYTES, key=salt.salt).copy)
            for salt in sorted(salts, key=lambda salt: salt.begins)
        ]
        if counter not in self._known and len(self._known) >= MAX_COUNTERS:
            self._known = {name: known for name, known in self._known.items() if known.salts}
        now = since = time.monotonic()
        before = self._known.get(counter)
        if before and self._age(before) <= SALT_SECONDS:
            since = before.since
        self._known[counter] = _CounterSalts(hashers, now, since)
        if not salts:  # removed until the next request: clients may invent names of counters
            self._wanted.pop(counter, None)

    def _due_in(self, counter: str) -> float:
        known = self._known.get(counter)
        if known is None:
            return 0.0
        lacking = known.lacking or not known.salts
        return (ASK_AGAIN_SECONDS if lacking else ASK_EVERY_SECONDS) - self._age(known)

    @staticmethod
    def _age(known: _CounterSalts) -> float:
        return time.monotonic() - known.asked_at


class Sightings:
    """The sightings that callers append, and their folding into rows. Methods that fold need the
    lock of the ``EventBuffer``; all other methods may be called from any thread.

    A counter whose salts are known can have a list of its own: key, member, key, member, …. Then a
    call of ``seen()`` is one ``list.extend``, like the ``append`` of ``increment()``.

    Attributes:
        fast: maps a counter to the ``extend`` of its list, which takes the key and the small member
            (``bytes`` or ASCII) of a sighting that happens now.
        lists: the lists of the counters. The list that counters share has two items for each
            sighting: (counter, key or dimensions, minute or None for now), and the member or, if it
            is hashed already, (number of the salt, hash).
        salts: the salts of members.
        without_member: number of sightings counted without their members, for lack of a salt.
        without_salt: the reason why the last of these had no salt, as a text.
        waits_for_salts: whether sightings without a salt wait for it. After the close they do not
            wait, but are counted without their members.
    """

    def __init__(self, buffer: RowBuffer, clock: RedisClock) -> None:
        self.fast: dict[str, Callable[[tuple[RowKey, str | bytes]], None]] = {}
        self.salts = Salts()
        self.without_member = 0
        self.without_salt = ""
        self.waits_for_salts = True
        self.lists = CounterLists(width=2)
        self._buffer = buffer
        self._clock = clock

    def put(self, counter: str, key: RowKey, minute: int | None, member: bytes) -> None:
        """Add a checked sighting to the shared list; its ``minute`` is None for now. A member of
        more than ``LARGE_MEMBER`` bytes is hashed immediately, if its salt is known.
        """
        self._buffer.large_rows = True
        kept: Member = member
        if len(member) > LARGE_MEMBER and (found := self.hashed(counter, minute, member)):
            minute, kept = found[0], found[1:]
        self.lists.others.extend(((counter, key, minute), kept))

    def open_fast(self, counter: str) -> None:
        """If the salts of a counter are known, make ``fast`` add its further sightings to its own
        list. Do nothing if it has none and ``MAX_COUNTERS`` counters have a list already.
        """
        if not self.salts.counts_members(counter):
            return
        sightings = self.lists.list_for(counter)
        if sightings is not None:
            self.fast[counter] = sightings.extend

    def hashed(
        self, counter: str, minute: int | None, member: bytes
    ) -> tuple[int, int, bytes] | None:
        """Hash the member of a sighting. Return the sighting's minute, the number of the salt and
        the hash. If the salt is not known, request the counter's salts and return None.

        Args:
            minute: the sighting's minute; None stands for now.
        """
        when = self._clock.minute() if minute is None else minute
        found = self.salts.find(counter, when)
        if found is None:
            return None
        number, hasher = found
        return when, number, _hash(hasher, member)

    def fold(self, limit: int, lists: list[Listed], *, wait: bool) -> tuple[int, int]:
        """Fold at most ``limit`` sightings. Those whose salt is not known wait in the queue of
        waiting members, or are counted without their members. Return how many were taken from the
        lists, and how many (of these, or of waiting ones that had to leave the queue) were dropped
        for lack of memory.

        Args:
            lists: the lists with the sightings, as for :func:`fold_lists`.
            wait: True folds no more sightings than the queue has room for, as long as requested
                salts are unknown (:attr:`Salts.pending`). False does not limit them by this room.
                Sightings that exceed the queue's limits are counted without their members.
        """
        if wait and self.salts.pending:
            limit = min(limit, self._buffer.waiting_members.room)
        dropped = 0

        def fold(counter: str, events: list[Any], most: int) -> int:
            nonlocal dropped
            chunk = events[: 2 * min(most, CHUNK)]
            del events[: len(chunk)]
            keys, members = chunk[::2], chunk[1::2]
            if counter:
                dropped += self._add_listed(counter, keys, members)
            else:
                dropped += self._add_others(keys, members)
            return len(keys)

        return fold_lists(lists, limit, fold), dropped

    def _add_listed(self, counter: str, keys: list[RowKey], members: list[str | bytes]) -> int:
        now = self._clock.minute()
        found = self.salts.find(counter, now)
        if found is None:
            waits = [
                self._queue_member(counter, key, now, check_member(member))
                for key, member in zip(keys, members, strict=True)
            ]
            return sum(waits)
        number, hasher = found
        hashes = _hash_all(hasher, members)
        return self._buffer.add_sightings(counter, now, number, keys, hashes)

    def _add_others(
        self, places: list[tuple[str, RowKey, int | None]], members: list[Member]
    ) -> int:
        now = self._clock.minute()
        dropped = 0
        rows: list[MembersRow] = []
        for (counter, key, at), member in zip(places, members, strict=True):
            when = now if at is None else at
            if isinstance(member, tuple):
                rows.append((counter, key, when, 1, *member))
            elif (found := self.salts.find(counter, when)) is not None:
                number, hasher = found
                rows.append((counter, key, when, 1, number, _hash(hasher, member)))
            else:
                dropped += self._queue_member(counter, key, when, member)
        return dropped + self._buffer.add_members(rows)

    def is_out_of_reach(self, counter: str, minute: int) -> bool:
        """Return whether it is useless to wait for the counter's salt of ``minute``: the result of
        :meth:`Salts.is_out_of_reach` at the present minute.
        """
        return self.salts.is_out_of_reach(counter, minute, self._clock.minute())

    def fold_waiting(self, *, end: bool) -> int:
        """Fold the waiting sightings whose salts are known by now. Some others may have to leave
        the queue, and are counted without their members. Return how many of these were dropped,
        because memory had no room for their rows.

        Args:
            end: True ends the waiting: the remaining sightings, and all later ones without a salt,
                are counted without their members.
        """
        self.waits_for_salts = self.waits_for_salts and not end
        waiting = self._buffer.waiting_members
        dropped = 0
        for counter in waiting.counters:
            if not (end or self.salts.counts_members(counter)):
                continue
            rows: list[MembersRow] = []
            for key, minute, member in self._buffer.take_waiting(counter):
                found = self.hashed(counter, minute, member)
                if found is None:
                    dropped += self._queue_member(counter, key, minute, member)
                else:
                    rows.append((counter, key, minute, 1, *found[1:]))
            self._buffer.add_members(rows, bounded=False)
        return dropped

    def _queue_member(self, counter: str, key: RowKey, minute: int, member: bytes) -> int:
        """Keep a sighting until the salt of its member is known. If ``waits_for_salts`` is False,
        or :meth:`is_out_of_reach` returns True, count it without its member instead. If the queue
        now exceeds its limits, count some of its sightings without their members. Return the number
        of sightings that were dropped, because memory had no room for their rows.
        """
        self.fast.clear()  # the slow way requests the salt, and waits while events are too many
        unqueued = [(counter, key, minute)]
        if self.waits_for_salts and not self.is_out_of_reach(counter, minute):
            unqueued = self._buffer.queue_member(counter, key, minute, member)
        dropped = 0
        for left_counter, left_key, left_minute in unqueued:
            if self._buffer.add(left_counter, left_key, left_minute, 1, 1):
                dropped += 1
            else:
                self.without_member += 1
                self.without_salt = self._why_without(left_counter, left_minute)
        return dropped

    def _why_without(self, counter: str, minute: int) -> str:
        if self.is_out_of_reach(counter, minute):
            return no_salt_of_time(counter)
        if self.salts.counts_members(counter) is None or not self.salts.reachable:
            return f"the salt of {counter} could not be read from Redis"
        return no_salt(counter)


def _hash(hasher: Hasher, member: bytes) -> bytes:
    taken = hasher()
    taken.update(member)
    digest: bytes = taken.digest()
    return digest


def _hash_all(hasher: Hasher, members: list[str | bytes]) -> list[bytes]:
    """Return the hash of each member. Equal members are hashed once."""
    hashes: dict[str | bytes, bytes] = dict.fromkeys(members, b"")
    for member in hashes:  # _hash() inline: faster
        taken = hasher()
        taken.update(member.encode() if type(member) is str else member)
        hashes[member] = taken.digest()
    if len(hashes) == len(members):
        return list(hashes.values())
    return list(map(hashes.__getitem__, members))
