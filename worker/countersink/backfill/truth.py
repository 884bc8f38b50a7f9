"""What the sources of a reconcile say, in all, before anything is corrected."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Final

from countersink.backfill.options import BackfillError
from countersink.store import cells as sql
from countersink.store.amounts import Amounts
from countersink.store.buckets import label_of, label_text
from countersink.store.connection import Session
from countersink.store.policies import Policy, load_own
from countersink.store.rerun import rerun
from countersink.store.tracked.definitions import tracked_names

_ROWS_PER_DELETE: Final = 5000


class TruthTarget:
    """Where the chunks of a reconcile go: added up beside the counter, whose totals stay as they
    are.

    Args:
        run: its number.
        counter: whose truth it is.

    Attributes:
        truth_of: the run: its sources are known apart from those that were added.
    """

    def __init__(self, run: int, counter: str) -> None:
        self.truth_of = run
        self._counter = counter

    def add(self, session: Session, amounts: Amounts, source: int, start_at: int) -> None:
        """Add a chunk in the open transaction, which holds the share lock of control.

        Raises:
            BackfillError: the counter's policies are not those by which the first chunk was read.
            StoreError: as any query.
        """
        own = policies_text(load_own(session, self._counter))
        if _agreed(session, self.truth_of, own) != json.loads(own):
            raise changed(self._counter)
        clause = session.dialect.upsert_add("backfill_truth", "amount")
        heads: dict[int, str] = {}
        for cells in amounts.chunks(sql.per_statement(session)):
            for _, bucket, _, _ in cells:
                if bucket not in heads:
                    heads[bucket] = f"({self.truth_of:d}, '{label_text(bucket)}', X'"
            values = ", ".join(
                f"{heads[bucket]}{key.encode().hex()}', {amount:d})"
                for _, bucket, key, amount in cells
            )
            session.execute(
                "INSERT INTO backfill_truth (run, bucket, counter_key, amount)"
                f" VALUES {values}{clause}"
            )


def require_policies(session: Session, run: int, counter: str, t0: int) -> tuple[Policy, ...]:
    """The counter's policies, if they put events up to ``t0`` where they did when its truth was
    read.

    Raises:
        BackfillError: they do not.
    """
    own = load_own(session, counter)
    found = session.query("SELECT policies FROM backfill_run WHERE id = %s", (run,))
    agreed = json.loads(found[0][0]) if found and found[0][0] is not None else None
    if agreed is not None and _until(agreed, t0) != _until(json.loads(policies_text(own)), t0):
        raise changed(counter)
    return own


def refuse_tracked(session: Session, counter: str) -> None:
    """See that no table's triggers count a counter.

    Raises:
        BackfillError: they do.
    """
    if counter in tracked_names(session):
        raise BackfillError(
            f"{counter} is the row count of a tracked table: only its triggers count it, and"
            " `countersink verify` says whether they are right"
        )


def labels(session: Session, run: int) -> list[int]:
    """The buckets that the sources of a run know of, in order."""
    # A loose scan: not a row of a bucket but its first is looked at.
    found = session.query(
        "SELECT DISTINCT run, bucket FROM backfill_truth WHERE run = %s ORDER BY bucket", (run,)
    )
    return [label_of(bucket) for _, bucket in found]


def discard(session: Session, run: int) -> None:
    """Forget what the sources of a run said; outside a transaction, in steps."""
    delete = partial(
        session.execute,
        f"DELETE FROM backfill_truth WHERE run = %s LIMIT {_ROWS_PER_DELETE:d}",
        (run,),
    )
    while rerun(delete) == _ROWS_PER_DELETE:
        pass


def discard_ended(session: Session, counter: str) -> None:
    """The same of all runs of a counter that have ended, however."""
    ended = session.query(
        "SELECT id FROM backfill_run AS r WHERE counter = %s AND state <> 'running'"
        " AND mode <> 'add' AND EXISTS (SELECT 1 FROM backfill_truth AS t WHERE t.run = r.id)",
        (counter,),
    )
    for (run,) in ended:
        discard(session, int(run))


def policies_text(own: Sequence[Policy]) -> str:
    """Policies as a run keeps them: what decides on the buckets of events."""
    return json.dumps([[one.number, one.valid_from, one.time_zone, one.resolution] for one in own])


def changed(counter: str) -> BackfillError:
    """What to say where the policies are others by now."""
    return BackfillError(
        f"the time zone or resolution of {counter} was changed while its sources were read, so they"
        " were added up for buckets that it has not: run this again"
    )


def _agreed(session: Session, run: int, own: str) -> object:
    """The policies by which the first chunk of a run was read: ``own``, if this is the first."""
    ask = "SELECT policies FROM backfill_run WHERE id = %s"
    found = session.query(ask, (run,))
    if found and found[0][0] is None:
        session.execute(
            "UPDATE backfill_run SET policies = %s WHERE id = %s AND policies IS NULL", (own, run)
        )
        found = session.query(ask, (run,))
    return json.loads(found[0][0]) if found else None


def _until(own: Sequence[Sequence[object]], t0: int) -> list[Sequence[object]]:
    """Without policies that begin later: they have no bucket that was over by then."""
    return [one for one in own if isinstance(one[1], int) and one[1] * 60_000 <= t0]
