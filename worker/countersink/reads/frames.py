"""Totals as a pandas DataFrame; needs pandas, so only whoever wants one imports this.

::

    from countersink.reads.frames import frame
    from countersink.store import Store

    daily = frame(Store.from_env(), "page_views", by="day")
"""

from collections.abc import Sequence
from datetime import date

import pandas as pd

from countersink.reads.rows import COLUMNS, Wanted, rows
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
) -> pd.DataFrame:
    """The totals of one counter or of several, all of one snapshot; memory grows with them.

    Args:
        store: where the totals are.
        counter: a name, or names; of one counter there is no column ``counter``.
        by: ``day``, ``hour``, ``month``, ``key``, ``key-day``, ``key-month`` or ``total``: the
            columns, as of ``countersink export``. Days and months (their first days) are
            ``datetime64``, hours are in UTC.
        keys: these keys only.
        start, end: days, both inclusive.
        time_zone: whose days, hours and months; default: each counter's own.

    Raises:
        UnknownCounter, InexactZone, RolledUp, StoreError, ValueError: as
            :class:`countersink.store.totals.Totals`.
    """
    names = [counter] if isinstance(counter, str) else list(counter)
    wanted = Wanted(by=by, keys=keys, start=start, end=end, time_zone=time_zone)
    with store.reading() as session:
        found = [row for name in names for row in rows(session, name, wanted)]
    made = pd.DataFrame.from_records(found, columns=list(COLUMNS[by]))
    for column in ("day", "month"):
        if column in made:
            made[column] = pd.to_datetime(made[column])
    if "hour" in made:
        made["hour"] = pd.to_datetime(made["hour"], utc=True)
    return made.drop(columns="counter") if isinstance(counter, str) else made
