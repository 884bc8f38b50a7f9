"""Short forms of the questions that tests ask of ``Reads``, with plain values for answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Any

import redis

from countersink.counting.totals import selection_of
from countersink.counting.totals.answer import rows
from countersink.counting.totals.query import DIMENSIONS, Answer, Query
from countersink.counting.totals.selection import Selection
from countersink.counting.totals.snapshot import Snapshot
from countersink.database.session import Session
from countersink.reads import ANYTHING, UNBOUNDED, Bounds, Reads
from countersink.reads.overview import Overview, OverviewQuery, overview, today
from countersink.store import Store


@dataclass(frozen=True, slots=True)
class Told:
    """A plain value, and its answer, which says more beside it."""

    value: Any
    answer: Answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.answer, name)


class Asking:
    """Asks."""

    def __init__(
        self, store: Store, client: redis.Redis | None = None, bounds: Bounds = UNBOUNDED
    ) -> None:
        self.reads = Reads(store, client, bounds)

    def ask(self, query: Query) -> Answer:
        return self.reads.ask(query)

    def _told(
        self,
        counter: str | None,
        by: str,
        value: Callable[[list[tuple[Any, ...]]], Any],
        asked: dict[str, Any],
        **rest: Any,
    ) -> Told:
        pending = asked.pop("include_pending", False)
        visible = {name: asked.pop(name) for name in ("visible",) if name in asked}
        selection = replace(selection_of(counter, **asked), **visible)
        query = Query(selection, by=by, include_pending=pending, **rest)
        found = self.ask(query)
        return Told(value(found.rows), found)

    def total(self, counter: str, **asked: Any) -> Told:
        return self._told(counter, "total", lambda rows: rows[0][0], asked)

    def _series(self, by: str, counter: str, **asked: Any) -> Told:
        strict = not asked.pop("unrolled", False) and not asked.get("where")
        return self._told(counter, by, list, asked, strict=strict)

    daily = partialmethod(_series, "day")
    weekly = partialmethod(_series, "week")
    hourly = partialmethod(_series, "hour")
    minutely = partialmethod(_series, "minute")
    monthly = partialmethod(_series, "month")

    def many(self, counter: str, keys: Iterable[str], **asked: Any) -> Told:
        wanted = list(keys)

        def in_order(rows: list[tuple[Any, ...]]) -> dict[str, int]:
            found = dict(rows)
            return {key: found[key] for key in wanted}

        return self._told(counter, "key", in_order, {"keys": wanted, **asked})

    def top(self, counter: str, *, n: int = 10, **asked: Any) -> Told:
        return self._told(counter, "key", list, asked, top=n)

    def by_key(self, counter: str, **asked: Any) -> Told:
        return self._told(counter, "key", list, asked)

    def by(
        self, counter: str, dimensions: Sequence[str], n: int | None = None, **asked: Any
    ) -> Told:
        def pairs(rows: list[tuple[Any, ...]]) -> list[tuple[tuple[str, ...], int]]:
            return [(row[:-1], row[-1]) for row in rows]

        return self._told(counter, DIMENSIONS, pairs, asked, dimensions=tuple(dimensions), top=n)

    def counters(self, **asked: Any) -> Told:
        return self._told(None, "total", dict, asked)

    def names(self, *, include_pending: bool = False) -> list[str]:
        return self.reads.read(
            lambda moment: moment.snapshot.names(lambda name: True), _pending(include_pending)
        )

    def overview(self, query: OverviewQuery, *, include_pending: bool = False) -> Overview:
        return self.reads.read(
            lambda moment: overview(moment.snapshot, query), _pending(include_pending)
        )

    def today(self, wanted: Sequence[str]) -> tuple[list[str] | None, Overview]:
        return self.reads.read(lambda moment: today(moment.snapshot, wanted))


def _pending(include_pending: bool) -> Query:
    return replace(ANYTHING, include_pending=include_pending)


def exported(session: Session, by: str, selection: Selection) -> list[tuple[Any, ...]]:
    """The rows of an export, without their counter."""
    query = Query(selection, by=by, streamed=True)
    return list(rows(Snapshot(session), query, Answer(query.columns)))
