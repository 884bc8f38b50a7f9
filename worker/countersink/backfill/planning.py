"""Planning: cutting what is new of a source into chunks that are ``pending``.

Whoever has planned a chunk owns it no more than anybody else: it is counted by whoever comes first.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from countersink.backfill import runs, sources
from countersink.backfill.contents import Content
from countersink.backfill.counting import start_of_next
from countersink.backfill.identity import Held, compare
from countersink.backfill.reading import Start
from countersink.backfill.runs import Counted
from countersink.backfill.sources import Source
from countersink.backfill.spans import Span, measure
from countersink.backfill.work import Work
from countersink.store.connection import Session

PLAN_S: Final = 0.3
"""Seconds that one step takes, about."""


class Planner:
    """Plans one source. Others may plan it, or read on in it, beside this.

    Args:
        work: whose source it is.
        content: of the source, a plain file.
        source: its number.
        held_to: up to where the content is known to hold the source's chunks.
        head: of the content.
        quoted: its records are CSV's.

    Attributes:
        to: up to where there are chunks that the content holds.
        finished: there is nothing more to be planned of this content.
    """

    def __init__(
        self, work: Work, content: Content, source: int, held_to: int, head: bytes, *, quoted: bool
    ) -> None:
        self._work = work
        self._content = content
        self._source = source
        self._head = head
        self._quoted = quoted
        self.to = held_to
        self.finished = False

    def take_over(self) -> None:
        """Make what others have planned and not counted, or undone, this run's.

        Raises:
            RunEnded: this run must not count any more.
            StoreError: as any transaction.
        """
        self._work.link.run(self._take_over)

    def step(self) -> None:
        """Plan for a moment.

        Raises:
            RunEnded: this run must not count any more.
            Unreadable: the content cannot be read.
            StoreError: as any transaction.
        """
        link = self._work.link
        source = link.run(partial(sources.read, source=self._source))
        if source is None or source.recipe != self._work.options.recipe:
            self.finished = True  # it is gone, or begun anew: others have to look again
            return
        if source.read_to != self.to and not self._verified(source):
            self.finished = True
            return
        start = link.run(partial(start_of_next, source=source, content=self._content))
        spans = self._measured(start)
        if not spans:
            return
        written: bool = link.run(partial(self._insert, source=source, start=start, spans=spans))
        if written:
            self.to = spans[-1].end
        else:
            self.finished = False  # somebody was faster: what is there now decides

    def _measured(self, start: Start) -> list[Span]:
        """The spans that follow, as many as a moment allows."""
        spans: list[Span] = []
        until = time.monotonic() + PLAN_S
        while not self.finished and time.monotonic() < until and not self._work.stop():
            span = measure(
                self._content,
                start.at,
                start.first_line,
                quoted=self._quoted,
                reads_from=start.reads_from,
                max_lines=self._work.pace.max_lines,
            )
            if span is None:
                self.finished = True
                break
            spans.append(span)
            self.finished = span.open_at is not None
            start = Start(at=span.end, reads_from=span.end, first_line=span.next_line)
        return spans

    def _verified(self, source: Source) -> bool:
        """Whether the content holds what others have read on in the source."""
        if source.read_to < self.to:
            return False
        held: Held = self._work.link.run(
            partial(
                compare,
                content=self._content,
                source=source,
                head=self._head,
                start_at=self.to,
                looking=self._work.watch.look,
            )
        )
        self.to = held.to
        return held.verdict == "same"

    def _take_over(self, session: Session) -> None:
        with session.transaction():
            sources.read(session, self._source, lock=True)
            found = session.query(
                "SELECT start_at FROM backfill_chunk WHERE source = %s AND end_at <= %s"
                " AND state IN ('pending', 'undone') ORDER BY start_at FOR UPDATE SKIP LOCKED",
                (self._source, self.to),
            )
            for (start_at,) in found:
                session.execute(
                    "UPDATE backfill_chunk SET run = %s, state = 'pending'"
                    " WHERE source = %s AND start_at = %s",
                    (self._work.task.run, self._source, start_at),
                )
            self._hold_run(session)

    def _insert(
        self, session: Session, source: Source, start: Start, spans: Sequence[Span]
    ) -> bool:
        """Make chunks of spans, unless somebody was faster."""
        with session.transaction():
            now = sources.read(session, source.id, lock=True)
            if now is None or replace(now, path=source.path) != source:
                return False
            for span in spans:
                goes_on = start.goes_on and span is spans[0]
                self._insert_one(session, span, start.reads_from if goes_on else span.start)
                position = now.after(span, goes_on=goes_on, head=self._head)
                now = replace(now, **asdict(position))
            sources.advance(session, source.id, position)
            self._hold_run(session)
        return True

    def _insert_one(self, session: Session, span: Span, reads_from: int) -> None:
        session.execute(
            "INSERT INTO backfill_chunk (source, start_at, end_at, reads_from, first_line, digest,"
            " state, run) VALUES (%s, %s, %s, %s, %s, %s, 'pending', %s)",
            (
                self._source,
                span.start,
                span.end,
                reads_from,
                span.first_line,
                span.digest,
                self._work.task.run,
            ),
        )

    def _hold_run(self, session: Session) -> None:
        """See that the run still counts, until the transaction ends; nothing of an undone run must
        be planned.
        """
        runs.record(session, self._work.task.run, Counted(), None)
