"""The transaction that counts one chunk: writes it down, adds amounts and members, keeps rejected
lines; refuses many lines of another source."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Final

from countersink.backfill import history, rejects
from countersink.backfill.count import chunks, sources, targets
from countersink.backfill.count.chunk_reader import LabelKey, ReadChunk, Refused
from countersink.backfill.count.chunks import Chunk, NumberedLine, too_many
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
    session: Session, ahead: ReadAhead, source: int, found: ReadChunk, behind: bytes
) -> ReadChunk:
    """Count what was read of a source, behind all of its chunks. Committed when it returns.

    Args:
        session: at READ COMMITTED, outside a transaction.
        ahead: has read it.
        source: its number.
        behind: the digest of the chunk that ends where this one begins, as the content has it.

    Returns:
        The chunk as it was counted.

    Raises:
        Overtaken: it is not to be counted any more: maybe another has. Or the settings are not
            those by which it was read.
        SourceDiffers: the source begins in another way by now.
        RunEnded: the run is not running any more; nothing was counted.
        BackfillError: a reconcile has set days of it, or the chunk before it is being taken back;
            nothing was counted.
        TooManyRejects: more lines than may be would be rejected in the run; nothing was counted.
        Conflict: another transaction was in the way; nothing was done: call it again.
        StoreError: MySQL did not do its part; after Unavailable the outcome is unknown: call it
            again.
    """

    def attempt(refused: Refused) -> ReadChunk:
        read = ahead.again(refused) if refused else found
        with session.transaction():
            _count(session, ahead, source, read, behind)
        return read

    try:
        return cells.run_again(session, attempt)
    except RefusedMembers as error:
        raise BackfillError(str(error)) from error


def _count(
    session: Session, ahead: ReadAhead, number: int, found: ReadChunk, behind: bytes
) -> None:
    work, wanted = ahead.work, ahead.at_hand.wanted
    source = sources.read(session, number, lock=True)
    if source is None or source.recipe != wanted.recipe:
        raise Overtaken
    chunk = Chunk.of(number, found.span, work.run)
    if chunk.start_at != source.read_to:
        if chunks.is_there(session, chunk):
            return  # by a COMMIT whose reply was lost
        raise Overtaken
    # Others may have taken back what was there, and counted another content.
    last = chunks.last(session, number)
    if not sources.alike(source.head, wanted.head) or behind != (last.digest if last else b""):
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
    lines = rejects.named(source.path, found.rejects[: rejects.KEPT])
    # Nothing is added to the totals by reading what is true of them.
    added = 0 if work.target.truth_of else counted.amount
    history.record(session, work.run, replace(counted, amount=added))
    # No other chunk of the run is committed meanwhile.
    most = work.options.rejects_allowed
    if lines and history.rejects_of(session, work.run) > most:
        raise TooManyRejects(
            f"more than {most:,} lines were rejected: look at why, then run it again,"
            " which goes on where this stopped",
            found.rejects,
        )
    rejects.keep(session, work.run, lines)


def _refuse_undoing(session: Session, run: int) -> None:
    """Check that the chunk before is not being taken back, which it could not be any more; it stays
    so until the transaction ends.

    Raises:
        BackfillError: it is.
    """
    ask = "SELECT state FROM backfill_run WHERE id = %s LOCK IN SHARE MODE"
    if session.query(ask, (run,)) == [("undoing",)]:
        raise BackfillError(
            f"backfill {run}, which has counted the lines before, is being taken back:"
            f" `countersink backfills undo {run}` goes on with that; then count it again"
        )


def _keep_samples(session: Session, ahead: ReadAhead, source: Source, found: ReadChunk) -> None:
    """Write down by what the lines of a chunk are known again.

    Raises:
        BackfillError: many of them are another source's.
        Conflict: another process counts some of these lines.
    """
    # Its own first: of two at once, one sees the other's, or they wait for each other, and one of
    # them is told so and tries again.
    start_at = found.start.at
    chunks.insert_samples(session, source.id, start_at, found.samples.kept(start_at))
    if not source.count_repeats:
        others = chunks.others_with(session, found.samples.every, source.id, lock=True)
        refuse_repeats(found, ahead, others, partial(path_of, session))


def refuse_repeats(
    found: ReadChunk,
    ahead: ReadAhead,
    others: Mapping[bytes, Collection[int]],
    path: Callable[[int], str],
) -> None:
    """Check that not many lines of a chunk are another source's.

    Args:
        others: sample → the other sources that have the line.
        path: that of another source.

    Raises:
        BackfillError: they are.
    """
    known, compared, sources_of_most = too_many(found.samples, others)
    if not known:
        return
    day = _last_day(ahead, [found.samples.every[one] for one in known])
    until = ahead.at_hand.wanted.recipe.end
    first = found.start.line
    last_line = first + found.counts.lines - 1
    others_named = " and ".join(map(path, sources_of_most[:_NAMED]))
    later = f"`--from {day + ONE_DAY}` counts the days from then on; "
    raise BackfillError(
        f"{len(known):,} of the {compared:,} different lines that were compared are counted"
        f" already, as lines of {others_named}, the last of them of {day}. Lines"
        f" {first:,} to {last_line:,} were not counted; what is counted of others stays."
        f" {later if until is None or day < until else ''}`--count-repeats` counts all lines, as"
        " other events"
    )


def _last_day(ahead: ReadAhead, lines: Sequence[NumberedLine]) -> date:
    """The last day of some lines that count."""
    bucket = ahead.bucket
    return bucket.scheme.local_day(max(bucket.divided(one)[0] for one in ahead.labels(lines)))


def path_of(session: Session, source: int) -> str:
    """Where a source was last, for people."""
    found = sources.read(session, source)
    return "a source that is gone" if found is None else found.path


def _add(session: Session, ahead: ReadAhead, source: Source, found: ReadChunk) -> None:
    """Add a chunk, read by the catalog in force."""
    work, catalog = ahead.work, ahead.catalog
    if ahead.bucket.salts is not None:
        require_unique(catalog, work.counter)
    amounts = BucketAmounts(work.counter, found.amounts, catalog)
    if not work.target.truth_of:
        targets.refuse_set_days(session, work.counter, found.days(ahead.bucket.scheme))
    # What is set to a truth is set, however many keys that makes.
    capped = Capped(catalog) if work.target.truth_of else key_caps.cap(session, amounts, catalog)
    bringing = _bringing(amounts, found, capped)
    members = {place: [found.members[one] for one in some] for place, some in bringing.items()}
    try:
        work.target.add(session, amounts, source.id, found.start.at, members)
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
            place = name, label, capped.key(name, label, own)
            bringing.setdefault(place, []).append((label, key))
    return bringing
