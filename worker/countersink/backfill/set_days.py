"""Days that a reconcile has set: what its sources say is all there was on them.

So nothing is added to them, by whatever source, until that reconcile is undone. A chunk is counted
under the share lock of control, and marks are made under the exclusive one: a chunk that is
committed before them is in what the reconcile sums up, and one that comes after them is refused.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from countersink.backfill.listing import day_of
from countersink.backfill.options import BackfillError
from countersink.store import reconciled
from countersink.store.buckets import label_time
from countersink.store.connection import Session
from countersink.store.policies import Policies

_DAYS_NAMED: Final = 5


def refuse(session: Session, in_force: Policies, counter: str, labels: Iterable[int]) -> None:
    """Check that buckets may be added to.

    Args:
        session: in a transaction that holds the share lock of control, so that it stays so; or
            outside of one, to say what would be.
        in_force: the policies.
        labels: of the buckets.

    Raises:
        BackfillError: a reconcile that is not undone has set some of them.
        StoreError: as any query.
    """
    found = reconciled.set_by(session, counter, labels)
    if found:
        run = max(found.values())
        days = _days(in_force, counter, (one for one, by in found.items() if by == run))
        raise BackfillError(
            f"backfill {run} has set {days} of {counter} to what its sources say, and adding to"
            " that would count some of it twice. Reconcile these days again, with all their"
            f" sources; or `countersink backfills undo {run}` first; or leave these days out, by"
            " --from and --to"
        )


def after(
    session: Session, in_force: Policies, counter: str, labels: Iterable[int], run: int = 0
) -> Iterator[str]:
    """What to say where buckets were set after what was taken back of them.

    Args:
        run: name runs after this one; 0: all, as nothing was added to what was set.
    """
    found = reconciled.set_by(session, counter, labels, later_than=run)
    for later in sorted(set(found.values())):
        days = _days(in_force, counter, (one for one, by in found.items() if by == later))
        yield (
            f"backfill {later} has set {days} after it, and the totals are not what its sources say"
            " any more: reconcile these days again, with all their sources"
        )


def _days(in_force: Policies, counter: str, labels: Iterable[int]) -> str:
    """The first days of some buckets, for people."""
    days = sorted({day_of(in_force, counter, label_time(label)) for label in labels})
    more = len(days) - _DAYS_NAMED
    named = ", ".join(map(str, days[:_DAYS_NAMED]))
    return f"{named} and {more:,} more days" if more > 0 else named
