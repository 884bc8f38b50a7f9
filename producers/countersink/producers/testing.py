"""Class ``RecordingProducer``, a producer for an application's tests, which keeps increments in
memory; with ``count``, ``totals``, ``assert_counted``.

::

    from countersink.producers.testing import RecordingProducer

    def test_a_visit_is_counted():
        producer = RecordingProducer()
        visit_home_page(producer)
        assert producer.count("page_views", "/home") == 1
        producer.assert_counted("page_views", {"/home": 1})
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from countersink.producers.batch import Increment, IncrementBatch, NamedEvent, Names
from countersink.producers.buffer.events import EventBuffer, Mode
from countersink.producers.buffer.rows import NEVER, RowBuffer
from countersink.producers.engine import Engine
from countersink.producers.options import Options
from countersink.producers.outbox import Stats
from countersink.producers.producer import Producer
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import check_key
from countersink.runtime.members import check_member
from countersink.stream.entry import RedisClock

__all__ = ["Increment", "RecordingProducer"]


class _Recorder(EventBuffer):
    """A buffer that keeps all increments of callers as they came, and the application's ids seen so
    far.
    """

    def __init__(self) -> None:
        super().__init__(RowBuffer(NEVER), RedisClock(), lambda: None)
        self.increments: list[Increment] = []
        self._ids: set[Names] = set()

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
        with self.lock:
            self.accepted += len(events)
            if names in self._ids:
                return
            if names:
                self._ids.add(names)
            id = names[1] if len(names) > 1 else None
            for event in events:
                counter, key, minute, amount = event[:4]
                self.increments.append(
                    Increment(
                        counter,
                        key if isinstance(key, str) else dict(key),
                        amount,
                        datetime.fromtimestamp(minute * 60, UTC) if minute else None,
                        id,
                        event[5] if len(event) == 6 else None,
                    )
                )


class RecordingProducer(Producer):
    """A :class:`~countersink.producers.Producer` without Redis. It has the same methods, which
    check their arguments in the same way.

    As with a real producer, an increment whose ``id`` was seen before for its counter is not
    counted.
    """

    def __init__(self) -> None:
        # Not Producer.__init__, which installs hooks in the process.
        Engine.__init__(self, "redis://recorded", Options())

    def start_over(self) -> None:
        super().start_over()
        self._events = self._recorder = _Recorder()

    @property
    def increments(self) -> list[Increment]:
        """All counted increments, in the order of the calls. Their members are ``bytes``, their
        times are cut to whole minutes.
        """
        with self._recorder.lock:
            return list(self._recorder.increments)

    def flush(self, timeout: float = 5.0, applied: bool = False) -> bool:
        """Do nothing and return True, because all increments are in memory."""
        return True

    def stats(self) -> Stats:
        """Return the figures that a producer has when Redis has stored everything."""
        accepted = self._recorder.accepted
        return Stats(accepted=accepted, stored=accepted, connected=True)

    def close(self, timeout: float = 5.0) -> bool:
        """Make later calls of ``increment()`` raise RuntimeError; returns True."""
        self._recorder.switch(Mode.CLOSED)
        return True

    def _hash_member(
        self, counter: str, minute: int | None, member: bytes
    ) -> tuple[int, int, bytes]:
        return minute or 0, 0, member

    # --- for assertions ----------------------------------------------------------------------

    def count(self, counter: str, key: str | Mapping[str, str] | None = None) -> int:
        """Return the total of ``counter``; 0 where it has no increments.

        Args:
            key: a text selects the increments of this key, a mapping those with these values of
                dimensions, ``None`` all. Increments with dimensions have the key ``''``; a
                dimension that an increment lacks has the value ``''``.
        """
        return sum(
            each.amount
            for each in self.increments
            if each.counter == counter and _matches(each.key, key)
        )

    def members(self, counter: str, key: str | Mapping[str, str] | None = None) -> set[bytes]:
        """Return the different members that were seen under ``counter``; a ``str`` is returned as
        its UTF-8 bytes.

        Args:
            key: selects increments, as for :meth:`count`.
        """
        return {
            check_member(each.member)
            for each in self.increments
            if each.member is not None and each.counter == counter and _matches(each.key, key)
        }

    def totals(self, counter: str | None = None) -> dict[tuple[str, str], int]:
        """Return the total of each (counter, key). Declared keys (increments by 0) have the total
        0. Increments with dimensions are added up under the key ``''``.

        Args:
            counter: the counter whose totals are returned; ``None`` returns those of all counters.
        """
        found: dict[tuple[str, str], int] = {}
        for each in self.increments:
            if counter in (None, each.counter):
                place = (each.counter, each.key if isinstance(each.key, str) else "")
                found[place] = found.get(place, 0) + each.amount
        return found

    def assert_counted(self, counter: str, expected: Mapping[str, int]) -> None:
        """Assert that the totals of ``counter`` are exactly ``expected``, which maps each key to
        its total.

        Raises:
            AssertionError: the totals differ; the message shows both.
        """
        found = {key: total for (_, key), total in self.totals(counter).items()}
        if found != dict(expected):
            raise AssertionError(f"{counter}: counted {found!r}, expected {dict(expected)!r}")

    def assert_nothing_counted(self) -> None:
        """Assert that there was no increment.

        Raises:
            AssertionError: there was an increment; the message shows the totals.
        """
        if self.increments:
            raise AssertionError(f"counted {self.totals()!r}, expected nothing")

    def reset(self) -> None:
        """Forget all increments."""
        self.start_over()


def _matches(counted: str | Mapping[str, str], asked: str | Mapping[str, str] | None) -> bool:
    if asked is None or isinstance(asked, str):
        return asked in (None, "" if isinstance(counted, Mapping) else counted)
    values = counted if isinstance(counted, Mapping) else {}
    if counted and not values:  # a key: increments without dimensions do not match
        return False
    return all(values.get(name, "") == check_key(value) for name, value in asked.items())
