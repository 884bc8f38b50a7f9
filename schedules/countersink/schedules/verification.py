"""The job ``verify``: holds the tables of every counter against the ledger."""

from typing import Final

from countersink.schedules.context import Context, Outcome
from countersink.schedules.failure import Failed, Stopped
from countersink.store.verify import open_session, verify

SHOWN: Final = 10
"""Differences that a failed run names; ``countersink verify`` shows all."""


class Differs(Failed):
    """What is in the tables is not what was counted; the message says where."""


def job(context: Context) -> Outcome:
    """Verify all counters.

    Raises:
        Differs: something is wrong.
        Stopped: it was to stop before it had looked at everything, and found nothing wrong so far.
        StoreError: MySQL did not do its part.
    """
    with open_session(context.mysql_url) as session:
        done = verify(session, stop=context.stop)
    if done.differences:
        shown = "; ".join(f"{one.counter}: {one.detail}" for one in done.differences[:SHOWN])
        more = len(done.differences) - SHOWN
        raise Differs(
            f"{shown}{f'; and {more:,} more' if more > 0 else ''}: see countersink verify"
        )
    if not done.finished:
        raise Stopped(f"stopped when {done.counters:,} counters were verified, which agree")
    return Outcome(rows=done.rows, detail=f"{done.counters:,} counters agree with the ledger")
