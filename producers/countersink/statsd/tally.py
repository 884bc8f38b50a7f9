"""From StatsD lines to increments: remainders of sample rates, refusal of amounts and times out of
bounds, ``__overflow__``, when they go to the producer, the listener's figures (packets lost:
``statsd/server.py``) and log actions.

A busy client sends the same few lines over and over. So lines are counted as they are, in C, and
each distinct one is understood once: what it means is remembered. They go on to the producer, which
folds them into rows, :data:`DELIVER_SECONDS` after the first of them.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from threading import Lock
from time import monotonic, time
from typing import Final, Protocol

from countersink.runtime.dimensions import RowKey
from countersink.runtime.log import Log
from countersink.statsd.errors import MalformedMetric
from countersink.statsd.line import UNIT, Metric, parse
from countersink.statsd.options import Rules, StatsdOptions

LOGGER: Final = logging.getLogger("countersink.statsd")
SHOWN_BYTES: Final = 80
"""Of a line that is malformed."""

OVERFLOW: Final = "__overflow__"
"""The counter of what came under more names than clients may invent."""
_PADDING: Final = b" \t\r\0"
"""What clients put around a line: ends of lines, and those of strings in C."""
REMEMBERED: Final = 50_000
"""Distinct lines whose meaning is remembered."""
REMEMBERED_BYTES: Final = 512
"""The longest line that is."""
REMAINDERS: Final = 10_000
"""Keys for which parts of an increment are kept."""
DAY_SECONDS: Final = 86_400.0

DELIVER_SECONDS: Final = 0.02
"""How long lines of datagrams are counted before they go on: one by one each would cost more."""
DELIVER_LINES: Final = 100_000
"""Lines that are counted at most before, all of them different: what may be in memory. Times the
largest ``max_amount``, together with one receive's, they fit into 64 bits."""

Cell = tuple[str, int | None]
"""(counter, minute or None for now)."""
Meaning = tuple[Cell, RowKey, int]
"""(cell, key or dimensions, amount in units of 1/10⁹)."""


class CountingProducer(Protocol):
    """The part of a producer that the tally uses."""

    def increment(
        self,
        counter: str,
        key: str | Mapping[str, str],
        amount: int,
        *,
        at: datetime | None = None,
    ) -> None:
        """See :meth:`countersink.producers.Producer.increment`."""

    def increment_many(
        self, counter: str, amounts: dict[str, int], *, at: datetime | None = None
    ) -> None:
        """See :meth:`countersink.producers.Producer.increment_many`."""


