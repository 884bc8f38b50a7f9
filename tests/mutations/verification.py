"""Mutations of `verify` and the ledger that hide a count which was lost, doubled or misplaced."""

from typing import Final

from tests.mutations.mutation import Mutation

_STORE: Final = "worker/countersink/store/"

VERIFICATION: Final = (
    Mutation(
        name="exchanged-amounts-not-suspected",
        file=_STORE + "ledger/balance.py",
        old="amount <> 0 OR checksum MOD {MODULUS:d} <> 0) AND",
        new="amount <> 0) AND",
        tests=("tests/store/test_verify.py",),
    ),
    Mutation(
        name="sums-compared-without-their-checksums",
        file=_STORE + "verify.py",
        old="    elif held != posted:",
        new="    elif held.amount != posted.amount:",
        tests=("tests/store/test_verify.py",),
    ),
    Mutation(
        name="seals-of-sequences-not-compared",
        file=_STORE + "verify.py",
        old="differences += [*seals.counters(session), *seals.others(session)]",
        new="differences += [*seals.counters(session)]",
        tests=("tests/store/test_damage.py",),
    ),
)
