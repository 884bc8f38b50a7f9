"""What a StatsD listener has done so far."""

from dataclasses import dataclass


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
