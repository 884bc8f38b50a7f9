"""Starting again what has died, with growing pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from countersink.cli.servers.errors import ServerError

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
STEADY_AFTER = 60.0
"""Seconds of running after which earlier deaths no longer count."""


class Part(Protocol):
    """A server or a worker that `up` has started."""

    @property
    def name(self) -> str: ...
    @property
    def running(self) -> bool: ...
    def how_it_ended(self) -> str: ...
    def start(self) -> object: ...


@dataclass(slots=True)
class _Record:
    part: Part
    started: float
    deaths: int = 0
    due: float | None = None
    """When to start it again; None while it runs. Seconds of the keeper's clock."""


class Keeper:
    """Looks after parts that run now; call `look` again and again."""

    def __init__(
        self,
        parts: Sequence[Part],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._clock = clock
        self._records = [_Record(part, clock()) for part in parts]

    def look(self) -> None:
        """Note what has died since the last look, and start what is due. Never raises for these."""
        for record in self._records:
            if record.due is None:
                if not record.part.running:
                    self._note_death(record, record.part.how_it_ended())
            elif self._clock() >= record.due:
                self._start(record)

    def _note_death(self, record: _Record, how: str) -> None:
        if self._clock() - record.started >= STEADY_AFTER:
            record.deaths = 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**record.deaths)
        record.deaths += 1
        record.due = self._clock() + pause
        self._say(f"the {record.part.name} {how}; starting it again in {pause:g} s")

    def _start(self, record: _Record) -> None:
        record.started = self._clock()
        try:
            record.part.start()
        except (ServerError, OSError) as failure:
            self._note_death(record, f"did not start ({failure})")
        else:
            record.due = None
            self._say(f"the {record.part.name} runs again")
