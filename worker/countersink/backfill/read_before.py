"""What a dry run has read already, so that what it reads then is known as adding would know it."""

from dataclasses import dataclass, field

from countersink.backfill.contents import Content
from countersink.backfill.head import alike
from countersink.backfill.options import BackfillError
from countersink.backfill.reading import Start
from countersink.backfill.settling import too_short
from countersink.backfill.spans import Span, digest


@dataclass(slots=True)
class Reading:
    """What a dry run has read of a source, behind what is counted of it.

    Attributes:
        source: its number; None: it would be a new one.
        head: how it begins, 4,096 bytes at most.
        path: where.
        spans: what was read, in order.
    """

    source: int | None
    head: bytes
    path: str
    spans: list[Span] = field(default_factory=list)

    def next(self) -> Start:
        """Where reading goes on."""
        last = self.spans[-1]
        begins = last.end if last.open_at is None else last.open_at
        return Start(at=last.end, reads_from=begins, first_line=last.next_line)

    def compare(self, content: Content, head: bytes) -> str:
        """How a content is related to it: as :class:`~countersink.backfill.identity.Held` says."""
        for span in self.spans:
            found = digest(content, span.start, span.end)
            if found is None:
                size = content.offset
                told = size == len(head) and self.head.startswith(head)
                return "older" if size == span.start or told else "short"
            if found != span.digest:
                return "other"
        return "same"


class ReadBefore:
    """All that a dry run has read."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []

    def of(self, content: Content, path: str, head: bytes, source: int | None) -> Reading | None:
        """What was read of a content before, or a new reading; None: it is an older copy.

        Args:
            path: its own.
            head: how it begins.
            source: which one it is in the tables.

        Raises:
            BackfillError: it cannot be told from an older copy.
            Unreadable: as comparing it.
        """
        found = [
            (one, one.compare(content, head))
            for one in self._readings
            if one.source == source and alike(one.head, head)
        ]
        verdicts = [verdict for _, verdict in found]
        if "same" in verdicts:
            reading = found[verdicts.index("same")][0]
            reading.head = max(reading.head, head, key=len)
            return reading
        if "older" in verdicts:
            return None
        if "short" in verdicts:
            raise BackfillError(too_short(found[verdicts.index("short")][0].path))
        if found and source is not None:
            # Another copy of that source went on in another way.
            return self.of(content, path, head, None)
        self._readings.append(Reading(source, head, path))
        return self._readings[-1]
