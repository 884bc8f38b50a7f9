"""Members on their way to rows (``Sightings``): salts that a producer has learnt (``Salts``),
how often salts are asked for; members that wait for theirs are in ``queues.py``.

A member is hashed by the fold thread with the salt of its counter and minute. Only Redis tells the
salts, and only the send thread asks. Until then a member waits as it is, in memory alone.
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
    out_of_reach,
)
from countersink.stream.clock import RedisClock
from countersink.stream.entry import MembersRow

ASK_EVERY_SECONDS: Final = 60.0
"""After which known salts are asked for again."""
ASK_AGAIN_SECONDS: Final = 1.0
"""The same of a counter that had none, or none of a time which is not over."""
STALE_SECONDS: Final = 120.0
"""Salts that are older are used only while Redis is away: a producer may have been idle."""
LARGE_MEMBER: Final = 256
"""Bytes of a member above which the caller hashes it, if the salt is known: members that wait to be
folded are bounded by their number alone."""
MINUTES_AHEAD: Final = 1_440
"""Of an event that is further ahead, and whose salt is not made yet, the member is dropped: workers
make salts a day ahead."""
CHUNK: Final = 4_000
"""Sightings that are folded in one call into C, which holds the interpreter lock."""

Member = bytes | tuple[int, bytes]
"""A member; or the number of the salt by which it was hashed, and its hash."""
Hasher = Callable[[], Any]
"""Makes a BLAKE2b that has taken the salt, to be updated with a member."""


@dataclass(slots=True)
class _Known:
    """Redis's answer about a counter.

    Attributes:
        salts: the earliest first.
        asked_at: when that was.
        since: when it was asked first, without a pause; how long a salt may be due begins then.
        lacking: a salt was looked for that is not made yet.
    """

    salts: list[tuple[Salt, Hasher]]
    asked_at: float
    since: float
    lacking: bool = False


class Salts:
    """The salts of counters. The send thread learns them; any thread looks.

    Attributes:
        reachable: Redis answered the last time that salts were asked for.
    """

    def __init__(self) -> None:
        self.reachable = False
        self._known: dict[str, _Known] = {}
        self._wanted: dict[str, None] = {}  # asked for by callers and by the fold thread

    def want(self, counter: str) -> None:
        """Have the send thread ask for the salts of a counter."""
        if counter not in self._wanted and len(self._wanted) < MAX_COUNTERS:
            self._wanted[counter] = None

    def find(self, counter: str, minute: int) -> tuple[int, Hasher] | None:
        """The number of the salt of a minute, and what hashes with it; None: it is not known."""
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
        """Whether the salt of a minute was forgotten, or will not be made within a day."""
        known = self._known.get(counter)
        if known is None or not known.salts:
            return False
        first, last = known.salts[0][0], known.salts[-1][0]
        ahead = last.ends is not None and minute >= max(last.ends, now + MINUTES_AHEAD)
        return ahead or minute < first.begins

    def counts_members(self, counter: str) -> bool | None:
        """Whether a counter had salts when Redis was asked last; None: that is not known now."""
        known = self._known.get(counter)
        if known is None or not known.salts or self._is_unknown(known):
            self.want(counter)
        return None if known is None or self._is_unknown(known) else bool(known.salts)

    def has_none(self, counter: str, since: float = 0.0) -> bool:
        """Whether Redis has told since the monotonic time ``since`` that a counter has none, or
        none of the time that was looked for, and for so long that none is due.
        """
        known = self._known.get(counter)
        if known is None or (known.salts and not known.lacking):
            return False
        return known.asked_at >= max(since, known.since + SALT_SECONDS)

    def is_due(self, counter: str) -> bool:
        """Whether Redis is to be asked for the salts of a counter now."""
        return counter in self._wanted and self._due_in(counter) <= 0.0

    @property
    def pending(self) -> bool:
        """Whether Redis has not told of a counter that was asked for."""
        return any(self._is_unknown(self._known.get(counter)) for counter in list(self._wanted))

    def _is_unknown(self, known: _Known | None) -> bool:
        return known is None or (self.reachable and self._age(known) > STALE_SECONDS)

    # --- the send thread's side --------------------------------------------------------------

    def due(self) -> list[str]:
        """The counters to ask for now."""
        return [counter for counter in list(self._wanted) if self.is_due(counter)]

    def learn(self, counter: str, salts: list[Salt]) -> None:
        """What Redis told of a counter; empty: it has none."""
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
        self._known[counter] = _Known(hashers, now, since)
        if not salts:  # asked for again by whoever needs them: names may come from anybody
            self._wanted.pop(counter, None)

    def _due_in(self, counter: str) -> float:
        known = self._known.get(counter)
        if known is None:
            return 0.0
        lacking = known.lacking or not known.salts
        return (ASK_AGAIN_SECONDS if lacking else ASK_EVERY_SECONDS) - self._age(known)

    @staticmethod
    def _age(known: _Known) -> float:
        return time.monotonic() - known.asked_at


class Sightings:
    """Sightings as callers leave them, and their folding into rows. Folding is for the owner of the
    row buffer's lock, all else for any thread.

    A counter whose salts are known has a list of its own, of key, member, key, member, …: a call is
    one ``list.extend``, as one of ``increment()`` is an ``append`` (see ``events.py``).

    Attributes:
        fast: counter → ``extend`` of its list, for a key and a small member, a ``bytes`` or ASCII.
        lists: of key, member, key, member, …; the others are (counter, key or dimensions, minute or
            None for now), :data:`Member`, ….
        salts: what members are hashed with.
        without_member: sightings that were counted without their members, for want of a salt;
        without_salt: why the last of them had none.
        patient: members may wait for their salts.
    """

    def __init__(self, buffer: RowBuffer, clock: RedisClock) -> None:
        self.fast: dict[str, Callable[[tuple[RowKey, str | bytes]], None]] = {}
        self.salts = Salts()
        self.without_member = 0
        self.without_salt = ""
        self.patient = True
        self.lists = CounterLists(width=2)
        self._buffer = buffer
        self._clock = clock

    def put(self, counter: str, key: RowKey, minute: int | None, member: bytes) -> None:
        """Leave a checked sighting."""
        self._buffer.large_rows = True
        kept: Member = member
        if len(member) > LARGE_MEMBER and (found := self.hashed(counter, minute, member)):
            minute, kept = found[0], found[1:]
        self.lists.others.extend(((counter, key, minute), kept))

    def open_fast(self, counter: str) -> None:
        """Let further sightings of a counter go the fast way, if its salts are known."""
        if not self.salts.counts_members(counter):
            return
        mine = self.lists.of(counter)
        if mine is not None:
            self.fast[counter] = mine.extend

    def hashed(
        self, counter: str, minute: int | None, member: bytes
    ) -> tuple[int, int, bytes] | None:
        """The minute of a sighting (None: now), the number of its salt, and the member's hash;
        None: the salt is not known.
        """
        when = self._clock.minute() if minute is None else minute
        found = self.salts.find(counter, when)
        if found is None:
            return None
        number, hasher = found
        return when, number, _hash(hasher, member)

    def fold(self, limit: int, of: list[Listed], *, patient: bool) -> tuple[int, int]:
        """Fold at most ``limit``: how many were folded, and how many of them were dropped.

        Args:
            of: as of :func:`fold_lists`.
            patient: while Redis is being asked for salts, no more than can wait for them.
        """
        if patient and self.salts.pending:
            limit = min(limit, self._buffer.waiting_members.room)
        dropped = 0

        def fold(counter: str, events: list[Any], most: int) -> int:
            nonlocal dropped
            chunk = events[: 2 * min(most, CHUNK)]
            del events[: len(chunk)]
            keys, members = chunk[::2], chunk[1::2]
            if counter:
                dropped += self._add_own(counter, keys, members)
            else:
                dropped += self._add_others(keys, members)
            return len(keys)

        return fold_lists(of, limit, fold), dropped

    def _add_own(self, counter: str, keys: list[RowKey], members: list[str | bytes]) -> int:
        now = self._clock.minute()
        found = self.salts.find(counter, now)
        if found is None:
            waits = [
                self._let_wait(counter, key, now, check_member(member))
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
                dropped += self._let_wait(counter, key, when, member)
        return dropped + self._buffer.add_members(rows)

    def is_out_of_reach(self, counter: str, minute: int) -> bool:
        """Whether it is no use to wait for the salt of a minute."""
        return self.salts.is_out_of_reach(counter, minute, self._clock.minute())

    def fold_waiting(self, *, end: bool) -> int:
        """Fold those that have waited and whose salts are known by now; at the ``end`` the others,
        and from now on all without a salt, count without their members. How many were dropped.
        """
        self.patient = self.patient and not end
        waiting = self._buffer.waiting_members
        dropped = 0
        for counter in waiting.counters:
            if not (end or self.salts.counts_members(counter)):
                continue
            rows: list[MembersRow] = []
            for key, minute, member in self._buffer.take_waiting(counter):
                found = self.hashed(counter, minute, member)
                if found is None:
                    dropped += self._let_wait(counter, key, minute, member)
                else:
                    rows.append((counter, key, minute, 1, *found[1:]))
            self._buffer.add_members(rows, bounded=False)
        return dropped

    def _let_wait(self, counter: str, key: RowKey, minute: int, member: bytes) -> int:
        """Keep a sighting until the salt of its member is known; how many are dropped. Those that
        find no room to wait are counted without their members.
        """
        self.fast.clear()  # callers are to ask for the salt, and to have patience
        alone = [(counter, key, minute)]
        if self.patient and not self.is_out_of_reach(counter, minute):
            alone = self._buffer.let_wait(counter, key, minute, member)
        dropped = 0
        for name, own_key, own_minute in alone:
            if self._buffer.add(name, own_key, own_minute, 1, 1):
                dropped += 1
            else:
                self.without_member += 1
                self.without_salt = self._why_without(name, own_minute)
        return dropped

    def _why_without(self, counter: str, minute: int) -> str:
        if self.is_out_of_reach(counter, minute):
            return out_of_reach(counter)
        if self.salts.counts_members(counter) is None or not self.salts.reachable:
            return f"Redis has not told the salt of {counter}"
        return no_salt(counter)


def _hash(hasher: Hasher, member: bytes) -> bytes:
    taken = hasher()
    taken.update(member)
    digest: bytes = taken.digest()
    return digest


def _hash_all(hasher: Hasher, members: list[str | bytes]) -> list[bytes]:
    """The hash of each member: of those that come several times, made once."""
    hashes: dict[str | bytes, bytes] = dict.fromkeys(members, b"")
    for member in hashes:  # as _hash(), without a call for each
        taken = hasher()
        taken.update(member.encode() if type(member) is str else member)
        hashes[member] = taken.digest()
    if len(hashes) == len(members):
        return list(hashes.values())
    return list(map(hashes.__getitem__, members))
