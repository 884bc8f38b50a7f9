"""Settling which source a content is, or that it is a new one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from countersink.backfill import chunks, sources
from countersink.backfill.contents import Content
from countersink.backfill.head import Head, alike
from countersink.backfill.identity import Held, compare
from countersink.backfill.options import BackfillError
from countersink.backfill.recipe import Recipe
from countersink.backfill.sources import Source
from countersink.store.connection import Session
from countersink.store.rerun import rerun


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a content is to be.

    Attributes:
        counter, truth_of, name, recipe, path: as of :class:`~countersink.backfill.sources.Source`.
    """

    counter: str
    truth_of: int
    name: str
    recipe: Recipe
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found of a content.

    Attributes:
        held: the source that it is, and how much it holds of it; None: it is a new one.
        compared: all sources that it was compared with.
        notice: for people, '' mostly.
    """

    held: Held | None
    compared: frozenset[int]
    notice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Which source a content is.

    Attributes:
        source: its number.
        to: up to where the content is known to be that source's.
        head: of the content.
        ended: the content ends there, and more of the source is known: it is an older copy.
        notice: for people, '' mostly.
    """

    source: int
    to: int
    head: bytes
    ended: bool = False
    notice: str = ""


def settle(
    session: Session,
    content: Content,
    head: Head,
    wanted: Wanted,
    *,
    looking: Callable[[], object] = lambda: None,
) -> Settled:
    """Settle it; committed when it returns. May be run again.

    Raises:
        BackfillError: it must not be counted; the message says why, and what to do.
        Unreadable: the content cannot be read as far as it is known.
        StoreError: as any transaction.
    """
    while True:
        found = find(session, content, head, wanted, looking=looking)
        settled = rerun(partial(_write_down, session, head, wanted, found))
        if settled is not None:
            return settled


def find(
    session: Session,
    content: Content,
    head: Head,
    wanted: Wanted,
    *,
    looking: Callable[[], object] = lambda: None,
) -> Found:
    """Look which source it is, and change nothing.

    Raises:
        As :func:`settle`.
    """
    own = [
        compare(session, content, source, head.known, looking=looking)
        for source in _alike(session, head, wanted)
    ]
    held = _chosen(own)
    if held is None and (short := [one for one in own if one.verdict == "short"]):
        raise BackfillError(too_short(short[0].source.path))
    return Found(
        held=held,
        compared=frozenset(one.source.id for one in own),
        notice=_notice(own) if held is None else "",
    )


def _chosen(own: Sequence[Held]) -> Held | None:
    """The source that it is: at most one of those that something was read of can be."""
    for one in own:
        if one.verdict == "same" and one.source.read_to:
            return one
    for one in own:
        if one.verdict == "older":
            return one
    if any(one.verdict == "short" for one in own):
        return None
    return next((one for one in own if one.verdict == "same"), None)


def _alike(session: Session, head: Head, wanted: Wanted) -> list[Source]:
    return sources.alike(session, wanted.counter, wanted.truth_of, wanted.name, head.known)


def _write_down(session: Session, head: Head, wanted: Wanted, found: Found) -> Settled | None:
    """Write down what was found, unless somebody was faster; then None: look again."""
    with session.transaction():
        if found.held is None:
            sources.hold_counter(session, wanted.counter)
            now = _alike(session, head, wanted)
            if not {one.id for one in now} <= found.compared:
                return None
            number = sources.insert(
                session,
                counter=wanted.counter,
                truth_of=wanted.truth_of,
                name=wanted.name,
                head=head.known,
                recipe=wanted.recipe,
                path=wanted.path,
            )
            return Settled(source=number, to=0, head=head.known, notice=found.notice)
        held = found.held
        source = sources.read(session, held.source.id, lock=True)
        if source is None or not alike(source.head, head.known):
            return None
        ended = held.verdict == "older"
        if not ended:
            sources.moved(session, source, wanted.path)
        if source.recipe != wanted.recipe:
            if not may_begin_anew(session, source):
                raise BackfillError(other_recipe(session, source, wanted.recipe))
            chunks.forget(session, source.id)
            sources.begin_anew(session, source.id, wanted.recipe)
            return Settled(source=source.id, to=0, head=head.known)
        return Settled(source=source.id, to=held.to, head=head.known, ended=ended)


def may_begin_anew(session: Session, source: Source) -> bool:
    """Whether nothing was ever counted of a source, nor is about to be."""
    in_use = session.query(
        "SELECT 1 FROM backfill_chunk WHERE source = %s"
        " AND (state = 'pending' OR counted <> 0 OR amount <> 0) LIMIT 1",
        (source.id,),
    )
    journalled = session.query(
        "SELECT 1 FROM backfill_journal WHERE source = %s LIMIT 1", (source.id,)
    )
    return not (in_use or journalled)


def other_recipe(session: Session, source: Source, recipe: Recipe) -> str:
    """Why a source is not counted by two recipes."""
    runs = session.query(
        "SELECT DISTINCT run FROM backfill_chunk WHERE source = %s ORDER BY run", (source.id,)
    )
    numbers = [str(run) for (run,) in runs]
    undo = " and ".join(f"`countersink backfills undo {number}`" for number in numbers[:3])
    return (
        f"it was counted as {source.counter} with other options (as {source.path}): then"
        f" {source.recipe.described()}, now {recipe.described()}. Counting it twice would double"
        f" it: {undo or 'undo that run'} first, or count it under another counter"
    )


def too_short(path: str) -> str:
    """Why a content is refused that is shorter than what was read of ``path``."""
    return (
        f"it begins as {path} did, of which more was read: it ends where that cannot be"
        " told from an older copy of it. Give the newer copy; or, if it is another source, a name"
        " of its own by --source-name"
    )


def _notice(own: Sequence[Held]) -> str:
    alike = max((one for one in own if one.to), key=lambda one: one.to, default=None)
    if alike is None:
        return ""
    return (
        f"its first {alike.to:,} bytes are those of {alike.source.path}, which goes on in another"
        " way: it is counted as another source, from its beginning"
    )
