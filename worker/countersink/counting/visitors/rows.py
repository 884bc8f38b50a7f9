"""Rows of sketches beside those of counters: uniting members when they are counted, moving and
deleting sketches with their rows, reading them with their checksums.

A row of ``visitor_slot`` lies beside the row of ``counter_slot`` with the same primary key, and
that one is locked by whoever writes, moves or deletes it. Its column ``sketched`` says that there
is one, so that a sketch that was deleted is missed. All statements are of the caller's transaction.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from countersink.counting.errors import DamagedSketch, NoSketches, RefusedMembers
from countersink.counting.visitors import MOST_EXACT, SketchUnion, checksum
from countersink.database import sql
from countersink.database.session import Session
from countersink.database.sql import COMPACTED, LABEL, label_time, marks, parts, width_number
from countersink.runtime.dead_letter import RowRefusal
from countersink.runtime.limits import key_text, text_bytes

CellPlace = tuple[str, int, str]
"""(counter, label of the bucket, key) of a cell."""

_KEYS_PER_QUERY: Final = 200
"""Keys, and sketches of some 4 KB, in a statement."""
_BUCKET: Final = itemgetter(0, 1)
_ROWS: Final = "visitor_slot FORCE INDEX (PRIMARY)"
_COLUMNS: Final = f"{LABEL}, counter_key, slot, sketch, checksum"
_REST: Final = ": `countersink verify` shows what else is wrong"

_RowPlace = tuple[str, int, bytes]
"""(counter, label of the bucket, key) of a row in a slot."""


def unite(session: Session, slot: int, members: Mapping[CellPlace, Sequence[bytes]]) -> None:
    """Unite hashes with the sketches of cells of one slot, whose rows the caller has locked.

    Args:
        session: at READ COMMITTED.
        slot: the slot.
        members: hashes of 8 bytes, in any order.

    Raises:
        RefusedMembers: those of some cells cannot be united: all such cells, and why not.
        StoreError: as any statement; what was written before is to be rolled back.
    """
    encoded = {(*place[:2], text_bytes(place[2])): hashes for place, hashes in members.items()}

    def union_of(place: _RowPlace) -> SketchUnion:
        union = SketchUnion(MOST_EXACT)
        for hashes in encoded[place]:
            union.add_hashes(hashes)
        return union

    failed = _write(session, slot, list(encoded), union_of)
    if failed:
        raise RefusedMembers(
            {
                (counter, bucket, key_text(key)): RowRefusal(error.reason, str(error))
                for (counter, bucket, key), error in failed.items()
            }
        )


def move(
    session: Session,
    counter: str,
    where: str,
    args: Sequence[object],
    *,
    sketches: Mapping[tuple[int, bytes], int],
    lowest_slot: int,
    to: int | None = None,
) -> None:
    """Unite the sketches of a range of rows by key where their rows went, and delete them.

    Args:
        session: at REPEATABLE READ; the rows of ``counter_slot`` are locked, and those where they
            went, and nothing was read without a lock before.
        counter: its name.
        where: of ``visitor_slot``, with ``args``; as of ``counter_slot``.
        sketches: by the bucket's label and the key, how many of the rows that move have one.
        lowest_slot: the lowest slot that moves.
        to: the bucket's label; None: each to slot 0 of its own.

    Raises:
        DamagedSketch, NoSketches: roll back.
        Conflict: somebody holds a row.
        StoreError: as any statement.
    """
    slots = f" AND slot >= {lowest_slot:d}" if lowest_slot else ""
    # Where there is nothing no gap need be locked.
    if not any(sketches.values()):
        return
    left = dict(sketches)
    unions: dict[_RowPlace, SketchUnion] = {}
    for found in session.query(
        f"SELECT {_COLUMNS} FROM {_ROWS} WHERE {where}{slots} FOR UPDATE NOWAIT", args
    ):
        one = StoredSketch(counter, *found)
        place = one.label, one.key
        left[place] = left.get(place, 0) - 1
        bucket = one.label if to is None else to
        one.add_to(unions.setdefault((counter, bucket, one.key), SketchUnion(MOST_EXACT)))
    for (label, own), number in left.items():
        if number > 0:
            raise _damaged("missing", counter, label, own)
    session.execute(f"DELETE visitor_slot FROM {_ROWS} WHERE {where}{slots}", args)
    failed = _write(session, COMPACTED, list(unions), unions.__getitem__, " FOR UPDATE")
    for error in failed.values():
        raise error


def delete(session: Session, counter: str, places: Sequence[tuple[int, bytes, int]]) -> None:
    """Delete the sketches beside rows of a counter that the caller has locked.

    Args:
        session: in the transaction that deletes the rows, and locked them before anything was read
            without a lock; or while nobody counts.
        counter: its name.
        places: (bucket's label, key, slot).
    """
    if not session.query(f"SELECT 1 FROM {_ROWS} WHERE counter = %s LIMIT 1", (counter,)):
        return
    one = "(counter = %s AND bucket = %s AND counter_key = %s AND width = %s AND slot = %s)"
    for part in parts(places, _KEYS_PER_QUERY):
        session.execute(
            f"DELETE visitor_slot FROM {_ROWS} WHERE {' OR '.join([one] * len(part))}",
            [
                value
                for label, key, slot in part
                for value in (counter, label_time(label), key, width_number(label), slot)
            ],
        )


def delete_key(session: Session, where: str, args: Sequence[object]) -> None:
    """Delete the sketches beside rows of one key, which the caller has locked before anything was
    read without a lock; ``where`` goes by the index ``by_key``.
    """
    rows = "visitor_slot FORCE INDEX (by_key)"
    if session.query(f"SELECT 1 FROM {rows} WHERE {where} LIMIT 1", args):
        session.execute(f"DELETE visitor_slot FROM {rows} WHERE {where}", args)


def sketched(session: Session) -> list[str]:
    """The counters that have sketches, or may have had some, breakdowns among them."""
    found = session.query(
        "SELECT DISTINCT counter FROM visitor_slot"
        " UNION SELECT own.name FROM counter AS own JOIN counter AS whole"
        " ON whole.name = COALESCE(own.breakdown_of, own.name)"
        " WHERE whole.salt_days IS NOT NULL ORDER BY 1"
    )
    return [name for (name,) in found]


def faults(session: Session, counter: str) -> Iterator[tuple[int, str]]:
    """(bucket's label, sentence) of each sketch of a counter that is not as it was written, lies
    beside no row of the counter, or is missing, in the snapshot of the caller.
    """
    same = "USING (counter, bucket, counter_key, width, slot) WHERE counter = %s"
    for *found, alone in session.stream(
        f"SELECT {_COLUMNS}, t.counter IS NULL FROM {_ROWS} LEFT JOIN counter_slot AS t {same}",
        (counter,),
    ):
        one = StoredSketch(counter, *found)
        try:
            one.add_to(SketchUnion())
        except DamagedSketch as error:
            yield one.label, str(error).partition(_REST)[0]
        except NoSketches:
            pass  # its checksum was right
        if alone:
            where = f"{key_text(one.key)!r} in the bucket {label_time(one.label)}"
            yield one.label, f"a sketch of {where} lies beside no row of counter_slot"
    for label, key in session.stream(
        f"SELECT {LABEL}, counter_key FROM counter_slot FORCE INDEX (PRIMARY)"
        f" LEFT JOIN visitor_slot AS s FORCE INDEX (PRIMARY) {same}"
        " AND sketched AND s.counter IS NULL",
        (counter,),
    ):
        yield label, str(_damaged("missing", counter, label, key)).partition(_REST)[0]


def number(session: Session, counter: str, where: str, args: Sequence[object], by: str) -> int:
    """How many sketches there have to be; arguments as of :func:`stored`."""
    ((found,),) = session.query(
        f"SELECT COUNT(*) FROM counter_slot FORCE INDEX ({by})"
        f" WHERE counter = %s{where} AND sketched",
        (counter, *args),
    )
    return int(found)


def stored(
    session: Session, counter: str, where: str, args: Sequence[object], by: str
) -> Iterator["StoredSketch"]:
    """Sketches, one by one as the server sends them.

    Args:
        session: in a snapshot.
        counter: its name.
        where: from AND on, and ``args``.
        by: indexes that the server may choose from.
    """
    for row in session.stream(
        f"SELECT {_COLUMNS} FROM visitor_slot FORCE INDEX ({by}) WHERE counter = %s{where}",
        (counter, *args),
    ):
        yield StoredSketch(counter, *row)


class StoredSketch(NamedTuple):
    """A sketch as it was read: :data:`_COLUMNS`."""

    counter: str
    label: int
    key: bytes
    slot: int
    sketch: bytes
    checksum: int

    def add_to(self, union: SketchUnion) -> None:
        """Unite it with others.

        Raises:
            DamagedSketch: it is not as it was written; names its counter, bucket and key.
            NoSketches: it takes datasketches, which is not installed.
        """
        counter, label, key, slot, sketch, crc = self
        why = ""
        if checksum(counter, label, key, slot, sketch) == crc:
            try:
                union.add(sketch)
                return
            except DamagedSketch as error:
                why = f" ({error})"
        raise _damaged(f"not what was written{why}", counter, label, key)


def _write(
    session: Session,
    slot: int,
    places: Sequence[_RowPlace],
    union_of: Callable[[_RowPlace], SketchUnion],
    lock: str = "",
) -> dict[_RowPlace, DamagedSketch | NoSketches]:
    """Unite members with the sketches of rows of one slot; those rows whose members cannot be
    united, and why not.
    """
    failed: dict[_RowPlace, DamagedSketch | NoSketches] = {}
    into = "visitor_slot (counter, bucket, counter_key, width, slot, sketch, checksum)"
    clause = session.dialect.upsert_set("sketch", "checksum")
    for (counter, bucket), group in groupby(sorted(places), _BUCKET):
        for part in parts(list(group), _KEYS_PER_QUERY):
            where, args = _place(slot, part)
            found = session.query(f"SELECT {_COLUMNS} FROM {_ROWS} WHERE {where}{lock}", args)
            there = {one.key: one for one in (StoredSketch(counter, *row) for row in found)}
            new = [place for place in part if place[2] not in there]
            lost = _begin(session, slot, new)
            literals: list[str] = []
            head = sql.head(session.literal, counter, bucket)
            tail = f"', {width_number(bucket):d}, {slot:d}, X'"
            for place in part:
                key = place[2]
                try:
                    if key in lost:
                        raise _damaged("missing", *place)
                    union = union_of(place)
                    if key in there:
                        there[key].add_to(union)
                    sketch = union.sketch()
                    crc = checksum(counter, bucket, key, slot, sketch)
                    literals.append(f"{head}{key.hex()}{tail}{sketch.hex()}', {crc:d})")
                except (DamagedSketch, NoSketches) as error:
                    failed[place] = error
            if literals:
                session.execute(f"INSERT INTO {into} VALUES {', '.join(literals)}{clause}")
    return failed


def _begin(session: Session, slot: int, places: Sequence[_RowPlace]) -> set[bytes]:
    """Note on rows of a bucket that they get their first sketch; the keys of those that had one,
    which is not there.
    """
    if not places:
        return set()
    rows = "counter_slot FORCE INDEX (PRIMARY)"
    where, args = _place(slot, places)
    # Locking, as what is, not what a snapshot shows.
    found = session.query(
        f"SELECT counter_key FROM {rows} WHERE {where} AND sketched FOR UPDATE", args
    )
    session.execute(f"UPDATE {rows} SET sketched = 1 WHERE {where}", args)
    return {key for (key,) in found}


def _place(slot: int, places: Sequence[_RowPlace]) -> tuple[str, list[object]]:
    """The condition for rows in one slot of a bucket, and the values for it."""
    counter, bucket, _ = places[0]
    where = f"counter_key IN ({marks(places)}) AND width = {width_number(bucket):d}"
    args = [counter, label_time(bucket), *(key for _, _, key in places)]
    return f"counter = %s AND bucket = %s AND {where} AND slot = {slot:d}", args


def _damaged(what: str, counter: str, bucket: int, key: bytes) -> DamagedSketch:
    return DamagedSketch(
        f"the different members of {counter!r}, {key_text(key)!r} in the bucket"
        f" {label_time(bucket)} are {what}{_REST}"
    )
