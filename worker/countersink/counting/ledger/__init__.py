"""The ledger, sums and checksums of all that was added to counters; kinds of problems that a
comparison with it finds (``Problem``).

A *posting* is two numbers: the sum of some amounts, and a checksum of the same rows. Whoever
adds, deletes or moves rows posts it in the same transaction, to ``counter_ledger``, on rows of its
own slot. So for every counter, in any snapshot: its rows, as one posting, are equal to the sum of
the ledger's.
"""

from dataclasses import dataclass
from datetime import date
from typing import Literal

Problem = Literal[
    "sum",
    "checksum",
    "no_ledger",
    "breakdown",
    "backfill",
    "sketch",
]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something wrong with a counter: its problem, both sums, a sentence.

    Attributes:
        counter: its name.
        problem: ``sum``: tables and ledger differ; ``checksum``: their sums agree, but keys,
            buckets or amounts were exchanged; ``no_ledger``: there are rows, though nothing was
            ever counted; ``backfill``: what its backfills wrote down does not fit the ledger, or
            does not cover what was read of their sources; ``breakdown``: a breakdown holds other
            sums of some days than the counter; ``sketch``: different members are not what was
            written, or lie beside no row, or are missing.
        in_tables: sum of its rows; ``backfill``: what its backfills wrote down;
            ``breakdown``: the breakdown's sum of those days; ``sketch``: how many sketches are
            wrong.
        in_ledger: sum of the ledger; ``backfill``: of slots 512 to 1023; ``breakdown``: the
            counter's.
        detail: a sentence for people.
        day: of the bucket that is wrong, where that could be told.
    """

    counter: str
    problem: Problem
    in_tables: int
    in_ledger: int
    detail: str
    day: date | None = None

    @property
    def difference(self) -> int:
        """Tables minus ledger."""
        return self.in_tables - self.in_ledger
