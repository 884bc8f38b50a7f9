"""Finds entries that Redis lost before they were applied (by FLUSHALL, XTRIM, or a promoted replica
or snapshot that was behind). ``watch`` compares samples of the streams with the guards, and stores
samples and losses in the table ``queue_look``.

An entry is missing if it was in its stream at the previous sample, is not there now, and has no
guard. It is recorded as lost after :data:`CERTAIN_MS`. Until then a worker may still apply it from
a batch, or a producer may send it again. This works on one server, after a failover, and on a
cluster.

A sample has only the oldest and the newest entry of a stream, and the stream's length. So a loss is
certain for one or two entries. How many others are lost is unknown.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from countersink.counting.apply import guards
from countersink.database.session import Session
from countersink.database.sql import NOW_MS
from countersink.runtime.texts import plural

LOOK_EVERY_MS: Final = 1_000
"""Milliseconds between two samples, which any of the processes may take."""
CERTAIN_MS: Final = 10_000
"""Milliseconds for which an entry must be missing before it is recorded as lost."""
UNSEEN_MS: Final = 10_000
"""Milliseconds after the previous sample. If a stream is found emptied after a longer time, it may
have lost entries that no sample has seen: this is recorded as a loss of an unknown number."""
SHOWN_DAYS: Final = 7
"""Number of days for which losses are shown."""
_DAY_MS: Final = 24 * 3600 * 1000


class WatchedSample(Protocol):
    """A sample of one stream. ``countersink.stream.progress.QueueSample`` implements this protocol.

    Attributes:
        life: a text that changes when the consumer group is created again.
        length: number of entries in the stream.
        added: number of entries that were ever added to it; 0 before Redis 7.0.
        entries: (stream id, entry id) of its oldest and of its newest entry; a stream with one
            entry has one pair, an empty stream has none.
        gone: entry ids, as hex digits, of ``entries`` of the previous sample that are not in the
            stream any more.
    """

    life: str
    length: int
    added: int
    entries: list[list[str]]
    gone: list[str]


TakeSamples = Callable[[Mapping[str, Sequence[Sequence[str]]]], Mapping[str, WatchedSample]]
"""A function that takes a sample of each stream. It is given the entries in the previous samples,
by stream."""


@dataclass(frozen=True, slots=True)
class QueueLoss:
    """A loss of entries from one stream. Losses of a stream that are found on the same day (UTC)
    are added up and recorded as one.

    Attributes:
        stream: the stream's key in Redis.
        entries: number of lost entries that a sample had seen; more may be lost. It is 0 if the
            number is unknown.
        waited: number of entries in the stream at the previous sample; all of them may be lost.
        since: arrival, in Unix ms, of the oldest entry that is known to be lost. If the number of
            lost entries is unknown, this is the time of the previous sample. Of losses that are
            added up, it is that of the first one.
        noticed_at: time in Unix ms at which the loss was found (the last one, if losses are added
            up); the lost entries arrived before it.
    """

    stream: str
    entries: int
    waited: int
    since: int
    noticed_at: int

    def __str__(self) -> str:
        between = f"between {_iso(self.since)} and {_iso(self.noticed_at)}"
        if not self.probable:
            return f"what arrived in {self.stream} {between} and was not applied, if anything"
        many = f"at least {self.entries:,}" if self.entries else "an unknown number"
        waited = plural(self.waited, "entry", "entries")
        return f"{many} of the {waited} that waited in {self.stream}, or arrived later, {between}"

    @property
    def probable(self) -> bool:
        """True if the previous sample had entries, which are or may be lost. False if the stream
        was empty then: nothing is known to be lost, and Redis may only have been exchanged for
        another one.
        """
        return bool(self.entries or self.waited)


def _iso(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def watch(session: Session, take_samples: TakeSamples) -> list[QueueLoss]:
    """Take samples of the streams, and return the losses that were recorded now. If any process
    took samples within the last :data:`LOOK_EVERY_MS`, and no entry was missing in them, do
    nothing, and return an empty list. Workers call this each second, and the job ``alarms`` calls
    it once per run. If several processes call this at the same time, only one of them records and
    returns a loss.

    Args:
        session: at READ COMMITTED, outside a transaction, on the server that takes writes.
        take_samples: takes the samples in Redis. It gets the entries in the previous samples.

    Raises:
        StoreError: a statement failed. The next call finds the losses that were not recorded.
        Any error of ``take_samples``. The next call finds the losses that were not recorded.
    """
    rows = session.query(
        f"SELECT version, {NOW_MS}, IF({NOW_MS} - looked_at BETWEEN 0 AND %s, NULL, streams),"
        " losses FROM queue_look WHERE id = 1",
        (LOOK_EVERY_MS - 1,),
    )
    if not rows:
        session.execute(
            "INSERT IGNORE INTO queue_look (id, version, looked_at, streams, losses)"
            " VALUES (1, 0, 0, '{}', '[]')"
        )
        return watch(session, take_samples)
    version, now, text, known_losses = rows[0]
    if text is None:
        return []
    before: dict[str, dict[str, Any]] = json.loads(text)
    found = take_samples({stream: known["entries"] for stream, known in before.items()})
    gone = {bytes.fromhex(each) for one in found.values() for each in one.gone}
    unguarded = {each.hex() for each in gone - guards.known(session, list(gone))}
    pruned_before = guards.watermark(session) if unguarded else 0
    after, losses = dict(before), list[QueueLoss]()
    for stream, sample in found.items():
        known = before.get(stream)
        if known is not None:
            lost = unguarded.intersection(sample.gone) if known["at"] > pruned_before else set()
            if lost and now - known.get("missing_at", now) < CERTAIN_MS:
                after[stream] = {"missing_at": now} | known
                continue
            if loss := _loss(stream, known, sample, lost, now):
                losses.append(loss)
        after[stream] = {
            "at": now,
            "life": sample.life,
            "length": sample.length,
            "added": sample.added,
            "entries": sample.entries,
        }
    text = json.dumps(after, separators=(",", ":"))
    # While entries are missing every call takes samples: during a move from one Redis to another,
    # processes at the former one still see the entries.
    looked_at = 0 if any("missing_at" in known for known in after.values()) else now
    written = session.execute(
        "UPDATE queue_look SET version = version + 1, looked_at = %s, streams = %s, losses = %s"
        " WHERE id = 1 AND version = %s",
        (looked_at, text, _with(known_losses, losses), version),
    )
    return losses if written else []


def _loss(
    stream: str, known: Mapping[str, Any], sample: WatchedSample, lost: set[str], now: int
) -> QueueLoss | None:
    missing_at = known.get("missing_at", now)
    if lost:
        ids = (each for each, entry_id in known["entries"] if entry_id in lost)
        # A stream id begins with the Unix ms at which the entry arrived.
        since = min(int(each.partition("-")[0]) for each in ids)
        return QueueLoss(stream, len(lost), known["length"], since, now)
    renewed = known["life"] and sample.life != known["life"]
    if (renewed or sample.added < known["added"]) and missing_at - known["at"] > UNSEEN_MS:
        return QueueLoss(stream, 0, known["length"], known["at"], now)
    return None


def _with(known: str, losses: Sequence[QueueLoss]) -> str:
    """Add new losses to the recorded ones (``known``, in JSON), and return the result as JSON. It
    has one loss for each stream and day (UTC).
    """
    by_day = {(each.stream, _iso(each.noticed_at)[:10]): each for each in _read(known)}
    for loss in losses:
        place = loss.stream, _iso(loss.noticed_at)[:10]
        if (before := by_day.get(place)) is not None:
            loss = replace(
                loss,
                entries=before.entries + loss.entries,
                waited=before.waited + loss.waited,
                since=before.since,
            )
        by_day[place] = loss
    every = [astuple(by_day[place]) for place in sorted(by_day)]
    return json.dumps(every, separators=(",", ":"))


def _read(losses: str) -> list[QueueLoss]:
    return [QueueLoss(*each) for each in json.loads(losses)]


def _all(session: Session) -> tuple[int, list[QueueLoss]]:
    """Return the server's time in Unix ms, and all recorded losses; (0, []) before any sample."""
    rows = session.query(f"SELECT {NOW_MS}, losses FROM queue_look WHERE id = 1")
    return (int(rows[0][0]), _read(rows[0][1])) if rows else (0, [])


def recent(session: Session, days: int = SHOWN_DAYS) -> list[QueueLoss]:
    """Return the losses that were found in the last ``days`` times 24 hours: one for each stream
    and day (UTC), sorted by stream, then by day.
    """
    now, losses = _all(session)
    return [each for each in losses if each.noticed_at > now - days * _DAY_MS]


def total(session: Session) -> int:
    """Return the number of entries that are known to be lost, over all recorded losses."""
    return sum(each.entries for each in _all(session)[1])
