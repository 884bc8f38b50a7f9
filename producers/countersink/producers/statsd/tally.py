"""From lines to increments.

A busy client sends the same few lines over and over. So lines are counted as they are, in C, and
each distinct one is understood once: what it means is remembered. They go on to the producer, which
folds them into rows, :data:`DELIVER_SECONDS` after the first of them.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Lock
from time import monotonic, time
from typing import Final, Protocol

from countersink.producers.statsd.amounts import UNIT
from countersink.producers.statsd.figures import Figures
from countersink.producers.statsd.journal import Journal
from countersink.producers.statsd.line import Malformed, is_other, parse
from countersink.producers.statsd.mapping import Rules

OVERFLOW: Final = "__overflow__"
"""The counter of what came under more names than there may be."""
REMEMBERED: Final = 50_000
"""Distinct lines whose meaning is remembered."""
REMEMBERED_BYTES: Final = 512
"""The longest line that is."""
REMAINDERS: Final = 10_000
"""Keys for which parts of an increment are kept."""
DAY_SECONDS: Final = 86_400.0

DELIVER_SECONDS: Final = 0.02
"""How long lines of datagrams are counted before they go on: one by one each would cost more."""
DELIVER_LINES: Final = 1_000_000
"""Lines that are counted at most before: times the largest ``max_amount``, together with one
receive's, they fit into 64 bits."""
DELIVER_DISTINCT: Final = 20_000
"""Different lines at most: what may be in memory."""

Cell = tuple[str, int | None]
"""(counter, minute or None for now)."""
Meaning = tuple[Cell, str, int]
"""(cell, key, amount in units of 1/10⁹)."""


class Counts(Protocol):
    """What is needed of a producer."""

    def increment_many(
        self, counter: str, amounts: dict[str, int], *, at: datetime | None = None
    ) -> None:
        """See :meth:`countersink.producers.Producer.increment_many`."""


class Tally:
    """Counts lines into a producer; for several threads.

    Args:
        producer: where increments go.
        figures: where it writes down what it did; held by its lock.
        journal: told of malformed lines.
        rules: the map.
        max_amount: the largest absolute amount of one line.
        max_counters: distinct counters besides ``__overflow__``, since it was made.
        max_ahead_s: how far in the future a line's own time may lie, for clocks that differ.
        max_age_days: how far in the past; 0: no limit.
    """

    def __init__(
        self,
        producer: Counts,
        figures: Figures,
        journal: Journal,
        rules: Rules,
        *,
        max_amount: int,
        max_counters: int,
        max_ahead_s: float,
        max_age_days: int,
    ) -> None:
        self._producer = producer
        self._figures = figures
        self._journal = journal
        self._rules = rules
        self._most = max_amount * UNIT
        self._max_counters = max_counters
        self._max_ahead_s = max_ahead_s
        self._max_age_days = max_age_days
        self._lock = Lock()
        self._waiting: Counter[bytes] = Counter()
        self._waiting_lines = 0
        self._deliver_at = 0.0
        self._known: dict[bytes, Meaning] = {}
        self._counters: set[str] = set()
        self._remainders: dict[tuple[str, str], int] = {}
        figures.rules = len(rules.rules)

    def use(self, rules: Rules) -> None:
        """Go on with another map."""
        with self._lock:
            self._deliver()  # what has come is counted by the map that it came under
            self._rules = rules
            self._known.clear()
            self._figures.rules = len(rules.rules)

    def packets(self, packets: Sequence[bytes | bytearray]) -> bool:
        """Count datagrams, each of one line or more; whether some now wait to go on.

        Whoever is told so calls again within :data:`DELIVER_SECONDS`, with new ones or with none.
        """
        lines = b"\n".join(packets).split(b"\n") if packets else []
        with self._lock:
            self._figures.packets += len(packets)
            waiting = self._waiting
            if not waiting:
                self._deliver_at = monotonic() + DELIVER_SECONDS
            waiting.update(lines)
            self._waiting_lines += len(lines)
            if (
                monotonic() >= self._deliver_at
                or len(waiting) >= DELIVER_DISTINCT
                or self._waiting_lines >= DELIVER_LINES
            ):
                self._deliver()
            return bool(self._waiting)

    def lines(self, lines: list[bytes]) -> None:
        """Count lines, without their newlines, at once."""
        with self._lock:
            self._waiting.update(lines)
            self._deliver()

    def deliver(self) -> None:
        """Let go on what was received by now."""
        with self._lock:
            self._deliver()

    def _deliver(self) -> None:
        waiting, self._waiting, self._waiting_lines = self._waiting, Counter(), 0
        counted: dict[Cell, dict[str, int]] = {}
        for line, times in waiting.items():
            meaning = self._known.get(line) or self._understand(line, times)
            if meaning is None:
                continue
            cell, key, amount = meaning
            self._figures.counted += times
            if cell[0] is OVERFLOW:
                self._figures.overflown += times
            whole, part = divmod(amount * times, UNIT)
            if part:
                whole = self._with_remainder(cell[0], key, amount * times)
            keys = counted.get(cell)
            if keys is None:
                counted[cell] = {key: whole}
            else:
                keys[key] = keys.get(key, 0) + whole
        for (counter, minute), amounts in counted.items():
            at = None if minute is None else datetime.fromtimestamp(minute * 60, UTC)
            self._producer.increment_many(counter, amounts, at=at)

    def too_long(self, line: bytes) -> None:
        """A line that does not end."""
        with self._lock:
            self._figures.malformed += 1
            self._journal.malformed(line, "it is too long", self._figures.malformed)

    def _understand(self, line: bytes, times: int) -> Meaning | None:
        """What a line means that is not remembered; ``None``: nothing that counts."""
        line_end = line.rstrip(b"\r")
        if not line_end:
            return None
        if is_other(line_end):
            self._figures.ignored += times
            return None
        try:
            meaning = self._meaning(line_end)
        except Malformed as error:
            self._figures.malformed += times
            self._journal.malformed(line, str(error), self._figures.malformed)
            return None
        if meaning is None:
            self._figures.discarded += times
        elif len(line) <= REMEMBERED_BYTES and meaning[0][1] is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[line] = meaning
        return meaning

    def _meaning(self, line: bytes) -> Meaning | None:
        metric = parse(line)
        if not -self._most <= metric.amount <= self._most:
            raise Malformed(f"it counts more than {self._most // UNIT:,}")
        if metric.minute is not None:
            self._check_time(metric.minute * 60)
        target = self._rules.target(metric.name, metric.tags)
        if target is None:
            return None
        counter, key = target
        if counter not in self._counters:
            if len(self._counters) >= self._max_counters:
                return (OVERFLOW, metric.minute), "", metric.amount
            self._counters.add(counter)
        return (counter, metric.minute), key, metric.amount

    def _check_time(self, seconds: int) -> None:
        now = time()
        if seconds > now + self._max_ahead_s:
            raise Malformed(f"its time is more than {self._max_ahead_s:,.15g} s ahead")
        days = self._max_age_days
        if days and seconds < now - days * DAY_SECONDS:
            raise Malformed(f"its time is more than {days:,} days back")

    def _with_remainder(self, counter: str, key: str, amount: int) -> int:
        """Whole increments of ``amount`` and of what earlier ones left; what remains is at most a
        half, above or below, and waits for the next.
        """
        left = self._remainders
        amount += left.pop((counter, key), 0)
        whole = (amount + UNIT // 2) // UNIT
        if amount != whole * UNIT:
            if len(left) >= REMAINDERS:
                del left[next(iter(left))]  # the one that has waited longest: half of one at most
            left[counter, key] = amount - whole * UNIT
        return whole
