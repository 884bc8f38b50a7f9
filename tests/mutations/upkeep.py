"""Mutations of what keeps the tables small: moves, retention, postings, deletion."""

from typing import Final

from tests.mutations.mutation import Mutation

_JOBS: Final = "schedules/countersink/schedules/jobs/"
_STORE: Final = "worker/countersink/store/"

UPKEEP: Final = (
    Mutation(
        name="rows-moved-and-not-deleted",
        file=_JOBS + "move.py",
        old="deleted = _delete(session, part)",
        new="deleted = moved",
        tests=("tests/schedules/test_move.py",),
    ),
    Mutation(
        name="amount-in-slot-0-replaced-by-what-moves",
        file=_JOBS + "move.py",
        old='clause = session.dialect.upsert_add(table, "amount")',
        new='clause = session.dialect.upsert_set("amount")',
        tests=("tests/schedules/test_move.py",),
    ),
    Mutation(
        name="rows-deleted-that-came-after-the-sum",
        file=_JOBS + "move.py",
        old="if deleted != moved:",
        new="if deleted < moved:",
        tests=("tests/schedules/test_move.py",),
    ),
    Mutation(
        name="month-of-a-counter-that-was-made-anew",
        file=_JOBS + "move.py",
        old="if version != to.version or not reached:",
        new="if not reached:",
        tests=("tests/schedules/test_move.py",),
    ),
    Mutation(
        name="move-to-a-month-not-posted",
        file=_JOBS + "move.py",
        old="                _post(session, part, part.to, moving, sums)",
        new="                pass",
        tests=("tests/schedules/test_move.py",),
    ),
    Mutation(
        name="first-day-that-is-kept-rolled-up",
        file=_JOBS + "retention.py",
        old="if last < rolled_up_to:",
        new="if last <= rolled_up_to:",
        tests=("tests/schedules/test_retention.py",),
    ),
    Mutation(
        name="buckets-rolled-up-to-the-midst-of-a-wider-one",
        file=_STORE + "counters/keep_steps.py",
        old="minute = -(-policy.starts_at(policy.label(now - age)) // 60)",
        new="minute = now - age",
        tests=("tests/store/test_keep_steps.py",),
    ),
    Mutation(
        name="postings-of-an-open-transaction-moved",
        file=_STORE + "ledger/postings.py",
        old='FOR UPDATE SKIP LOCKED"',
        new='"',
        tests=("tests/store/test_ledger.py",),
    ),
    Mutation(
        name="postings-deleted-that-were-not-added-up",
        file=_STORE + "ledger/postings.py",
        old='AND slot IN ({marks(slots)})",\n            (*place, *slots),',
        new='AND slot >= %s",\n            (*place, slots[0]),',
        tests=("tests/store/test_ledger.py",),
    ),
)
