"""Totals for programs: each method is one question, answered in one snapshot of the database."""

from collections.abc import Iterable, Sequence
from datetime import date

from countersink.store import totals_sql
from countersink.store.connection import Session
from countersink.store.pool import Pool


class Totals:
    """What was counted. Days are UTC, ranges include both ends and default to all that has data.

    Thread-safe and fork-safe. Every method raises UnknownCounter for a counter that was never
    counted (but :meth:`counters` and :meth:`span`), ValueError for a range that ends before it
    begins, and what :mod:`countersink.store.errors` lists. To ask several questions in one
    snapshot, call the functions of :mod:`countersink.store.totals_sql` on a session.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def total(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
    ) -> int:
        """The sum over all keys, over one, or over several."""
        chosen = totals_sql.chosen_keys(key, keys)

        def work(session: Session) -> int:
            return totals_sql.total(session, counter, keys=chosen, start=start, end=end)

        return self._pool.read(work)

    def daily(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
    ) -> list[tuple[date, int]]:
        """(day, total) for each day in order, 0 for days without counts; at most 100,000 days."""
        chosen = totals_sql.chosen_keys(key, keys)

        def work(session: Session) -> list[tuple[date, int]]:
            return totals_sql.daily(session, counter, keys=chosen, start=start, end=end)

        return self._pool.read(work)

    def many(
        self,
        counter: str,
        keys: Iterable[str],
        *,
        start: date | None = None,
        end: date | None = None,
    ) -> dict[str, int]:
        """The totals of many keys at once, in their order; 0 for those without counts."""
        chosen = list(keys)

        def work(session: Session) -> dict[str, int]:
            return totals_sql.many(session, counter, chosen, start=start, end=end)

        return self._pool.read(work)

    def top(
        self,
        counter: str,
        *,
        start: date | None = None,
        end: date | None = None,
        n: int = 10,
    ) -> list[tuple[str, int]]:
        """The ``n`` keys with the largest totals: (key, total), largest first, then by key."""

        def work(session: Session) -> list[tuple[str, int]]:
            return totals_sql.by_key(session, counter, start=start, end=end, limit=n)

        return self._pool.read(work)

    def by_key(
        self, counter: str, *, start: date | None = None, end: date | None = None
    ) -> list[tuple[str, int]]:
        """(key, total) for every key of the range, largest first, then by key."""

        def work(session: Session) -> list[tuple[str, int]]:
            return totals_sql.by_key(session, counter, start=start, end=end)

        return self._pool.read(work)

    def counters(self, *, start: date | None = None, end: date | None = None) -> dict[str, int]:
        """The totals of all counters, by name."""

        def work(session: Session) -> dict[str, int]:
            return totals_sql.counters(session, start=start, end=end)

        return self._pool.read(work)

    def span(self, counter: str, *, key: str | None = None) -> tuple[date, date] | None:
        """The first and the last day with counts, of the counter or of a key; None if none has."""

        def work(session: Session) -> tuple[date, date] | None:
            return totals_sql.span(session, counter, keys=totals_sql.chosen_keys(key, None))

        return self._pool.read(work)
