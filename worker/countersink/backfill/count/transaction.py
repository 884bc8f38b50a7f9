"""The transaction that counts one chunk: claims or appends it, adds amounts and members, keeps
rejected lines; refuses many lines of another source, and a file that has changed since it was
planned."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Final, TypeVar

from countersink.backfill import rejects, run_state
from countersink.backfill.count import chunks, sources, targets
from countersink.backfill.count.chunk_reader import (
    LabelKey,
    MinuteLabels,
    ReadChunk,
    Refused,
    Start,
    newlines,
    read_chunk,
)
from countersink.backfill.count.chunks import Chunk
from countersink.backfill.count.samples import scope_of, too_many
from countersink.backfill.count.sources import Source
from countersink.backfill.count.task import Task, require_unique, salts_of
from countersink.backfill.errors import (
    BackfillError,
    Overtaken,
    RepeatedLines,
    SourceChanged,
    TooManyRejects,
)
from countersink.backfill.formats import Reader
from countersink.backfill.input.content import Content
from countersink.backfill.input.spans import Span
from countersink.backfill.run_state import LineCounts
from countersink.runtime.dead_letter import DeadReason
from countersink.store.apply import cells, key_caps
from countersink.store.apply.amounts import BucketAmounts
from countersink.store.apply.key_caps import OVERFLOW, Capped
from countersink.store.connection import Session
from countersink.store.counters.buckets import ONE_DAY
from countersink.store.counters.catalog import Catalog
from countersink.store.errors import RefusedMembers
from countersink.store.visitors.rows import CellPlace

_NAMED: Final = 3

Result = TypeVar("Result")


def count_planned(
    session: Session, task: Task, source: Source, start_at: int, content: Content, reader: Reader
) -> LineCounts | None:
    """Count the chunk of ``source`` that begins at ``start_at``, if it is ``pending`` or
    ``undone`` and nobody else is about to; it is the task's run's then. Committed when it returns.

    Args:
        session: at READ COMMITTED, outside a transaction.
        content: of the source, which can be sought in.
        reader: for the source's recipe.

    Returns:
        What it came to; None: it was not to be had.

    Raises:
        SourceChanged: the bytes are not those that were planned.
        RunEnded: the run is not running any more; nothing was counted.
        BackfillError: a reconcile has set days of it; nothing was counted.
        TooManyRejects: more lines than may be would be rejected in the run; nothing was counted.
        Unreadable: the content cannot be read, or ends before the chunk does.
        Conflict: another transaction was in the way; nothing was done: call it again.
        StoreError: MySQL did not do its part; after Unavailable the outcome is unknown: call it
            again.
    """

    def attempt(refused: Refused) -> LineCounts | None:
        with session.transaction():
            chunk = chunks.claim(session, source.id, start_at)
            if chunk is None:
                return None
            start = start_of_planned(session, chunk, lock=True)
            known = task.catalog(session)

            def read(catalog: Catalog) -> ReadChunk:
                found = read_chunk(
                    content,
                    reader,
                    start,
                    catalog,
                    task.scheme(catalog),
                    end=chunk.end_at,
                    scope=_scope(source),
                    refused=refused,
                    salts=salts_of(session, source.recipe, task.counter),
                )
                if found is None or found.span.digest != chunk.digest:
                    raise SourceChanged(
                        f"{content.name} has changed since it was looked at: bytes"
                        f" {chunk.start_at:,} to {chunk.end_at:,} are not what they were. Run it"
                        " again; what was counted of it before stays counted, see `countersink"
                        " backfills list`"
                    )
                return found

            found = read(known)
            # Not locked while reading, which would keep all others who change it waiting.
            catalog = task.locked_catalog(session)
            if catalog is not known:
                found = read(catalog)
            return _count(session, task, source, found)

    return _isolating(session, attempt)


def count_next(
    session: Session,
    task: Task,
    source: Source,
    found: ReadChunk,
    head: bytes,
    again: Callable[[Refused], ReadChunk],
) -> LineCounts:
    """Plan what was read of ``source`` behind all of its chunks as another chunk, and count it, in
    one transaction; committed when it returns.

    Args:
        session: at READ COMMITTED, outside a transaction.
        source: as it was looked at before ``found`` was read.
        head: of the content.
        again: reads it once more, and rejects the lines of some cells.

    Raises:
        Overtaken: the source is not any more what it was: maybe it was counted here. Or the
            catalog is not that by which it was read.
        RunEnded, BackfillError, TooManyRejects, Unreadable, Conflict, StoreError: as
            :func:`count_planned`.
    """

    def attempt(refused: Refused) -> LineCounts:
        read = again(refused) if refused else found
        start = read.start
        with session.transaction():
            if not plan(session, task.run, source, start, [read.span], head):
                raise Overtaken
            if start.goes_on and start.part_rejected != chunks.open_rejected(
                session, source.id, start.at, lock=True
            ):
                raise Overtaken  # the chunk before was undone, and counted again
            if task.locked_catalog(session) is not read.catalog:
                raise Overtaken
            return _count(session, task, source, read)

    return _isolating(session, attempt)


def plan(
    session: Session, run: int, source: Source, start: Start, spans: Sequence[Span], head: bytes
) -> bool:
    """Make spans chunks of a source, which follow those that it has, in the caller's transaction.

    Args:
        run: that plans them.
        source: as it was looked at before the spans were read.
        start: of the first span.
        head: of the content.

    Returns:
        Whether it was done: somebody else may have read on in the source meanwhile.
    """
    now = sources.read(session, source.id, lock=True)
    if now is None or replace(now, path=source.path) != source:
        return False
    for span in spans:
        goes_on = start.goes_on and span is spans[0]
        chunks.insert(session, source.id, run, span, start.reads_from if goes_on else span.start)
        now = now.after(span, goes_on=goes_on, head=head)
    sources.advance(session, now)
    return True


def _count(session: Session, task: Task, source: Source, found: ReadChunk) -> LineCounts:
    """Count a chunk that is planned, and note that it is counted."""
    _keep_samples(session, source, found)
    _add(session, task, source, found)
    counted = found.counts
    lines = rejects.named(source.path, found.rejects)
    if task.spool is not None:
        task.spool.add(source.id, found.start.at, lines)
    chunks.update_done(session, source.id, found.start.at, task.run, counted, found.open_rejected)
    # Nothing is added to the totals by reading what is true of them.
    added = 0 if task.target.truth_of else counted.amount
    run_state.record(session, task.run, replace(counted, amount=added))
    # No other chunk of the run is committed meanwhile.
    if lines and run_state.rejects_of(session, task.run) > task.max_rejects:
        raise TooManyRejects(
            f"more than {task.max_rejects:,} lines were rejected: look at why, then run it again,"
            " which goes on where this stopped",
            found.rejects,
        )
    rejects.keep(session, task.run, lines)
    return counted


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


def _scope(source: Source) -> bytes:
    return scope_of(source.counter, source.truth_of, source.name)


def _keep_samples(session: Session, source: Source, found: ReadChunk) -> None:
    """Write down by what the lines of a chunk are known again.

    Raises:
        RepeatedLines: many of them are another source's.
        Conflict: another process counts some of these lines.
    """
    # Its own first: of two at once, one sees the other's, or they wait for each other, and one of
    # them is told so and tries again.
    chunks.insert_samples(session, source.id, found.start.at, found.kept_samples())
    if not source.count_repeats:
        others = chunks.others_with(session, found.samples.every, source.id, lock=True)
        refuse_repeats(found, others, source.recipe.end, partial(path_of, session))


def refuse_repeats(
    found: ReadChunk,
    others: Mapping[bytes, Collection[int]],
    until: date | None,
    path: Callable[[int], str],
) -> None:
    """Check that not many lines of a chunk are another source's.

    Args:
        others: sample → the other sources that have the line.
        until: the last day that is asked for; None: all are.
        path: that of another source.

    Raises:
        RepeatedLines: they are.
    """
    known, sources_of_most = too_many(found.samples, others)
    if not known:
        return
    labels = MinuteLabels(found.scheme, found.salts)
    last = max(labels.divided(number)[0] for number in found.samples.labels(known))
    day = found.scheme.local_day(last)
    first = found.start.first_line
    last_line = first + found.counts.lines - 1
    others_named = " and ".join(map(path, sources_of_most[:_NAMED]))
    later = f"`--from {day + ONE_DAY}` counts the days from then on; "
    raise RepeatedLines(
        f"{len(known):,} of the {len(found.samples.every):,} different lines that were compared are"
        f" counted already, as lines of {others_named}, the last of them of {day}. Lines"
        f" {first:,} to {last_line:,} were not counted; what is counted of others stays."
        f" {later if until is None or day < until else ''}`--count-repeats` counts all lines, as"
        " other events"
    )


def path_of(session: Session, source: int) -> str:
    """Where a source was last, for people."""
    found = sources.read(session, source)
    return "a source that is gone" if found is None else found.path


def _add(session: Session, task: Task, source: Source, found: ReadChunk) -> None:
    """Add a chunk, read by the catalog in force."""
    if found.salts is not None:
        require_unique(found.catalog, task.counter)
    amounts = BucketAmounts(task.counter, found.amounts, found.catalog)
    if not task.target.truth_of:
        targets.refuse_set_days(session, task.counter, found.days())
    start = found.start
    # What is set to a truth is set, however many keys that makes.
    capped = Capped() if task.target.truth_of else key_caps.cap(session, amounts, found.catalog)
    bringing = _bringing(amounts, found, capped)
    members = {place: [found.members[one] for one in some] for place, some in bringing.items()}
    try:
        task.target.add(session, amounts, source.id, start.at, members)
    except RefusedMembers as error:
        for why in error.refused.values():
            if why.reason == DeadReason.NO_SKETCHES:
                raise BackfillError(why.detail) from error
        raise RefusedMembers(
            {one: why for place, why in error.refused.items() for one in bringing[place]}
        ) from error


def _bringing(
    amounts: BucketAmounts, found: ReadChunk, capped: Capped
) -> Mapping[CellPlace, Sequence[LabelKey]]:
    """Under what the lines of a chunk with members are counted, by the cells that they go to."""
    bringing: dict[CellPlace, list[LabelKey]] = {}
    for label, key in found.members:
        for name, own in amounts.cells_of(label, key):
            over = own in capped.moved.get((name, label), ())
            place = name, label, OVERFLOW if over else own
            bringing.setdefault(place, []).append((label, key))
    return bringing


def _isolating(session: Session, attempt: Callable[[Refused], Result]) -> Result:
    """Count in a transaction, and where members cannot be united once more without their lines."""
    try:
        return cells.run_again(session, attempt)
    except RefusedMembers as error:
        # What goes on in an unfinished line that was counted before leaves no choice.
        raise BackfillError(str(error)) from error
