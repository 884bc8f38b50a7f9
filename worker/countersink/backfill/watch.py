"""Saying how far a backfill is, a few times a second."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from countersink.backfill.contents import Content
from countersink.backfill.inputs import Input
from countersink.backfill.options import Progress
from countersink.backfill.runs import Counted

INTERVAL: Final = 0.2
"""Seconds between two reports."""


class Watch:
    """Knows how far the sources are read, and says so.

    Args:
        on_progress: told.
        sources: all that are read.
    """

    def __init__(self, on_progress: Callable[[Progress], object], sources: Sequence[Input]) -> None:
        self._on_progress = on_progress
        sizes = [source.size for source in sources]
        self._size = None if None in sizes else sum(size or 0 for size in sizes)
        self._before = 0
        self._source = ""
        self._own_size = 0
        self._content: Content | None = None
        self._counted = Counted()
        self._said = 0.0

    def begin(self, source: Input, content: Content) -> None:
        """A source is opened."""
        self._source = source.name
        self._own_size = source.size or 0
        self._content = content
        self.say()

    def add(self, counted: Counted) -> None:
        """Some of it is counted."""
        self._counted += counted
        self.look()

    def look(self) -> None:
        """Say how far it is, unless that was said a moment ago."""
        if time.monotonic() - self._said >= INTERVAL:
            self.say()

    def say(self, *, jobs: int = 0) -> None:
        """Say how far it is."""
        self._said = time.monotonic()
        self._on_progress(self.progress(jobs=jobs))

    def progress(self, *, jobs: int = 0) -> Progress:
        """How far it is."""
        within = 0 if self._content is None else self._content.position
        done = self._before + within
        return Progress(
            doing="reading",
            source=self._source,
            done=done if self._size is None else min(done, self._size),
            size=self._size,
            lines=self._counted.lines,
            counted=self._counted.counted,
            filtered=self._counted.filtered,
            rejected=self._counted.rejected,
            jobs=jobs,
        )

    def finish(self) -> None:
        """The source is done with."""
        content, self._content = self._content, None
        self._before += self._own_size or (0 if content is None else content.position)
        self.say()
