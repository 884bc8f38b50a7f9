"""A StatsD listener: its sockets, its threads, its end."""

import contextlib
import logging
import os
import socket
from pathlib import Path
from threading import Thread
from typing import Final, Self

from countersink.producers.statsd.datagrams import Datagrams
from countersink.producers.statsd.figures import Figures
from countersink.producers.statsd.journal import Action, Journal
from countersink.producers.statsd.mapping import MapError, Rules, load
from countersink.producers.statsd.options import StatsdOptions, addresses
from countersink.producers.statsd.sockets import (
    CannotListen,
    NetworkSockets,
    lost,
    shown,
    unix_socket,
    widen,
)
from countersink.producers.statsd.streams import Streams
from countersink.producers.statsd.tally import Counts, Tally

DRAIN_SECONDS: Final = 1.0
"""How long a stop goes on receiving at most, should more keep coming."""
JOIN_SECONDS: Final = 2.0
"""How long the end of a thread is waited for."""


class Server:
    """Listens from its making on, until closed; a context manager.

    Args:
        options: what it was told.
        producer: where increments go; its owner closes it, after this.

    Raises:
        MapError: the map cannot be used.
        NotLoopback: see :func:`countersink.producers.statsd.options.addresses`.
        CannotListen: a socket cannot be opened.
    """

    def __init__(self, options: StatsdOptions, producer: Counts) -> None:
        self._options = options
        self._figures = Figures()
        self._journal = Journal()
        self._tally = Tally(
            producer,
            self._figures,
            self._journal,
            self._rules(),
            max_amount=options.max_amount,
            max_counters=options.max_counters,
            max_ahead_s=options.max_ahead_s,
            max_age_days=options.max_age_days,
        )
        self._lost_before = 0
        self._datagrams: list[socket.socket] = []
        self._streams: list[socket.socket] = []
        self._threads: list[Thread] = []
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._widen()
            self._wake, self._stop = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, self._wake)
            self._start()
            self._close_sockets = stack.pop_all()
        self.listening = tuple(shown(each) for each in (*self._datagrams, *self._streams))
        """Where, as ``udp://127.0.0.1:8125``, ``tcp://…``, ``unixgram:///path``, ``unix:///path``.
        """
        self._journal.say(Action.LISTENING, "listening", at=" ".join(self.listening))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def figures(self) -> Figures:
        """The figures now; the same object each time."""
        self._figures.lost = self._lost_before + sum(map(lost, self._datagrams))
        return self._figures

    def reload(self) -> bool:
        """Read the map again; whether it is in use now. One that is wrong is not: the log says
        why.
        """
        try:
            rules = self._rules()
        except MapError as error:
            self._journal.say(
                Action.MAP,
                f"the map stays as it was before: {error}",
                level=logging.ERROR,
            )
            return False
        self._tally.use(rules)
        self._journal.say(Action.MAP, "the map was read again", rules=len(rules.rules))
        return True

    def close(self) -> None:
        """Count what has arrived by now, and stop listening. Idempotent."""
        if self._stop < 0:
            return
        os.close(self._stop)  # its other end becomes readable for all threads
        self._stop = -1
        for thread in self._threads:
            thread.join(DRAIN_SECONDS + JOIN_SECONDS)
        self._lost_before = self.figures.lost
        self._datagrams = []
        self._close_sockets.close()

    # --- opening -----------------------------------------------------------------------------

    def _rules(self) -> Rules:
        return load(Path(self._options.map)) if self._options.map else Rules()

    def _open(self, stack: contextlib.ExitStack) -> None:
        options = self._options
        try:
            found = addresses(options)
        except OSError as error:
            raise CannotListen(f"host {options.host}: {error.strerror}") from error
        if found:
            network = NetworkSockets(found, options.port, udp=options.udp, tcp=options.tcp)
            stack.callback(network.close)
            self._datagrams += network.udp
            self._streams += network.tcp
        for path, kind, into in (
            (options.socket, socket.SOCK_DGRAM, self._datagrams),
            (options.stream_socket, socket.SOCK_STREAM, self._streams),
        ):
            if path:
                into.append(stack.enter_context(unix_socket(path, kind, options.socket_mode)))

    def _widen(self) -> None:
        wanted = self._options.receive_buffer
        granted = [widen(each, wanted) for each in self._datagrams]
        self._figures.receive_buffer = min(granted, default=0)
        if granted and min(granted) < wanted:
            self._journal.say(
                Action.SMALL_BUFFER,
                "the kernel grants a smaller receive buffer than was asked for: bursts may be lost;"
                f" sysctl -w net.core.rmem_max={wanted} lets it be as large",
                level=logging.WARNING,
                asked=wanted,
                granted=min(granted),
            )

    def _start(self) -> None:
        for each in self._datagrams:
            self._threads.append(
                Datagrams(each, self._tally, self._journal, self._wake, DRAIN_SECONDS)
            )
        if self._streams:
            self._threads.append(
                Streams(
                    self._streams,
                    self._tally,
                    self._figures,
                    self._journal,
                    self._wake,
                    DRAIN_SECONDS,
                    self._options.max_connections,
                    self._options.line_timeout_s,
                )
            )
        for thread in self._threads:
            thread.start()
