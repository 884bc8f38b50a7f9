"""Mutations of the transaction that counts entries: guards, watermark, control row, upserts, merged
amounts, dead letters.
"""

from typing import Final

from tests.mutations.mutation import Mutation

_APPLY: Final = "worker/countersink/store/apply/"

COUNTING: Final = (
    Mutation(
        name="guard-that-is-there-is-no-error",
        file=_APPLY + "guards.py",
        old="guards, IDS_PER_STATEMENT)",
        new='guards, IDS_PER_STATEMENT, " ON DUPLICATE KEY UPDATE keep_from = keep_from")',
        tests=("tests/store/test_apply.py",),
    ),
    Mutation(
        name="guards-of-the-first-thousand-entries-alone",
        file=_APPLY + "guards.py",
        old="for entry_id, at in sorted(entries)]",
        new="for entry_id, at in sorted(entries)[:IDS_PER_STATEMENT]]",
        tests=("tests/store/test_guards.py",),
    ),
    Mutation(
        name="guard-kept-from-the-time-of-its-entry-alone",
        file=_APPLY + "guards.py",
        old="min(max(at, least), _MAX_BIGINT)",
        new="min(at, _MAX_BIGINT)",
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
        name="watermark-by-the-later-of-two-clocks",
        file=_APPLY + "guards.py",
        old="wanted = min(control.now, now_ms) - keep_ms",
        new="wanted = max(control.now, now_ms) - keep_ms",
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
        name="entry-that-is-too-old-counted-all-the-same",
        file=_APPLY + "apply.py",
        old="young = [entry for entry in entries if entry.at >= control.watermark]",
        new="young = list(entries)",
        tests=("tests/store/test_apply.py",),
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
        tests=("tests/store/test_apply.py",),
    ),
)
