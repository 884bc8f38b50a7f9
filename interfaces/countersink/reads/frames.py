"""Totals as a pandas DataFrame.

::

    from countersink.reads.frames import frame
    from countersink.store import Store

    daily = frame(Store.from_env(), "page_views", by="day")
"""

from collections.abc import Mapping, Sequence
from datetime import date

import pandas as pd

from countersink.counting.totals.answer import rows
from countersink.counting.totals.query import EXPORTED, Answer, Query, read_by
from countersink.counting.totals.selection import ANY, KeyMatch, Selection, selection_of
from countersink.counting.totals.snapshot import Snapshot
from countersink.store import Store


def frame(
    store: Store,
    counter: str | Sequence[str],
    *,
    by: str = "day",
    keys: Sequence[str] | None = None,
    start: date | None = None,
    end: date | None = None,
    time_zone: str | None = None,
    match: KeyMatch = ANY,
    where: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """The totals of one counter or of several, all of one snapshot; memory grows with them.

    Args:
        store: where the totals are.
        counter: a name, or names; of one counter there is no column ``counter``.
        by: ``day``, ``hour``, ``minute``, ``month``, ``key``, ``key-day``, ``key-month`` or
            ``total``, or dimensions, such as ``page,country``: the columns, as of ``countersink
            export``. Days and months (their first days) are ``datetime64``, hours and minutes are
            in UTC.
        keys: these keys only.
        match: or those that match.
        where: or events with these values of dimensions: ``{"country": "DE"}``.
        start, end: days, both inclusive. By day, hour and key-day a counter of which retention
            has rolled up days to months takes a ``start``, else it is a RolledUp error, whose
            ``rolled_up_to`` is the first that can be.
        time_zone: whose days, hours and months; default: each counter's own.

    Raises:
        UnknownCounter, InexactZone, RolledUp, IncompleteBreakdown, StoreError, ValueError: as
            :class:`countersink.counting.totals.Totals`.
    """
    layout, dimensions = read_by(by, EXPORTED)
    names = [counter] if isinstance(counter, str) else list(counter)
    found: list[tuple[object, ...]] = []
    columns = Query(Selection(), by=layout, dimensions=dimensions, streamed=True).columns
    with store.reading() as session:
        for name in names:
            wanted = selection_of(
                name,
                keys=keys,
                match=match,
                start=start,
                end=end,
                time_zone=time_zone,
                where=where,
            )
            query = Query(wanted, by=layout, dimensions=dimensions, strict=True, streamed=True)
            # One for each: what it remembers of a counter grows with its buckets.
            found += [(name, *row) for row in rows(Snapshot(session), query, Answer(columns))]
    made = pd.DataFrame.from_records(found, columns=list(columns))
    for column in ("day", "month"):
        if column in made:
            made[column] = pd.to_datetime(made[column])
    for column in ("hour", "minute"):
        if column in made:
            made[column] = pd.to_datetime(made[column], utc=True)
    return made.drop(columns="counter") if isinstance(counter, str) else made
