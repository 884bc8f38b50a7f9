"""``RecordingProducer`` for an app's tests: keeps increments in memory, with ``count``, ``totals``,
``assert_counted``.

::

    from countersink.producers.testing import RecordingProducer

    def test_a_visit_is_counted():
        producer = RecordingProducer()
        visit_home_page(producer)
        assert producer.count("page_views", "/home") == 1
        producer.assert_counted("page_views", {"/home": 1})
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from threading import Lock
from types import TracebackType
from typing import Self

from countersink.producers.batch import Asked, Increment, check_batch, check_id
from countersink.producers.engine import Stats
from countersink.runtime.dimensions import check_row_key
from countersink.runtime.limits import check_amount, check_counter, check_key, minute_of
from countersink.runtime.members import check_member

__all__ = ["Increment", "RecordingProducer"]


class RecordingProducer:
    """Takes what :class:`~countersink.producers.Producer` takes, raises what it raises, and needs
    no Redis.

    As in the real thing, further increments of one counter with the same ``id`` count for nothing.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._increments: list[Increment] = []
        self._ids: set[tuple[str, ...]] = set()
        self._asked = 0
        self._closed = False

    @property
    def increments(self) -> list[Increment]:
        """Everything that counts, in the order of the calls."""
        with self._lock:
            return list(self._increments)

    def increment(
        self,
        counter: str,
        key: str | Mapping[str, str] = "",
        amount: int = 1,
        *,
        at: datetime | None = None,
        id: str | None = None,
    ) -> None:
        """Like :meth:`countersink.producers.Producer.increment`."""
        self._record([_checked(counter, key, amount, at, id)])

    def increment_many(
        self, counter: str, amounts: Mapping[str, int], *, at: datetime | None = None
    ) -> None:
        """Like :meth:`countersink.producers.Producer.increment_many`."""
        _checked(counter, at=at)
        if not isinstance(amounts, Mapping):
            raise TypeError(f"amounts is a mapping of key to amount, not {type(amounts).__name__}")
        self._record([_checked(counter, check_key(key), amounts[key], at) for key in amounts])

    def increment_batch(
        self, increments: Iterable[Asked | Increment], *, id: str | None = None
    ) -> bool:
        """Like :meth:`countersink.producers.Producer.increment_batch`; there is always room."""
        given = list(increments)
        check_batch(given, id, lambda counter, minute, member: (0, 0, b""))
        made = [Increment(*each) for each in given]
        self._record([each._replace(key=_row_key(each.key)) for each in made], id)
        return True

    def seen(
        self,
        counter: str,
        key: str | Mapping[str, str],
        member: str | bytes,
        *,
        at: datetime | None = None,
    ) -> None:
        """Like :meth:`countersink.producers.Producer.seen`, of any counter."""
        check_member(member)
        self._record([_checked(counter, key, at=at)._replace(member=member)])

    def flush(self, timeout: float = 5.0, applied: bool = False) -> bool:
        """True: nothing can be missing."""
        return True

    def stats(self) -> Stats:
        """Everything is stored."""
        with self._lock:
            return Stats(accepted=self._asked, stored=self._asked, connected=True)

    def close(self, timeout: float = 5.0) -> bool:
        """Calls of ``increment()`` from now on raise RuntimeError."""
        self._closed = True
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- for assertions ----------------------------------------------------------------------

    def count(self, counter: str, key: str | Mapping[str, str] | None = None) -> int:
        """The total of ``counter``, of one key, of some values of dimensions, or (``None``) of all;
        0 for what never counted. Increments with dimensions count under the key ``''``, and a
        dimension that is missing has the value ``''``.
        """
        return sum(
            each.amount
            for each in self.increments
            if each.counter == counter and _is_asked(each.key, key)
        )

    def members(self, counter: str, key: str | Mapping[str, str] | None = None) -> set[bytes]:
        """The different members of ``counter`` that were seen, of one key, of some values of
        dimensions, or (``None``) of all; a ``str`` as its UTF-8.
        """
        return {
            check_member(each.member)
            for each in self.increments
            if each.member is not None and each.counter == counter and _is_asked(each.key, key)
        }

    def totals(self, counter: str | None = None) -> dict[tuple[str, str], int]:
        """(counter, key) → total, of one counter or (``None``) of all. Declared keys are there with
        0; increments with dimensions count under the key ``''``.
        """
        found: dict[tuple[str, str], int] = {}
        for each in self.increments:
            if counter in (None, each.counter):
                cell = (each.counter, each.key if isinstance(each.key, str) else "")
                found[cell] = found.get(cell, 0) + each.amount
        return found

    def assert_counted(self, counter: str, expected: Mapping[str, int]) -> None:
        """``counter`` has exactly these totals by key.

        Raises:
            AssertionError: it has not; the message shows both.
        """
        found = {key: total for (_, key), total in self.totals(counter).items()}
        if found != dict(expected):
            raise AssertionError(f"{counter}: counted {found!r}, expected {dict(expected)!r}")

    def assert_nothing_counted(self) -> None:
        """There was no increment.

        Raises:
            AssertionError: there was; the message shows them.
        """
        if self.increments:
            raise AssertionError(f"counted {self.totals()!r}, expected nothing")

    def reset(self) -> None:
        """Forget all increments."""
        with self._lock:
            self._increments.clear()
            self._ids.clear()
            self._asked = 0

    def _record(self, increments: list[Increment], batch_id: str | None = None) -> None:
        if self._closed:
            raise RuntimeError("the producer is closed")
        with self._lock:
            self._asked += len(increments)
            if batch_id is not None:
                if (batch_id,) in self._ids:
                    return
                self._ids.add((batch_id,))
            for each in increments:
                if each.id is not None:
                    if (each.counter, each.id) in self._ids:
                        continue
                    self._ids.add((each.counter, each.id))
                self._increments.append(each)


def _checked(
    counter: str,
    key: str | Mapping[str, str] = "",
    amount: int = 1,
    at: datetime | None = None,
    id: str | None = None,
) -> Increment:
    """An increment of the producer's own arguments, which are valid."""
    check_counter(counter)
    row_key = _row_key(key)
    check_amount(amount)
    if at is not None:
        minute_of(at)
    if id is not None:
        check_id(id)
    return Increment(counter, row_key, amount, at, id)


def _row_key(key: str | Mapping[str, str]) -> str | Mapping[str, str]:
    row_key = check_row_key(key)
    return row_key if isinstance(row_key, str) else dict(row_key)


def _is_asked(counted: str | Mapping[str, str], asked: str | Mapping[str, str] | None) -> bool:
    if asked is None or isinstance(asked, str):
        return asked in (None, "" if isinstance(counted, Mapping) else counted)
    values = counted if isinstance(counted, Mapping) else {}
    if counted and not values:  # a key, which no breakdown counts
        return False
    return all(values.get(name, "") == check_key(value) for name, value in asked.items())
