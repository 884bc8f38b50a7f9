"""A batch into MySQL: as a whole, or entry by entry where something unforeseen goes wrong."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Final

from countersink.store.apply import Applied, Applier
from countersink.store.connection import Session
from countersink.store.merge import Incoming
from countersink.worker.batch import Batch
from countersink.worker.decoding import buried
from countersink.worker.logs import Action, Log
from countersink.worker.patience import Abandoned, Patience
from countersink.worker.tables import SchemaTooNew

TRIES: Final = 3
"""How often an entry may fail in an unforeseen way before it is buried."""


class Applying:
    """Applies batches through one connection. For one thread.

    Args:
        connect: makes a session with the right tables.
        slot: the slot to count into.
        patience: waits for MySQL.
        log: the worker's.
        reached: called with each of :data:`countersink.store.apply.POINTS`.
    """

    def __init__(
        self,
        connect: Callable[[], Session],
        slot: int,
        patience: Patience,
        log: Log,
        reached: Callable[[str], object] = lambda point: None,
    ) -> None:
        self._connect = connect
        self._slot = slot
        self._patience = patience
        self._log = log
        self._reached = reached
        self._applier = Applier(connect, slot, reached=reached)

    def use_slot(self, slot: int) -> None:
        """Count into another slot from the next batch on."""
        self._applier.slot = self._slot = slot

    def apply(self, batch: Batch) -> Applied:
        """Apply the batch and return what came of it; waits as long as MySQL is away.

        Raises:
            Abandoned: a stop was requested while MySQL was away; nothing, or everything, was
                applied.
            SchemaTooNew: the tables were migrated by a newer version.
        """
        entries = list(batch.entries.values())
        try:
            return self._try(entries)
        except (Abandoned, SchemaTooNew):
            raise
        except Exception as error:
            self._log(
                Action.BATCH_FAILED,
                "an unexpected error: applying the batch entry by entry",
                level=logging.ERROR,
                bug=error,
                entries=len(entries),
            )
            self._renew()
        applied = [self._alone(entry) for entry in entries]
        return total(applied)

    def close(self) -> None:
        """Close the connection."""
        self._applier.close()

    def _try(self, entries: Sequence[Incoming]) -> Applied:
        return self._patience.call(lambda: self._applier.apply(entries))

    def _alone(self, entry: Incoming) -> Applied:
        failure: Exception | None = None
        for _ in range(TRIES):
            try:
                return self._try([entry])
            except (Abandoned, SchemaTooNew):
                raise
            except Exception as error:
                failure = error
                self._renew()
        self._log(
            Action.ENTRY_FAILED,
            "an entry keeps failing in an unexpected way: it goes to the dead letters",
            level=logging.ERROR,
            bug=failure,
            entry=entry.id.hex(),
        )
        return self._try([buried(entry)])

    def _renew(self) -> None:
        self._applier.close()
        self._applier = Applier(self._connect, self._slot, reached=self._reached)


def total(parts: Sequence[Applied]) -> Applied:
    """The sum of several results."""
    return Applied(*(sum(figures) for figures in zip(*map(astuple, parts), strict=True)))
