"""The job ``verify``: holds the tables of every counter against the ledger, and tracked tables
against their counters.
"""

from typing import Final

from countersink.schedules.context import Context, Outcome
from countersink.schedules.failure import Failed, Stopped
from countersink.store.verify import Verified, open_session, verify

SHOWN: Final = 10
"""Differences that a failed run names; ``countersink verify`` shows all."""


class Differs(Failed):
    """What is in the tables is not what was counted; the message says where."""


def job(context: Context) -> Outcome:
    """Verify all counters and tracked tables; it repairs nothing.

    Raises:
        Differs: something is wrong.
        Stopped: it was to stop before it had looked at everything, and found nothing wrong so far.
        StoreError: MySQL did not do its part.
    """
    with open_session(context.mysql_url) as session:
        done = verify(session, stop=context.stop)
    if not done.agrees:
        found = [f"{one.counter}: {one.detail}" for one in done.differences]
        found += [
            f"{one.tracked.counter} ({one.tracked.name}): {one.detail}"
            for one in done.row_differences
        ]
        shown = "; ".join(found[:SHOWN])
        more = len(found) - SHOWN
        raise Differs(
            f"{shown}{f'; and {more:,} more' if more > 0 else ''}: see countersink verify"
        )
    if not done.finished:
        raise Stopped(f"stopped when {_looked_at(done)} were verified, which agree")
    tracked = f", {done.tables:,} tracked tables with their counters" if done.tables else ""
    return Outcome(
        rows=done.rows, detail=f"{done.counters:,} counters agree with the ledger{tracked}"
    )


def _looked_at(done: Verified) -> str:
    tables = f" and {done.tables:,} tracked tables" if done.tables else ""
    return f"{done.counters:,} counters{tables}"
