"""Counting one chunk of a source, in one transaction with the note that it was counted."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from countersink.backfill import chunks, rejects, runs, set_days, sources
from countersink.backfill.chunks import Chunk
from countersink.backfill.contents import Content
from countersink.backfill.formats import Reader
from countersink.backfill.formats.tally import Reject
from countersink.backfill.isolating import IsolatingReader
from countersink.backfill.options import BackfillError
from countersink.backfill.reading import ReadChunk, Start, newlines, read_chunk
from countersink.backfill.runs import Counted, TooManyRejects
from countersink.backfill.sources import Source
from countersink.backfill.targets import Target
from countersink.store import adding, key_caps, overflow, policies, strict
from countersink.store.adding import BadCells
from countersink.store.amounts import Amounts
from countersink.store.connection import Session
from countersink.store.control import read_control
from countersink.store.key_caps import Capped
from countersink.store.policies import Policies

_TOO_LARGE: Final = "a row of the tables would leave 64 bits with it: one of {key!r}"


Result = TypeVar("Result")


class Changed(BackfillError):
    """A source does not hold the bytes any more that were planned."""


class Overtaken(Exception):
    """What was read is not to be counted: another process has counted it, or the policies by which
    it was read are not in force any more."""


class TooManyInChunk(TooManyRejects):
    """With the rejected lines of the chunk that were too many.

    Attributes:
        rejects: they.
    """

    def __init__(self, message: str, rejects: list[Reject]) -> None:
        super().__init__(message)
        self.rejects = rejects


@dataclass(slots=True)
class Task:
    """What the chunks of a run have in common; remembers the policies.

    Attributes:
        run: its number.
        counter: which.
        target: where amounts go.
        max_rejects: more rejected lines than this end the run; None: any number may be.
    """

    run: int
    counter: str
    target: Target
    max_rejects: int | None = None
    _policies: Policies | None = field(default=None, repr=False)

    def policies(self, session: Session) -> Policies:
        """Those that were in force when they were last looked at."""
        if self._policies is None:
            self._policies = policies.load(session)
        return self._policies

    def in_force(self, session: Session) -> Policies:
        """The policies; they stay so until the transaction ends.

        Raises:
            BackfillError: the counter may not be counted by a backfill.
        """
        control = read_control(session)
        found = self._policies
        if found is None or found.version != control.policy_version:
            found = self._policies = policies.load(session)
        refuse(session, found, self.counter)
        return found


def refuse(session: Session, in_force: Policies, counter: str) -> None:
    """Check that a backfill may count a counter.

    Raises:
        BackfillError: it is that of a tracked table, or in strict mode one that nobody has made.
    """
    if counter in in_force.tracked:
        raise BackfillError(
            f"{counter!r} is the row count of a tracked table, and only its triggers count it:"
            f" count under another name, or `countersink untrack {counter}` first"
        )
    if in_force.strict and counter not in in_force.known:
        if not strict.known(session, [counter]):
            raise BackfillError(
                f"no counter is called {counter!r}, and only known ones are counted here:"
                f" `countersink counter set {counter}` makes it"
            )
        in_force.known.add(counter)


def count_planned(
    session: Session, task: Task, source: Source, start_at: int, content: Content, reader: Reader
) -> Counted | None:
    """Count the chunk of ``source`` that begins at ``start_at``, if it is ``pending`` or
    ``undone`` and nobody else is about to; it is the task's run's then. Committed when it returns.

    Args:
        session: at READ COMMITTED, outside a transaction.
        content: of the source, which can be sought in.
        reader: for the source's recipe.

    Returns:
        What it came to; None: it was not to be had.

    Raises:
        Changed: the bytes are not those that were planned.
        RunEnded: the run is not running any more; nothing was counted.
        BackfillError: a reconcile has set days of it; nothing was counted.
        TooManyInChunk: more lines than may be would be rejected in the run; nothing was counted.
        Unreadable: the content cannot be read, or ends before the chunk does.
        Conflict: another transaction was in the way; nothing was done: call it again.
        StoreError: MySQL did not do its part; after Unavailable the outcome is unknown: call it
            again.
    """

    def attempt(reader: Reader) -> Counted | None:
        with session.transaction():
            chunk = chunks.claim(session, source.id, start_at)
            if chunk is None:
                return None
            start = start_of_planned(session, chunk, lock=True)
            known = task.policies(session)
            found = _read_planned(content, reader, chunk, start, task.counter, known)
            # Not locked while reading, which would keep all others who change policies waiting.
            in_force = task.in_force(session)
            if in_force is not known:
                found = _read_planned(content, reader, chunk, start, task.counter, in_force)
            counted = _add(session, task, source, found)
            chunks.update_done(session, chunk, task.run, counted, found.open_rejected)
            _record(session, task, found, counted)
        return counted

    def count(reading: Reader) -> Counted | None:
        return key_caps.with_rows(session, partial(attempt, reading))

    return _isolating(task, reader, count)


def count_next(
    session: Session,
    task: Task,
    source: Source,
    reader: Reader,
    found: ReadChunk,
    head: bytes,
    again: Callable[[Reader], ReadChunk],
) -> Counted:
    """Count what was read of ``source`` behind all of its chunks, as another chunk; committed when
    it returns.

    Args:
        session: at READ COMMITTED, outside a transaction.
        source: as it was looked at before ``found`` was read.
        reader: that has read it.
        head: of the content.
        again: reads it once more, by another reader.

    Raises:
        Overtaken: the source is not any more what it was: maybe it was counted here. Or the
            policies are not those by which it was read.
        RunEnded, BackfillError, TooManyInChunk, Unreadable, Conflict, StoreError: as
            :func:`count_planned`.
    """

    def attempt(found: ReadChunk) -> Counted:
        with session.transaction():
            now = sources.read(session, source.id, lock=True)
            if now is None or replace(now, path=source.path) != source:
                raise Overtaken
            goes_on, start = found.start.goes_on, found.start
            if goes_on and start.part_rejected != chunks.open_rejected(
                session, source.id, start.at, lock=True
            ):
                raise Overtaken  # the chunk before was undone, and counted again
            if task.in_force(session) is not found.in_force:
                raise Overtaken
            counted = _add(session, task, source, found)
            chunks.insert_done(
                session,
                source.id,
                task.run,
                found.span,
                start.reads_from,
                counted,
                found.open_rejected,
            )
            position = source.after(found.span, goes_on=goes_on, head=head)
            sources.advance(session, source.id, position)
            _record(session, task, found, counted)
        return counted

    def count(reading: Reader) -> Counted:
        read = found if reading is reader else again(reading)
        return key_caps.with_rows(session, partial(attempt, read))

    return _isolating(task, reader, count)


def start_of_next(session: Session, source: Source, content: Content) -> Start:
    """Where the next chunk of a source begins.

    Raises:
        Unreadable: the line that it begins in cannot be read.
        StoreError: as any query.
    """
    if source.open_at is None:
        return Start(at=source.read_to, reads_from=source.read_to, first_line=source.lines_to + 1)
    line = source.lines_to - newlines(content, source.open_at, source.read_to)
    return Start(
        at=source.read_to,
        reads_from=source.open_at,
        first_line=line,
        part_rejected=chunks.open_rejected(session, source.id, source.read_to),
    )


def start_of_planned(session: Session, chunk: Chunk, *, lock: bool = False) -> Start:
    """Where a chunk begins that is to be counted.

    Args:
        lock: what became of its neighbours stays so until the transaction ends.
    """
    goes_on = chunk.reads_from < chunk.start_at
    followed = chunks.followed(session, chunk, lock=lock)
    return Start(
        at=chunk.start_at,
        reads_from=chunk.reads_from,
        first_line=chunk.first_line,
        part_rejected=goes_on
        and chunks.open_rejected(session, chunk.source, chunk.start_at, lock=lock),
        open_was=chunk.open_rejected if followed else None,
    )


def amounts_of(counter: str, found: ReadChunk) -> Amounts:
    """What a chunk adds."""
    amounts = Amounts()
    for label, keys in found.amounts.items():
        amounts.bucket(counter, label).update(keys)
    return amounts


def _read_planned(
    content: Content, reader: Reader, chunk: Chunk, start: Start, counter: str, in_force: Policies
) -> ReadChunk:
    found = read_chunk(content, reader, start, counter, in_force, end=chunk.end_at)
    if found is None or found.span.digest != chunk.digest:
        raise Changed(
            f"{content.name} has changed since it was looked at: bytes {chunk.start_at:,} to"
            f" {chunk.end_at:,} are not what they were. Run it again; what was counted of it"
            f" before stays counted, see `countersink backfills list`"
        )
    return found


def _add(session: Session, task: Task, source: Source, found: ReadChunk) -> Counted:
    """Add a chunk, read by the policies in force, and keep its rejected lines."""
    amounts = amounts_of(task.counter, found)
    if not task.target.truth_of:
        changed = [label for label, keys in amounts.of(task.counter).items() if any(keys.values())]
        set_days.refuse(session, found.in_force, task.counter, changed)
    start = found.start
    # What is set to a truth is set, however many keys that makes.
    capped = Capped() if task.target.truth_of else key_caps.cap(session, amounts, found.in_force)
    task.target.add(session, amounts, source.id, start.at)
    if capped.moved:
        overflow.write(session, adding.slot_of(session), capped.cells())
    if start.goes_on:
        # What is rejected of the line now is kept here.
        rejects.take_back(session, source.id, start.first_line, start.reads_from, start.at)
    rejects.insert(session, source.id, start.at, task.run, found.rejects)
    return Counted(
        size_bytes=found.span.end - found.span.start,
        lines=found.lines,
        counted=found.counted,
        filtered=found.filtered,
        rejected=found.rejected,
        rejects=len(found.rejects),
        amount=amounts.sums().get(task.counter, 0),
    )


def _record(session: Session, task: Task, found: ReadChunk, counted: Counted) -> None:
    if task.target.truth_of:
        counted = replace(counted, amount=0)  # nothing is added by reading
    try:
        runs.record(session, task.run, counted, task.max_rejects)
    except TooManyRejects as error:
        raise TooManyInChunk(str(error), found.rejects) from error


def _isolating(task: Task, reader: Reader, count: Callable[[Reader], Result]) -> Result:
    """Count, and where rows would leave 64 bits once more without the lines of their cells."""
    bad: dict[tuple[int, str], str] = {}
    reading = reader
    while True:
        try:
            return count(reading)
        except BadCells as error:
            if all((label, key) in bad for (_, label, key, _), _ in error.cells):
                # What goes on in an unfinished line that was counted before leaves no choice.
                raise BackfillError(f"{error}: run it again, which adds to other rows") from error
            for (_, label, key, _), why in error.cells:
                large = why.reason == "out_of_range"
                bad[label, key] = _TOO_LARGE.format(key=key) if large else str(why)
            reading = IsolatingReader(reader, bad)
