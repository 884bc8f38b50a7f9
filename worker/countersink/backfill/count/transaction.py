"""``count_chunk`` counts one chunk in one transaction: it inserts the chunk, adds amounts and
hashes of visitors, and stores rejected lines. It refuses a chunk with many lines that another
source has."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Final

from countersink.backfill import history, rejects
from countersink.backfill.count import chunks, sources, targets
from countersink.backfill.count.chunk_reader import LabelKey, ReadChunk, Refused
from countersink.backfill.count.chunks import Chunk, NumberedLine, find_repeats
from countersink.backfill.count.read_ahead import ReadAhead
from countersink.backfill.count.sources import Source
from countersink.backfill.count.task import require_unique, salts_of
from countersink.backfill.errors import BackfillError, Overtaken, SourceDiffers, TooManyRejects
from countersink.counting.apply import cells, key_caps
from countersink.counting.apply.amounts import BucketAmounts
from countersink.counting.apply.key_caps import Capped
from countersink.counting.counters.buckets import ONE_DAY
from countersink.counting.errors import RefusedMembers
from countersink.counting.visitors.rows import CellPlace
from countersink.database.session import Session
from countersink.runtime.dead_letter import DeadReason

_NAMED: Final = 3


def count_chunk(
    session: Session, ahead: ReadAhead, source: int, found: ReadChunk, before: bytes
) -> ReadChunk:
    """Count a chunk, which must follow the counted chunks of its source; committed on return. If an
    earlier call, whose reply was lost, has committed the chunk, it is not counted again.

    Args:
        session: session at READ COMMITTED, outside a transaction.
        ahead: the reader that has read the chunk.
        source: number of the source.
        found: the chunk as it was read.
        before: digest of the chunk before this one, as it is in the content; empty for the first
            chunk. If the last chunk in the table has another digest, SourceDiffers is raised.

    Returns:
        The chunk as it was counted. It was read again if lines had to be rejected because of their
            visitors.

    Raises:
        Overtaken: another process has counted the chunk, undone the chunk before, or deleted the
            source or changed its recipe; or the catalog or the salts by which the chunk was read
            have changed. Nothing was counted.
        SourceDiffers: the head or the last chunk in the tables does not match the content; nothing
            was counted.
        RunEnded: the run has ended; nothing was counted.
        BackfillError: other sources have many lines of the chunk, a reconcile has set days to which
            it would be added, the chunk before is being undone, the counter must not be counted any
            more, or visitors cannot be counted; nothing was counted.
        TooManyRejects: too many lines of the run would be rejected; nothing was counted.
        Conflict: another transaction holds rows; nothing was counted: call it again.
        StoreError: MySQL failed; after Unavailable the outcome is unknown: call it again.
    """

    def attempt(refused: Refused) -> ReadChunk:
        read = ahead.read_again(refused) if refused else found
        with session.transaction():
            return _count(session, ahead, source, read, before)

    try:
        return cells.run_again(session, attempt)
    except RefusedMembers as error:
        raise BackfillError(str(error)) from error


def _count(
    session: Session, ahead: ReadAhead, number: int, found: ReadChunk, before: bytes
) -> ReadChunk:
    work, wanted = ahead.work, ahead.opened.wanted
    source = sources.read(session, number, lock=True)
    if source is None or source.recipe != wanted.recipe:
        raise Overtaken
    chunk = Chunk.of_span(number, found.span, work.run)
    if chunk.start_at != source.read_to:
        if chunks.exists(session, chunk):
            return ahead.latest or found  # committed before; the reply was lost
        raise Overtaken
    # An undo may have removed chunks, and another content been counted instead.
    last = chunks.read_last(session, number)
    expected = last.digest if last is not None else b""
    if not sources.heads_match(source.head, wanted.head) or before != expected:
        raise SourceDiffers
    if last is not None and last.run != work.run:
        _refuse_undoing(session, last.run)
    sources.save(session, source.after(chunk, wanted.head))
    if work.locked_catalog(session) is not ahead.catalog:
        raise Overtaken
    if salts_of(session, wanted.recipe, work.counter) != ahead.bucket.salts:
        raise Overtaken
    counted = found.counts
    chunks.insert(session, chunk, counted)
    _keep_samples(session, ahead, source, found)
    _add(session, ahead, source, found)
    lines = rejects.rejected_lines(source.path, found.rejects[: rejects.KEPT])
    # A reconcile adds nothing to the totals while it reads.
    added = 0 if work.target.truth_of else counted.amount
    history.record(session, work.run, replace(counted, amount=added))
    # No other chunk of the run is committed meanwhile.
    most = work.options.rejects_allowed
    if lines and history.rejects_of(session, work.run) > most:
        raise TooManyRejects(
            f"the limit of rejected lines ({most:,}) is exceeded: find out why, then run this again"
            " to continue",
            found.rejects,
        )
    rejects.store_first(session, work.run, lines)
    return found


def _refuse_undoing(session: Session, run: int) -> None:
    """Check that ``run``, which has counted the previous chunk of the source, is not being undone.
    Lock its row, so that no undo of it begins before the transaction ends. An undo can remove only
    the last chunk of a source, so it could not remove the previous chunk after this transaction.

    Raises:
        BackfillError: the run is being undone.
    """
    ask = "SELECT state FROM backfill_run WHERE id = %s LOCK IN SHARE MODE"
    if session.query(ask, (run,)) == [("undoing",)]:
        raise BackfillError(
            f"backfill {run}, which counted the lines before, is being undone: run `countersink"
            f" backfills undo {run}` to finish that, then count this source again"
        )


def _keep_samples(session: Session, ahead: ReadAhead, source: Source, found: ReadChunk) -> None:
    """Insert the samples (hashes of lines) of a chunk. Then check that no other source has many of
    its lines; a source with ``count_repeats`` is not checked.

    Raises:
        BackfillError: another source has many of its lines.
        Conflict: another process is counting some of these lines.
    """
    # Insert before comparing: of two concurrent transactions one reads the other's samples, or
    # they deadlock, and one of them is rolled back and repeated.
    start_at = found.start.offset
    chunks.insert_samples(session, source.id, start_at, found.samples.kept(start_at))
    if not source.count_repeats:
        others = chunks.find_other_sources(session, found.samples.every, source.id, lock=True)
        refuse_repeats(found, ahead, others, partial(path_of, session))


def refuse_repeats(
    found: ReadChunk,
    ahead: ReadAhead,
    others: Mapping[bytes, Collection[int]],
    path: Callable[[int], str],
) -> None:
    """Check that no other source has many lines of a chunk. ``find_repeats`` decides how many are
    too many.

    Args:
        found: the chunk.
        ahead: the reader that has read the chunk.
        others: sample of a line → numbers of the other sources that have the line.
        path: function that returns the path of a source by its number.

    Raises:
        BackfillError: other sources have many lines of the chunk.
    """
    known, compared, sources_of_most = find_repeats(found.samples, others)
    if not known:
        return
    day = _last_day(ahead, [found.samples.every[one] for one in known])
    until, first = ahead.opened.wanted.recipe.end, found.start.line + bool(found.start.newline)
    others_named = " and ".join(map(path, sources_of_most[:_NAMED]))
    later = f"`--from {day + ONE_DAY}` counts the days from then on; "
    raise BackfillError(
        f"{len(known):,} of the {compared:,} different lines that were compared are counted"
        f" already, as lines of {others_named}; the last of these is of {day}. Lines"
        f" {first:,} to {found.span.next_line - 1:,} were not counted; lines that were"
        " counted before stay counted."
        f" {later if until is None or day < until else ''}`--count-repeats` counts these lines"
        " again, as other events"
    )


def _last_day(ahead: ReadAhead, lines: Sequence[NumberedLine]) -> date:
    """Return the last day on which ``lines`` have events, for the advice in an error. The recipe
    must count all these lines.
    """
    bucket = ahead.bucket
    return bucket.scheme.local_day(max(bucket.decode(one)[0] for one in ahead.labels(lines)))


def path_of(session: Session, source: int) -> str:
    """Return the path of a source, as text for users; ``a deleted source`` if it has no row."""
    found = sources.read(session, source)
    return "a deleted source" if found is None else found.path


def _add(session: Session, ahead: ReadAhead, source: Source, found: ReadChunk) -> None:
    """Add the amounts and visitors of a chunk to the target of the run. If this is the counter, the
    amounts of keys beyond its cap go to the overflow key. If it is the sums of a reconcile, no cap
    applies. The chunk must have been read with the current version of the catalog.

    Raises:
        RefusedMembers: the visitors of some lines cannot be counted; the exception has the labels
            and keys of these lines.
        BackfillError: an earlier reconcile has set days of a chunk that is to be added to the
            counter; the counter does not count different visitors; or this installation lacks the
            library to count them.
    """
    work, catalog = ahead.work, ahead.catalog
    if ahead.bucket.salts is not None:
        require_unique(catalog, work.counter)
    amounts = BucketAmounts(work.counter, found.amounts, catalog)
    if not work.target.truth_of:
        targets.refuse_set_days(session, work.counter, found.days(ahead.bucket.scheme))
    # A reconcile sets all keys of its sources, without the cap on keys.
    caps = catalog.capped and not work.target.truth_of
    capped = key_caps.cap(session, amounts, catalog) if caps else Capped()
    lines = _lines_of_cells(amounts, found, capped)
    members = {place: [found.members[one] for one in some] for place, some in lines.items()}
    try:
        work.target.add(session, amounts, source.id, found.start.offset, members)
    except RefusedMembers as error:
        for why in error.refused.values():
            if why.reason == DeadReason.NO_SKETCHES:
                raise BackfillError(why.detail) from error
        raise RefusedMembers(
            {one: why for place, why in error.refused.items() for one in lines[place]}
        ) from error


def _lines_of_cells(
    amounts: BucketAmounts, found: ReadChunk, capped: Capped
) -> Mapping[CellPlace, Sequence[LabelKey]]:
    """Return a map from each cell to the (label, key) pairs of the lines whose visitors are counted
    in this cell. Cells of breakdowns and of the overflow key are included. Lines without visitors
    are left out. ``capped`` has the keys whose amounts were moved to the overflow key.
    """
    lines: dict[CellPlace, list[LabelKey]] = {}
    for label, key in found.members:
        for name, cell_key in amounts.cells_of(label, key):
            place = name, label, capped.key(name, label, cell_key)
            lines.setdefault(place, []).append((label, key))
    return lines
