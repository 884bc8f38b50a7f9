"""A process as its operators see it: its samples, whether it lives, and whether it is ready."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from countersink.metrics.metric import Sample, Samples
from countersink.metrics.servers import Probes, answering

LIVES_WITHIN_S: Final = 300.0
"""Seconds without a move of the main loop after which a process counts as stuck. Waiting for a
server that is away moves it every few seconds, and a frozen one is given up after its time-out: a
restart would help neither."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a process tells of itself. Everything is asked when somebody asks.

    Attributes:
        process: the command, such as ``worker``.
        samples: its own figures.
        probes: the servers that it uses.
        needs: those of them that it cannot do its part without; None: all.
        moved: when its main loop last moved, on :func:`time.monotonic`; None: it has none that
            could be stuck.
        busy: why it is not ready although its servers answer, such as ``starting``; empty: it is.
    """

    process: str
    samples: Callable[[], Samples]
    probes: Probes = field(default_factory=dict)
    needs: frozenset[str] | None = None
    moved: Callable[[], float] | None = None
    busy: Callable[[], str] = lambda: ""

    def lives(self) -> bool:
        """Whether its main loop moves."""
        return self.moved is None or time.monotonic() - self.moved() < LIVES_WITHIN_S

    def unready(self) -> str:
        """Why it is not ready, in words; empty if it is."""
        needed = {name: each for name, each in self.probes.items() if self._needs(name)}
        return self._unready(answering(needed))

    def everything(self) -> Samples:
        """All samples: those that every process has, and its own."""
        up = answering(self.probes)
        yield Sample("countersink_build_info", 1, {"version": _version(), "process": self.process})
        yield Sample("countersink_ready", float(not self._unready(up)))
        for server, answers in up.items():
            yield Sample("countersink_server_up", float(answers), {"server": server})
        yield from self.samples()

    def _needs(self, server: str) -> bool:
        return self.needs is None or server in self.needs

    def _unready(self, up: Mapping[str, bool]) -> str:
        if not self.lives():
            return "stuck"
        away = [name for name, answers in up.items() if not answers and self._needs(name)]
        return f"{' and '.join(away)} did not answer" if away else self.busy()


@cache
def _version() -> str:
    """Of countersink; empty in a source tree that is not installed."""
    try:
        return version("countersink")
    except PackageNotFoundError:
        return ""
