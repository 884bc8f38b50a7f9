"""Mutations of counting without the queue: sequences, transactions of applications, triggers."""

from typing import Final

from tests.mutations.mutation import Mutation

_STORE: Final = "worker/countersink/store/"

DIRECT: Final = (
    Mutation(
        name="block-of-a-sequence-begins-with-the-value-before",
        file=_STORE + "sequences/records.py",
        old="range(last - (self.n - 1) * step, last + step, step)",
        new="range(last - self.n * step, last, step)",
        tests=("tests/store/sequences/test_next.py",),
    ),
    Mutation(
        name="value-of-a-sequence-handed-out-in-the-period-before",
        file=_STORE + "sequences/records.py",
        old='AND o.time_zone = {literal(scheme.time_zone.encode())} AND {place.condition}"',
        new='AND o.time_zone = {literal(scheme.time_zone.encode())}"',
        tests=("tests/store/sequences/test_periods.py",),
    ),
    Mutation(
        name="reset-of-a-sequence-deletes-the-periods-before",
        file=_STORE + "sequences/records.py",
        old='WHERE name = %s AND period = %s", (name, period))',
        new='WHERE name = %s", (name,))',
        tests=("tests/store/sequences/test_periods.py",),
    ),
    Mutation(
        name="settings-of-a-transaction-not-checked",
        file=_STORE + "in_app/increments.py",
        old=' AND f.version = {found.version:d}"',
        new='"',
        tests=("tests/store/test_settings_version.py",),
    ),
    Mutation(
        name="amounts-of-a-transaction-set-not-added",
        file=_STORE + "in_app/increments.py",
        old='amount = counter_slot.amount + new.amount"',
        new='amount = new.amount"',
        tests=("tests/store/test_increments.py",),
    ),
    Mutation(
        name="half-of-a-call-kept-after-an-error",
        file=_STORE + "in_app/connection.py",
        old='undo, end = f"ROLLBACK TO SAVEPOINT {SAVEPOINT}", None',
        new='undo, end = "DO 0", None',
        tests=("tests/store/test_increments.py",),
    ),
    Mutation(
        name="rows-of-other-slots-deleted-with-a-key",
        file=_STORE + "in_app/increments.py",
        old='f" AND slot = {at:d}"',
        new='""',
        tests=("tests/store/test_increments_delete.py",),
    ),
    Mutation(
        name="row-of-a-table-moves-only-with-its-day",
        file=_STORE + "tracked/triggers.py",
        old="old_bucket <> new_bucket OR old_key <> new_key",
        new="old_bucket <> new_bucket AND old_key <> new_key",
        tests=("tests/store/tracked/test_triggers.py",),
    ),
    Mutation(
        name="update-that-was-ignored-counted",
        file=_STORE + "tracked/triggers.py",
        old="if table.updates_ignored and table.primary_key:",
        new="if not table.updates_ignored and table.primary_key:",
        tests=("tests/store/tracked/test_ignored_updates.py",),
    ),
)