class StatsdTally:
    """Counts lines into a producer; for several threads.

    Args:
        producer: where increments go.
        rules: the map.
        options: its limits of amounts, counters and times.

    Attributes:
        figures: what the listener did; those of lines and packets are held by the lock here.
        log: the listener's; of what anybody may send it says little.
    """

    def __init__(self, producer: CountingProducer, rules: Rules, options: StatsdOptions) -> None:
        self.figures = Figures(rules=len(rules.rules))
        self.log = Log(LOGGER)
        self._producer = producer
        self._rules = rules
        self._options = options
        self._most = options.max_amount * UNIT
        self._lock = Lock()
        self._waiting: Counter[bytes] = Counter()
        self._waiting_lines = 0
        self._deliver_at = 0.0
        self._known: dict[bytes, Meaning] = {}
        self._invented: set[str] = set()
        self._remainders: dict[tuple[str, RowKey], int] = {}

    def use(self, rules: Rules) -> None:
        """Go on with another map."""
        with self._lock:
            self._deliver()  # what has come is counted by the map that it came under
            self._rules = rules
            self._known.clear()
            self.figures.rules = len(rules.rules)

    def packets(self, packets: Sequence[bytes | bytearray]) -> bool:
        """Count datagrams, each of one line or more; whether some now wait to go on.

        Whoever is told so calls again within :data:`DELIVER_SECONDS`, with new ones or with none.
        """
        lines = b"\n".join(packets).split(b"\n") if packets else []
        with self._lock:
            self.figures.packets += len(packets)
            if not self._waiting:
                self._deliver_at = monotonic() + DELIVER_SECONDS
            self._waiting.update(lines)
            self._waiting_lines += len(lines)
            if monotonic() >= self._deliver_at or self._waiting_lines >= DELIVER_LINES:
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
        counted: defaultdict[Cell, defaultdict[RowKey, int]]
        counted = defaultdict(lambda: defaultdict(int))
        for line, times in waiting.items():
            meaning = self._known.get(line) or self._understand(line, times)
            if meaning is None:
                continue
            cell, key, amount = meaning
            self.figures.counted += times
            if cell[0] is OVERFLOW:
                self.figures.overflown += times
            whole, part = divmod(amount * times, UNIT)
            if part:
                whole = self._with_remainder(cell[0], key, amount * times)
            counted[cell][key] += whole
        for (counter, minute), amounts in counted.items():
            at = None if minute is None else datetime.fromtimestamp(minute * 60, UTC)
            plain = {key: amount for key, amount in amounts.items() if isinstance(key, str)}
            if plain:
                self._producer.increment_many(counter, plain, at=at)
            for key, amount in amounts.items():
                if not isinstance(key, str):
                    self._producer.increment(counter, dict(key), amount, at=at)

    def too_long(self, line: bytes) -> None:
        """A line that does not end."""
        with self._lock:
            self._malformed(line, "it is too long", 1)

    def _understand(self, line: bytes, times: int) -> Meaning | None:
        """What a line means that is not remembered; ``None``: nothing that counts."""
        bare = line.strip(_PADDING)
        if not bare:
            return None
        try:
            metric = parse(bare)
            if metric is None:
                self.figures.ignored += times
                return None
            meaning = self._meaning(metric)
        except MalformedMetric as error:
            self._malformed(line, str(error), times)
            return None
        if meaning is None:
            self.figures.discarded += times
        elif len(line) <= REMEMBERED_BYTES and metric.minute is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[line] = meaning
        return meaning

    def _malformed(self, line: bytes, reason: str, times: int) -> None:
        self.figures.malformed += times
        shown = ascii(line[:SHOWN_BYTES])[1:] + ("..." if len(line) > SHOWN_BYTES else "")
        self.log.seldom(
            StatsdAction.MALFORMED,
            f"a line was not counted: {reason}",
            line=shown,
            malformed=self.figures.malformed,
        )

    def _meaning(self, metric: Metric) -> Meaning | None:
        if not -self._most <= metric.amount <= self._most:
            raise MalformedMetric(f"it counts more than {self._most // UNIT:,}")
        if metric.minute is not None:
            self._check_time(metric.minute * 60)
        target = self._rules.target(metric.name, metric.tags)
        if target is None:
            return None
        counter, key = target
        if counter not in self._invented and counter not in self._rules.fixed:
            if len(self._invented) >= self._options.max_counters:
                return (OVERFLOW, metric.minute), "", metric.amount
            self._invented.add(counter)
        return (counter, metric.minute), key, metric.amount

    def _check_time(self, seconds: int) -> None:
        now = time()
        if seconds > now + self._options.max_ahead_s:
            raise MalformedMetric(
                f"its time is more than {self._options.max_ahead_s:,.15g} s ahead"
            )
        days = self._options.max_age_days
        if days and seconds < now - days * DAY_SECONDS:
            raise MalformedMetric(f"its time is more than {days:,} days back")

    def _with_remainder(self, counter: str, key: RowKey, amount: int) -> int:
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


@dataclass(slots=True, kw_only=True)
class Figures:
    """Figures of one listener process since its start: plain whole numbers.

    A *line* is one metric as it came: ``name:value|type``, or several values of one name.
    ``counted + ignored + discarded + malformed`` are all lines.

    Attributes:
        packets: datagrams received, by UDP and unix socket.
        counted: lines that were counters and went to the producer.
        ignored: lines of other types (gauges, timers, sets, histograms, events, checks).
        discarded: lines of counters that a rule of the map drops.
        malformed: lines that are not StatsD, or that ask for what no counter can hold.
        overflown: counted lines that went to the counter ``__overflow__``, since there were too
            many names.
        lost: datagrams that the kernel dropped because its receive buffer was full. Only UDP loses
            any: a sender to a unix socket waits.
        connections: stream connections (TCP, unix) that are open now.
        refused: stream connections that were closed to make room for new ones.
        receive_buffer: bytes of the smallest receive buffer that the kernel has granted; 0 without
            a datagram socket.
        rules: rules in the map that is in use.
    """

    packets: int = 0
    counted: int = 0
    ignored: int = 0
    discarded: int = 0
    malformed: int = 0
    overflown: int = 0
    lost: int = 0
    connections: int = 0
    refused: int = 0
    receive_buffer: int = 0
    rules: int = 0

    @property
    def lines(self) -> int:
        """All lines."""
        return self.counted + self.ignored + self.discarded + self.malformed


class StatsdAction(StrEnum):
    """Every action that a log record of the listener can carry."""

    LISTENING = "listening"
    """Everything is open; ``at`` says what."""
    MAP = "map"
    """The map was read again, or could not be and the one before stays in use."""
    MALFORMED = "malformed"
    """A line could not be understood: the first of them, and then one a minute."""
    LOST = "lost"
    """The kernel has dropped datagrams because its buffer was full."""
    SMALL_BUFFER = "small_buffer"
    """The kernel granted a smaller receive buffer than was asked for."""
    REFUSED = "refused"
    """A connection was closed: too many were open. Or none could be accepted."""
    FAILED = "failed"
    """A socket could not be read; it is tried again."""
    INTERNAL_ERROR = "internal_error"
    """A bug: what had just been received is not counted, and the listener goes on."""
    STOPPING = "stopping"
    """A signal came: what has arrived is still counted."""
    STOPPED = "stopped"
    """Everything is stored, or what is not was said."""
