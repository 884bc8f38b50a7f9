"""What a worker holds between reading and acknowledging."""

from dataclasses import dataclass, field

from countersink.store.merge import Incoming

Held = tuple[str, str, str]
"""One delivery: (stream, stream id, entry id of 32 hex digits). What the acknowledgement needs."""


@dataclass(slots=True)
class Batch:
    """Decoded entries, each id once, with every delivery they came by.

    Attributes:
        entries: by entry id (32 hex digits), in the order of arrival.
        deliveries: all deliveries to acknowledge, repeats of an id included.
        rows: rows in the entries, good and bad.
        drained: the streams were empty and nothing was pending when nothing came (looked at only
            when asked to drain).
    """

    entries: dict[str, Incoming] = field(default_factory=dict)
    deliveries: list[Held] = field(default_factory=list)
    rows: int = 0
    drained: bool = False

    def add(self, held: Held, entry: Incoming) -> None:
        """Take in one delivery; an id that is there already is only noted for the
        acknowledgement.
        """
        self.deliveries.append(held)
        entry_id = held[2]
        if entry_id not in self.entries:
            self.entries[entry_id] = entry
            self.rows += len(entry.rows) + len(entry.dead)
