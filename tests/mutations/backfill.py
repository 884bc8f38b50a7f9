"""Mutations of backfill: chunks, repeated lines, undoing, reconciling."""

from typing import Final

from tests.mutations.mutation import Mutation

_BACKFILL: Final = "worker/countersink/backfill/"

BACKFILL: Final = (
    Mutation(
        name="chunk-claimed-that-was-counted",
        file=_BACKFILL + "count/chunks.py",
        old="AND start_at = %s AND state IN ('pending', 'undone')\"\n        \" FOR UPDATE SKIP",
        new='AND start_at = %s"\n        " FOR UPDATE SKIP',
        tests=("tests/backfill/test_add_together.py",),
    ),
    Mutation(
        name="planned-chunk-in-buckets-of-former-policies",
        file=_BACKFILL + "count/transaction.py",
        old="if in_force is not known:",
        new="if in_force is None:",
        tests=("tests/backfill/test_add_together.py",),
    ),
    Mutation(
        name="unfinished-line-counted-again-when-it-goes-on",
        file=_BACKFILL + "count/chunk_reader.py",
        old="        keys[key] -= amount\n",
        new="",
        tests=("tests/backfill/test_identity.py",),
    ),
    Mutation(
        name="repeated-lines-counted",
        file=_BACKFILL + "count/transaction.py",
        old="return again(verdict.left_out) if verdict.left_out else found",
        new="return found",
        tests=("tests/backfill/test_overlap.py",),
    ),
    Mutation(
        name="chunk-added-to-days-that-a-reconcile-has-set",
        file=_BACKFILL + "count/transaction.py",
        old="targets.refuse_set_days(session, found.in_force, task.counter, found.labels())",
        new="pass",
        tests=("tests/backfill/test_set_days.py",),
    ),
    Mutation(
        name="journal-of-a-chunk-cut-off",
        file=_BACKFILL + "count/targets.py",
        old="for number, piece in enumerate(pieces):\n        session",
        new="for number, piece in enumerate(pieces[:1]):\n        session",
        tests=("tests/backfill/test_undo.py",),
    ),
    Mutation(
        name="chunk-taken-back-without-its-lock",
        file=_BACKFILL + "retraction.py",
        old="AND run = %s AND state = 'done' FOR UPDATE\"",
        new="AND run = %s AND state = 'done'\"",
        tests=("tests/backfill/test_undo.py",),
    ),
    Mutation(
        name="reconcile-sums-up-without-locks",
        file=_BACKFILL + "reconcile/correction.py",
        old='self.differences(session, keys, lock=" FOR UPDATE")',
        new="self.differences(session, keys)",
        tests=("tests/backfill/test_reconcile_together.py",),
    ),
)
