"""All mutations, in the order of an increment's way: the producer first, verify last."""

from typing import Final

from tests.mutations.counting import COUNTING
from tests.mutations.mutation import Mutation

REPERTOIRE: Final[tuple[Mutation, ...]] = (*COUNTING,)
