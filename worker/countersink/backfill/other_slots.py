"""Taking back where the slot at hand has no room for it: in another one, with the same sum."""

import random
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from countersink.store import adding
from countersink.store.adding import BadCells
from countersink.store.app_slots import FIRST_OWN
from countersink.store.connection import Session
from countersink.store.rerun import rerun

SLOTS: Final = (adding.FIRST_SLOT + adding.SLOTS, FIRST_OWN - 1)
"""Where cells go that do not fit the slot in which there may be much already."""
_ATTEMPTS: Final = 8

Result = TypeVar("Result")


def with_room(session: Session, attempt: Callable[[int, int], Result]) -> Result:
    """Do what ``attempt`` does in a transaction, given a slot and how often it was tried, from 1.

    Raises:
        BadCells: a sum would leave 64 bits in each of the slots that were tried.
        StoreError: as any transaction.
    """
    slot = adding.slot_of(session)
    for number in range(1, _ATTEMPTS):
        try:
            return rerun(partial(attempt, slot, number))
        except BadCells:
            # Only in this slot, which holds what others added, too.
            slot = random.randint(*SLOTS)
    return rerun(partial(attempt, slot, _ATTEMPTS))
