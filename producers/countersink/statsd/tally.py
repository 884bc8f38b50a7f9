"""The tally (``StatsdTally``), which turns StatsD lines into increments and delivers them to the
producer. It rounds amounts to whole increments and keeps the remainders, checks amounts and times,
and counts names beyond the limit in ``__overflow__``. The module also has the listener's figures
and log actions; ``statsd/__init__.py`` finds the number of lost packets.

A busy client sends the same few lines again and again. So equal lines are first counted together,
by Python's C code; then each distinct line is parsed once, and cached if it is short and has no
time. Lines of datagrams are delivered to the producer :data:`DELIVER_SECONDS` after the first of
them came, lines of streams at once. The producer folds the increments into rows.
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
from countersink.runtime.texts import plural
from countersink.statsd.errors import MalformedMetric
from countersink.statsd.line import UNIT, Metric, parse
from countersink.statsd.options import Rules, StatsdOptions

LOGGER: Final = logging.getLogger("countersink.statsd")
SHOWN_BYTES: Final = 80
"""Most bytes of a malformed line that the log shows."""

OVERFLOW: Final = "__overflow__"
"""The counter that gets the amounts of lines whose names are beyond the limit ``max_counters``."""
_PADDING: Final = b" \t\r\0"
"""Characters that clients put around a line: spaces, tabs, carriage returns, and the zero byte at
the end of strings in C.
"""
REMEMBERED: Final = 50_000
"""Most distinct lines in the cache of parsed lines, which is emptied when it is full."""
REMEMBERED_BYTES: Final = 512
"""Most bytes of a line in the cache of parsed lines."""
REMAINDERS: Final = 10_000
"""Most keys for which the remainder of an increment is kept; then the oldest one is dropped."""
DAY_SECONDS: Final = 86_400.0

DELIVER_SECONDS: Final = 0.02
"""Seconds for which lines of datagrams are collected before they are delivered to the producer."""
DELIVER_LINES: Final = 100_000
"""Most lines that are collected before a delivery, to bound memory. Their number, with the lines of
one more receive, times the largest ``max_amount`` fits into 64 bits.
"""

CounterMinute = tuple[str, int | None]
"""A counter, and the Unix minute of the event, or None for the present time."""
Meaning = tuple[CounterMinute, RowKey, int]
"""The parsed form of a line: counter and minute, key or dimensions, amount in billionths."""


class CountingProducer(Protocol):
    """The methods of a producer that the tally uses."""

    def increment(
        self,
        counter: str,
        key: str | Mapping[str, str],
        amount: int,
        *,
        at: datetime | None = None,
    ) -> None:
        """Add ``amount`` to a key, or to dimensions, of ``counter``. ``at`` is the event's time,
        None for now. See :meth:`countersink.producers.Producer.increment`.
        """

    def increment_many(
        self, counter: str, amounts: dict[str, int], *, at: datetime | None = None
    ) -> None:
        """Add each of ``amounts`` to its key of ``counter``. ``at`` is the time of the events, None
        for now. See :meth:`countersink.producers.Producer.increment_many`.
        """


class StatsdTally:
    """Counts lines and passes them to a producer as increments. Thread-safe.

    Args:
        producer: gets the increments.
        rules: the map from StatsD names to counters and keys.
        options: limits of amounts, counters and times.

    Attributes:
        figures: the listener's figures. The tally's lock protects the numbers of lines and packets.
        log: the listener's log. It limits how often a record that senders can cause is logged.
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
        """Replace the map by ``rules``; lines that wait are delivered by the old map first."""
        with self._lock:
            self._deliver()  # lines that came before are counted by the old map
            self._rules = rules
            self._known.clear()
            self.figures.rules = len(rules.rules)

    def packets(self, packets: Sequence[bytes | bytearray]) -> bool:
        """Count the lines of datagrams. Return True if some lines are not delivered to the producer
        yet. Then the caller must call again within :data:`DELIVER_SECONDS`, with an empty list if
        no datagrams came.

        Args:
            packets: the datagrams, each with one line or more.
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
        """Count lines, given without newlines. Deliver them to the producer immediately, together
        with all lines that wait.
        """
        with self._lock:
            self._waiting.update(lines)
            self._deliver()

    def deliver(self) -> None:
        """Deliver to the producer all lines that wait."""
        with self._lock:
            self._deliver()

    def _deliver(self) -> None:
        waiting, self._waiting, self._waiting_lines = self._waiting, Counter(), 0
        counted: defaultdict[CounterMinute, defaultdict[RowKey, int]]
        counted = defaultdict(lambda: defaultdict(int))
        for line, times in waiting.items():
            meaning = self._known.get(line) or self._meaning_of(line, times)
            if meaning is None:
                continue
            target, key, amount = meaning
            self.figures.counted += times
            if target[0] is OVERFLOW:
                self.figures.overflown += times
            increments, part = divmod(amount * times, UNIT)
            if part:
                increments = self._with_remainder(target[0], key, amount * times)
            counted[target][key] += increments
        for (counter, minute), amounts in counted.items():
            at = None if minute is None else datetime.fromtimestamp(minute * 60, UTC)
            plain = {key: amount for key, amount in amounts.items() if isinstance(key, str)}
            if plain:
                self._producer.increment_many(counter, plain, at=at)
            for key, amount in amounts.items():
                if not isinstance(key, str):
                    self._producer.increment(counter, dict(key), amount, at=at)

    def too_long(self, line: bytes) -> None:
        """Record that a line was not counted because it is too long: in the figure ``malformed``,
        and in the log.
        """
        with self._lock:
            self._malformed(line, "it is too long", 1)

    def _meaning_of(self, line: bytes, times: int) -> Meaning | None:
        """Return the parsed form of a line that is not cached. Return ``None`` for a line that is
        not counted, and add it to the figure ``ignored``, ``discarded`` or ``malformed`` (an empty
        line to none).

        Args:
            line: the line.
            times: how often the line came. This number is added to the figure.
        """
        bare = line.strip(_PADDING)
        if not bare:
            return None
        try:
            metric = parse(bare)
            if metric is None:
                self.figures.ignored += times
                return None
            meaning = self._target_of(metric)
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

    def _target_of(self, metric: Metric) -> Meaning | None:
        if not -self._most <= metric.amount <= self._most:
            raise MalformedMetric(f"its amount is beyond {self._most // UNIT:,}")
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
            raise MalformedMetric(f"its time is more than {plural(days, 'day')} back")

    def _with_remainder(self, counter: str, key: RowKey, amount: int) -> int:
        """Add the key's remainder to ``amount``, both in billionths of an increment. Return the
        sum, rounded to whole increments. The rest, positive or negative, becomes the key's new
        remainder.
        """
        remainders = self._remainders
        amount += remainders.pop((counter, key), 0)
        increments = (amount + UNIT // 2) // UNIT
        if amount != increments * UNIT:
            if len(remainders) >= REMAINDERS:
                del remainders[next(iter(remainders))]  # the oldest: at most half an increment
            remainders[counter, key] = amount - increments * UNIT
        return increments


@dataclass(slots=True, kw_only=True)
class Figures:
    """Figures of one listener process, since its start or at present, all whole numbers.

    A *line* is one metric as it was sent: ``name:value|type``, or several values of one name. The
    number of all lines, without empty ones, is ``counted + ignored + discarded + malformed``.

    Attributes:
        packets: datagrams that came by UDP and unix socket.
        counted: lines that were counters and went to the producer.
        ignored: lines of other types (gauges, timers, sets, histograms, events, checks).
        discarded: lines that the map drops.
        malformed: lines that are not StatsD, or beyond the limits of length, amounts or times.
        overflown: those of the counted lines that went to the counter ``__overflow__``, because
            there were too many names.
        lost: UDP datagrams that the kernel dropped because the receive buffer was full. Senders to
            a unix socket wait instead.
        connections: stream connections (TCP, unix) that are open now.
        refused: stream connections that were closed to make room for new ones.
        receive_buffer: bytes of the smallest receive buffer that the kernel granted to a datagram
            socket; 0 if there is no such socket.
        rules: number of rules in the present map.
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
        """The number of all lines, without empty ones."""
        return self.counted + self.ignored + self.discarded + self.malformed


class StatsdAction(StrEnum):
    """The actions of all log records of the listener."""

    LISTENING = "listening"
    """All sockets are open; ``at`` lists their URLs."""
    MAP = "map"
    """The map was read again; or it is invalid, and the previous map stays in use."""
    MALFORMED = "malformed"
    """A line is malformed; logged at most once a minute."""
    LOST = "lost"
    """The kernel dropped datagrams because a receive buffer was full."""
    SMALL_BUFFER = "small_buffer"
    """The kernel granted a smaller receive buffer than requested."""
    REFUSED = "refused"
    """A connection was closed because too many were open, or could not be accepted."""
    FAILED = "failed"
    """A socket could not be read; the listener tries again."""
    INTERNAL_ERROR = "internal_error"
    """A bug: the lines just received are not counted, and the listener continues."""
    STOPPING = "stopping"
    """A signal came: lines that have arrived are still counted."""
    STOPPED = "stopped"
    """The listener ends. All increments are stored, or the record says that some are lost."""
