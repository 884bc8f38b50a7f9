"""All mutations, in the order of an increment's way: the producer first, verify last."""

from typing import Final

from tests.mutations.backfill import BACKFILL
from tests.mutations.counting import COUNTING
from tests.mutations.direct import DIRECT
from tests.mutations.mutation import Mutation
from tests.mutations.producer import PRODUCER
from tests.mutations.queue import QUEUE
from tests.mutations.upkeep import UPKEEP
from tests.mutations.verification import VERIFICATION

REPERTOIRE: Final[tuple[Mutation, ...]] = (
    *PRODUCER,
    *QUEUE,
    *COUNTING,
    *BACKFILL,
    *DIRECT,
    *UPKEEP,
    *VERIFICATION,
)
