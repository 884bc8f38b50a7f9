"""Mutations of the transaction that counts entries: guards, watermark, control row, upserts, merged
amounts, dead letters.
"""

from typing import Final

from tests.mutations.mutation import Mutation

_APPLY: Final = "worker/countersink/store/apply/"
_KEY_CAPS: Final = "tests/store/test_key_caps.py"

COUNTING: Final = (
    Mutation(
        name="guard-that-is-there-is-no-error",
        file=_APPLY + "guards.py",
        old="guards, IDS_PER_STATEMENT)",
        new='guards, IDS_PER_STATEMENT, " ON DUPLICATE KEY UPDATE keep_from = keep_from")',
        tests=("tests/store/test_apply.py",),
    ),
    Mutation(
        name="guard-at-the-watermark-pruned",
        file=_APPLY + "guards.py",
        old="WHERE keep_from < %s ORDER BY",
        new="WHERE keep_from <= %s ORDER BY",
        tests=("tests/store/test_guards.py",),
    ),
    Mutation(
        name="guard-of-an-old-entry-behind-the-watermark",
        file=_APPLY + "guards.py",
        old="least = max(control.now, control.watermark)",
        new="least = control.now",
        tests=("tests/store/test_guards.py",),
    ),
    Mutation(
        name="watermark-that-falls",
        file=_APPLY + "guards.py",
        old="before = max(control.watermark, wanted)",
        new="before = wanted",
        tests=("tests/store/test_guards.py",),
    ),
    Mutation(
        name="watermark-beyond-what-waits-in-the-queue",
        file=_APPLY + "guards.py",
        old="wanted = min(wanted, not_above_ms)",
        new="wanted = max(wanted, not_above_ms)",
        tests=("tests/store/test_guards.py",),
    ),
    Mutation(
        name="entry-at-the-watermark-neither-young-nor-old",
        file=_APPLY + "apply.py",
        old="if entry.at >= control.watermark]",
        new="if entry.at > control.watermark]",
        tests=("tests/store/test_guards.py",),
    ),
    Mutation(
        name="entry-that-is-too-old-without-a-guard",
        file=_APPLY + "apply.py",
        old="[(entry.id, entry.at) for entry in entries], control)",
        new="[(e.id, e.at) for e in entries if e.at >= control.watermark], control)",
        tests=("tests/store/test_apply.py",),
    ),
    Mutation(
        name="control-row-read-without-its-lock",
        file=_APPLY + "control.py",
        old='def read_control(session: Session, lock: str = "LOCK IN SHARE MODE")',
        new='def read_control(session: Session, lock: str = "")',
        tests=("tests/store/test_guards.py",),
    ),
    Mutation(
        name="policies-kept-after-their-version-changed",
        file=_APPLY + "apply.py",
        old="if found is None or found.version != control.policy_version:",
        new="if found is None:",
        tests=("tests/store/test_policies.py",),
    ),
    Mutation(
        name="amount-set-where-it-is-to-be-added",
        file="worker/countersink/store/sql.py",
        old='f"{each} = {each} + VALUES({each})"',
        new='f"{each} = VALUES({each})"',
        tests=("tests/store/test_apply.py",),
    ),
    Mutation(
        name="transaction-left-open-after-an-error",
        file="worker/countersink/store/connection.py",
        old="BaseException:\n            self.rollback_or_close()\n            raise",
        new="BaseException:\n            raise",
        tests=("tests/store/test_session.py",),
    ),
    Mutation(
        name="keys-remembered-before-the-commit",
        file=_APPLY + "apply.py",
        old='self._reached("before_commit")\n',
        new='upserts.remember()\n                    self._reached("before_commit")\n',
        tests=(_KEY_CAPS + "::test_a_connection_killed_before_the_commit_remembers_nothing",),
    ),
    Mutation(
        name="row-in-the-bucket-of-the-counter-before",
        file=_APPLY + "amounts.py",
        old="if minute != last_minute or counter != last_counter:",
        new="if minute != last_minute:",
        tests=("tests/store/test_isolation.py", "tests/store/test_packets.py"),
    ),
    Mutation(
        name="amounts-of-two-overflowing-keys-not-added-up",
        file=_APPLY + "amounts.py",
        old="amounts[to] = amounts.get(to, 0) + moved",
        new="amounts[to] = moved",
        tests=("tests/store/test_key_caps.py",),
    ),
    Mutation(
        name="savepoint-released-where-a-row-is-refused",
        file=_APPLY + "cells.py",
        old='f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}"',
        new='f"RELEASE SAVEPOINT {_SAVEPOINT}"',
        tests=(
            "tests/store/test_breakdowns.py::test_a_row_that_one_cell_refuses_is_counted_in_none",
        ),
    ),
    Mutation(
        name="refused-row-counted-and-dead",
        file=_APPLY + "refusals.py",
        old="            entry = replace(entry, rows=left)\n",
        new="",
        tests=("tests/store/test_reconciled.py",),
    ),
    Mutation(
        name="row-of-the-millisecond-of-a-mark-dead",
        file="worker/countersink/store/counters/policies.py",
        old="accepted < found.sent_before else None",
        new="accepted <= found.sent_before else None",
        tests=("tests/store/test_reconciled.py",),
    ),
    Mutation(
        name="unknown-counter-known-from-its-second-batch-on",
        file=_APPLY + "refusals.py",
        old="policies.known |= doubtful - unknown",
        new="policies.known |= doubtful",
        tests=("tests/store/test_strict.py",),
    ),
    Mutation(
        name="dead-row-retried-without-its-lock",
        file=_APPLY + "dead.py",
        old='AND position = %s FOR UPDATE", key',
        new='AND position = %s", key',
        tests=("tests/store/test_dead.py::test_a_row_that_is_being_retried_is_locked",),
    ),
)
