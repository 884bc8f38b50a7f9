"""Class ``Recorder``, the buffer of a producer without Redis: it keeps increments in the process
(``memory://``, for an application's tests) or discards them (``off://``); and ``Recorded``, the
base of ``Producer`` with the methods for these tests: ``count``, ``totals``, ``assert_counted``.

::

    from countersink.producers import Producer

    def test_a_visit_is_counted():
        producer = Producer("memory://")
        producer.clear()
        visit_home_page(producer)
        assert producer.count("page_views", "/home") == 1
        producer.assert_counted("page_views", {"/home": 1})
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Final

from countersink.producers.batch import Increment, IncrementBatch, NamedEvent, Names
from countersink.producers.buffer.events import EventBuffer
from countersink.producers.buffer.rows import NEVER, RowBuffer
from countersink.producers.buffer.sightings import Salts, Sightings
from countersink.producers.engine import Engine
from countersink.producers.options import OFF
from countersink.producers.outbox import Stats
from countersink.producers.threads import RLock
from countersink.runtime.dimensions import RowKey, check_row_key
from countersink.runtime.limits import check_key
from countersink.runtime.log import Log
from countersink.runtime.members import check_member
from countersink.stream.entry import RedisClock


class _Record:
    """The increments that the producers of one ``memory://`` URL have counted in this process.

    Attributes:
        increments: the increments, in the order of the calls.
        ids: the application's ids seen so far: (counter, id) of an increment, (id,) of a batch.
    """

    def __init__(self) -> None:
        self.increments: list[Increment] = []
        self.ids: set[Names] = set()


_lock: Final = RLock()  # guards all records
# Otherwise a child could inherit the lock from a thread that the child does not have.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
_records: Final[dict[str, _Record]] = {}  # by URL


class _AnySalts(Salts):
    """The salts of a producer without Redis, where every counter may count different members."""

    def counts_members(self, counter: str) -> bool:
        return True


class _PlainSightings(Sightings):
    """The sightings of a producer without Redis; it keeps members as they are, without hashing
    them.
    """

    def hashed(self, counter: str, minute: int | None, member: bytes) -> tuple[int, int, bytes]:
        return minute or 0, 0, member


class Recorder(EventBuffer):
    """An event buffer that adds each increment to the record of its URL, without folding. An
    increment or a batch whose id is in the record already is left out. With the URL ``off://`` the
    buffer discards all increments.
    """

    def __init__(self, url: str) -> None:
        clock = RedisClock()
        super().__init__(RowBuffer(NEVER), clock, lambda: None)
        self.sightings = _PlainSightings(self.buffer, clock)
        self.sightings.salts = _AnySalts()
        self.record = None if url == OFF else _records.setdefault(url, _Record())
        if url == OFF:
            _warn("off", "increments are discarded: COUNTERSINK_REDIS_URL is missing or off://")
        else:
            _warn("memory", "memory:// is for tests: increments are lost when the process ends")

    def put(
        self, counter: str, key: RowKey, minute: int | None, amount: int, id: str | None = None
    ) -> None:
        self._record([(counter, key, minute, amount)], () if id is None else (counter, id))

    def put_many(
        self, counter: str, minute: int | None, keys: Sequence[RowKey], amounts: list[int]
    ) -> None:
        pairs = zip(keys, amounts, strict=True)
        self._record([(counter, key, minute, amount) for key, amount in pairs])

    def put_batch(self, batch: IncrementBatch) -> bool:
        self._record([*batch.plain, *batch.members])
        for names, events in batch.named:
            self._record(events, names)
        return True

    def put_seen(self, counter: str, key: RowKey, minute: int | None, member: bytes) -> None:
        self._record([(counter, key, minute or 0, 1, 0, member)])

    def _record(self, events: Sequence[NamedEvent], names: Names = ()) -> None:
        record = self.record
        if record is None:
            return
        with _lock:
            self.accepted += len(events)
            if names in record.ids:
                return
            if names:
                record.ids.add(names)
            id = names[1] if len(names) > 1 else None
            for event in events:
                counter, key, minute, amount = event[:4]
                record.increments.append(
                    Increment(
                        counter,
                        key if isinstance(key, str) else dict(key),
                        amount,
                        datetime.fromtimestamp(minute * 60, UTC) if minute else None,
                        id,
                        event[5] if len(event) == 6 else None,
                    )
                )


class Recorded(Engine):
    """The methods of a producer that tests call to see what was counted. The result covers all
    producers with the same URL in this process. The methods raise RuntimeError if the URL is not
    ``memory://``.

    As in MySQL, an increment whose ``id`` was seen before for its counter is not counted, nor is a
    batch whose ``id`` was seen before for a batch.
    """

    def _figures(self) -> Stats:
        found = super()._figures()
        return replace(found, stored=found.accepted, connected=True) if self._recorder else found

    def _record(self) -> _Record:
        recorder = self._recorder
        if not isinstance(recorder, Recorder) or recorder.record is None:
            raise RuntimeError(
                "only memory:// producers can be asked: set COUNTERSINK_REDIS_URL=memory:// first"
            )
        return recorder.record

    @property
    def increments(self) -> list[Increment]:
        """A new list of all counted increments, in the order of the calls; of a batch, sightings
        come after the others, and those with ids of their own come last. Their members are
        ``bytes``. Their times are cut to whole minutes, or are None if the call gave no time.
        """
        record = self._record()
        with _lock:
            return list(record.increments)

    def count(self, counter: str, key: str | Mapping[str, str] | None = None) -> int:
        """Return the total of the increments of ``counter`` that ``key`` selects; 0 if there are
        none.

        Args:
            key: a text selects the increments of this key; increments with dimensions have the key
                ``''``. A mapping selects the increments whose dimensions have these values,
                whatever further dimensions they have; a dimension that an increment lacks has the
                value ``''``. A mapping does not select increments with a key other than ``''``.
                ``None`` selects all.
        """
        return sum(
            each.amount
            for each in self.increments
            if each.counter == counter and _matches(each.key, key)
        )

    def members(self, counter: str, key: str | Mapping[str, str] | None = None) -> set[bytes]:
        """Return the different members that were seen under ``counter``, as bytes; a member that
        was a ``str`` is in UTF-8.

        Args:
            key: selects increments, as for :meth:`count`.
        """
        return {
            check_member(each.member)
            for each in self.increments
            if each.member is not None and each.counter == counter and _matches(each.key, key)
        }

    def totals(self, counter: str | None = None) -> dict[tuple[str, str], int]:
        """Return the total of each (counter, key). A key with increments by 0 only has the total 0.
        Increments with dimensions are added up under the key ``''``.

        Args:
            counter: the counter whose totals are returned; ``None`` returns those of all counters.
        """
        found: dict[tuple[str, str], int] = {}
        for each in self.increments:
            if counter in (None, each.counter):
                place = (each.counter, each.key if isinstance(each.key, str) else "")
                found[place] = found.get(place, 0) + each.amount
        return found

    def assert_counted(
        self,
        counter: str,
        expected: Mapping[str, int] | Iterable[tuple[str | Mapping[str, str], int]],
    ) -> None:
        """Assert that the totals of ``counter`` are exactly ``expected``: a mapping of each key to
        its total, or pairs of a key or of dimensions and their total::

            producer.assert_counted("page_views", [({"path": "/home", "device": "mobile"}, 1)])

        All counted keys have to be expected, those with the total 0 included. Dimensions have to be
        given in full, as they were counted.

        Raises:
            AssertionError: the totals differ; the message shows both.
        """
        __tracebackhide__ = True  # pytest shows the test's line instead
        found: dict[RowKey, int] = {}
        for each in self.increments:
            if each.counter == counter:
                key = check_row_key(each.key)
                found[key] = found.get(key, 0) + each.amount
        pairs = expected.items() if isinstance(expected, Mapping) else expected
        wanted = {check_row_key(key): total for key, total in pairs}
        if found != wanted:
            raise AssertionError(f"{counter}: counted {_shown(found)}, expected {_shown(wanted)}")

    def assert_nothing_counted(self) -> None:
        """Assert that no increment of any counter was counted, not even one by 0.

        Raises:
            AssertionError: an increment was counted; the message shows the totals.
        """
        __tracebackhide__ = True
        if self.increments:
            raise AssertionError(f"counted {self.totals()!r}, expected nothing")

    def clear(self) -> None:
        """Forget all increments and ids of all producers with this URL."""
        record = self._record()
        with _lock:
            record.increments.clear()
            record.ids.clear()


def _shown(totals: Mapping[RowKey, int]) -> str:
    if all(isinstance(key, str) for key in totals):
        return repr(totals)
    pairs = [(key if isinstance(key, str) else dict(key), total) for key, total in totals.items()]
    return repr(pairs)


@cache  # once in a process
def _warn(action: str, text: str) -> None:
    Log(logging.getLogger("countersink.producers"))(action, text, level=logging.WARNING)


def _matches(counted: str | Mapping[str, str], asked: str | Mapping[str, str] | None) -> bool:
    if asked is None or isinstance(asked, str):
        key = "" if isinstance(counted, Mapping) else counted
        return asked is None or check_key(asked) == key
    values = counted if isinstance(counted, Mapping) else {}
    if counted and not values:  # a key: increments without dimensions do not match
        return False
    return all(values.get(name, "") == check_key(value) for name, value in asked.items())
