"""Whether the entries of this process are in MySQL: workers acknowledge what they have applied, or
laid aside.

An entry that is gone from its stream was acknowledged only if nothing else took entries away: see
:mod:`countersink.stream.epoch`. Where that cannot be known, it is said, once, and what is stored
from then on is followed anew.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import redis

from countersink.producers.journal import Journal
from countersink.stream.epoch import Epoch, look, order
from countersink.stream.errors import StreamError, StreamMisconfigured

_OLDER: Final = (
    "Redis is older than what was stored there: a replica that lags behind, or a copy put back"
)


@dataclass(frozen=True, slots=True)
class StoredMark:
    """Where what a process has stored ended at some moment.

    Attributes:
        ends: stream → id of the last entry stored there, unless all up to it is known to be
            applied; and the epoch in which the entries up to it were stored, None: not known.
        since: how many breaks of the trail there had been when its waiting began.
    """

    ends: Mapping[str, tuple[str, Epoch | None]]
    since: int


class Trail:
    """Follows what a process stores, from before the first entry until it is applied.

    The sender's thread writes, any thread asks; without a lock, since a signal handler may flush:
    each step leaves it such that at worst less is known than could be.

    Args:
        journal: where it is said that the trail was lost.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ends: dict[str, str] = {}
        self._applied: dict[str, str] = {}
        self._epochs: dict[str, Epoch | None] = {}
        self._breaks: list[str] = []  # appending is one step
        self._told = 0

    @property
    def breaks(self) -> int:
        """How often it could not be known any more what became of entries stored before."""
        return len(self._breaks)

    @property
    def told(self) -> int:
        """The breaks that somebody was told of by :meth:`tell`."""
        return self._told

    def tell(self) -> None:
        """Say that what is waited for is not known to be applied; the next one asks for what came
        since.
        """
        told, self._told = self._told, self.breaks
        if self._told > told:
            self._journal.say(
                logging.WARNING,
                "not_known",
                "whether all that was stored is in MySQL is not known: %s",
                self._breaks[-1],
            )

    def follow(self, client: redis.Redis, stream: str) -> None:
        """Look at ``stream`` before entries are stored there over a new connection.

        Raises:
            StreamUnavailable: Redis did not answer.
        """
        end = self._ends.get(stream)
        before = self._epochs.get(stream)
        epoch: Epoch | None = None
        reached = False
        try:
            now = look(client, stream, make=True)
            epoch, reached = now.epoch, now.reaches(end)
            why = "it was not known at first"
            if before is not None:
                why = _OLDER if epoch == before else before.end(epoch)
        except StreamMisconfigured as error:
            why = f"{error}; the rights that are needed are in ops/redis/users.acl"
        if end is not None and end != self._applied.get(stream):
            if reached and epoch == before:
                return
            self._breaks.append(why)  # before the new epoch can be seen
            self._applied[stream] = end  # or lost: what comes after it is followed
        self._epochs[stream] = epoch

    def stored(self, stream: str, stream_id: str) -> None:
        """An entry was stored."""
        self._ends[stream] = stream_id

    def mark(self, since: int) -> StoredMark:
        """Where what was stored ends now; ``since``: :attr:`breaks` or :attr:`told`, before it was
        stored.
        """
        ends = {
            stream: (end, self._epochs.get(stream))
            for stream, end in self._ends.copy().items()
            if end != self._applied.get(stream)
        }
        return StoredMark(ends, since)

    def applied(self, client: redis.Redis, marks: Sequence[StoredMark]) -> list[bool | None]:
        """For each mark whether all up to it is applied; None: that is not known, and will not be.

        False as long as something is not, and where Redis does not tell.
        """
        latest: dict[str, str] = {}
        for mark in marks:
            for stream, (end, _) in mark.ends.items():
                latest[stream] = max(latest.get(stream, "0-0"), end, key=order)
        # One look at each stream for all marks: the first entry tells.
        found = {stream: self._first(client, stream) for stream in latest}
        return [self._verdict(mark, found) for mark in marks]

    def _first(self, client: redis.Redis, stream: str) -> tuple[Epoch | None, str | None] | None:
        """The epoch and the first entry's id; None: Redis does not tell."""
        end = self._ends.get(stream)
        try:
            try:
                now = look(client, stream)
            except StreamMisconfigured:
                now = None
            if now is None or now.epoch != self._epochs.get(stream) or not now.reaches(end):
                self.follow(client, stream)
        except StreamError:
            return None
        return (None, None) if now is None else (now.epoch, now.first)

    def _verdict(
        self, mark: StoredMark, found: Mapping[str, tuple[Epoch | None, str | None] | None]
    ) -> bool | None:
        verdict: bool | None = True
        for stream, (end, epoch) in mark.ends.items():
            told = found[stream]
            if told is None:
                verdict = False
                continue
            now, first = told
            if epoch is None or now != epoch:
                return None
            if first is not None and order(first) <= order(end):
                verdict = False
        if self.breaks > mark.since:
            return None
        if verdict:
            self._applied |= {stream: end for stream, (end, _) in mark.ends.items()}
        return verdict
