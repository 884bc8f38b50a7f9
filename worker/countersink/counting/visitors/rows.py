"""Stored sketches (table ``visitor_slot``) of members, such as visitors. Adds members when they are
counted, moves and deletes sketches together with their rows, and reads sketches with a check of
their checksums.

A row of ``visitor_slot`` belongs to the row of ``counter_slot`` that has the same primary key. The
row of ``counter_slot`` is locked before its sketch is written, moved or deleted. Its column
``sketched`` is 1 if it has a sketch, so that a missing sketch is noticed. All statements run in the
caller's transaction.
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
"""(counter, bucket's label, key) of a cell."""

_KEYS_PER_QUERY: Final = 200
"""Maximum number of keys in a statement; each has a sketch of about 4 KB."""
_BUCKET: Final = itemgetter(0, 1)
_ROWS: Final = "visitor_slot FORCE INDEX (PRIMARY)"
_COLUMNS: Final = f"{LABEL}, counter_key, slot, sketch, checksum"
_ADVICE: Final = ": run `countersink verify` to find all damaged sketches"

_RowPlace = tuple[str, int, bytes]
"""(counter, bucket's label, key as bytes) of a row; its slot is known otherwise."""


def unite(session: Session, slot: int, members: Mapping[CellPlace, Sequence[bytes]]) -> None:
    """Add members (visitors, say) to the sketches of cells in one slot. A row without a sketch gets
    one. All these cells have rows in ``counter_slot``, and the caller has locked these rows.

    Args:
        session: at READ COMMITTED.
        slot: the slot.
        members: the hashes of the members (8 bytes each), in any order, by (counter, bucket's
            label, key) of the cell.

    Raises:
        RefusedMembers: members of some cells cannot be added; the error names all these cells, with
            the reasons. Roll back.
        StoreError: a statement failed; roll back.
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
    """Move sketches along with their rows to slot 0: unite the sketches of the source rows with
    those of the target rows, and delete the sketches of the source rows. Do nothing if no source
    row has a sketch.

    Args:
        session: at REPEATABLE READ. The transaction has locked the source and the target rows of
            ``counter_slot`` before it read anything without a lock.
        counter: the counter's name.
        where: SQL condition for the rows of the source buckets, in columns that ``visitor_slot``
            has. Of these rows, those with slots from ``lowest_slot`` on are the source rows.
        args: the values of the condition.
        sketches: the number of source rows that have a sketch, by (label of their bucket before the
            move, key). If fewer sketches are found, one is missing.
        lowest_slot: the lowest slot of the source rows.
        to: label of the bucket to which all rows are moved; None if each row stays in its bucket.

    Raises:
        DamagedSketch: a sketch is damaged or missing; roll back.
        NoSketches: the library datasketches is needed, and not installed; roll back.
        Conflict: another transaction holds a row; roll back.
        StoreError: a statement failed; roll back.
    """
    slots = f" AND slot >= {lowest_slot:d}" if lowest_slot else ""
    # A query without result would lock a gap.
    if not any(sketches.values()):
        return
    expected = dict(sketches)
    unions: dict[_RowPlace, SketchUnion] = {}
    for found in session.query(
        f"SELECT {_COLUMNS} FROM {_ROWS} WHERE {where}{slots} FOR UPDATE NOWAIT", args
    ):
        sketch = StoredSketch(counter, *found)
        place = sketch.label, sketch.key
        expected[place] = expected.get(place, 0) - 1
        bucket = sketch.label if to is None else to
        sketch.add_to(unions.setdefault((counter, bucket, sketch.key), SketchUnion(MOST_EXACT)))
    for (label, key), number in expected.items():
        if number > 0:
            raise _damaged("missing", counter, label, key)
    session.execute(f"DELETE visitor_slot FROM {_ROWS} WHERE {where}{slots}", args)
    failed = _write(session, COMPACTED, list(unions), unions.__getitem__, " FOR UPDATE")
    for error in failed.values():
        raise error


def delete(session: Session, counter: str, places: Sequence[tuple[int, bytes, int]]) -> None:
    """Delete the sketches of some rows of a counter. Rows without a sketch are ignored.

    Args:
        session: in the transaction that deletes the rows. It has locked these rows before it read
            anything without a lock; or nobody counts meanwhile.
        counter: the counter's name.
        places: (bucket's label, key, slot) of each row.
    """
    if not session.query(f"SELECT 1 FROM {_ROWS} WHERE counter = %s LIMIT 1", (counter,)):
        return
    row = "(counter = %s AND bucket = %s AND counter_key = %s AND width = %s AND slot = %s)"
    for part in parts(places, _KEYS_PER_QUERY):
        session.execute(
            f"DELETE visitor_slot FROM {_ROWS} WHERE {' OR '.join([row] * len(part))}",
            [
                value
                for label, key, slot in part
                for value in (counter, label_time(label), key, width_number(label), slot)
            ],
        )


def delete_key(session: Session, where: str, args: Sequence[object]) -> None:
    """Delete the sketches of a key's rows. The caller has locked these rows before it read anything
    without a lock. ``where`` is the SQL condition for the rows, a range of the index ``by_key``;
    ``args`` are its values.
    """
    rows = "visitor_slot FORCE INDEX (by_key)"
    if session.query(f"SELECT 1 FROM {rows} WHERE {where} LIMIT 1", args):
        session.execute(f"DELETE visitor_slot FROM {rows} WHERE {where}", args)


def sketched(session: Session) -> list[str]:
    """Return the sorted names of the counters and breakdowns that have sketches, or that count
    different members: those whose sketches ``verify`` checks by :func:`faults`.
    """
    found = session.query(
        "SELECT DISTINCT counter FROM visitor_slot"
        " UNION SELECT part.name FROM counter AS part JOIN counter AS base"
        " ON base.name = COALESCE(part.breakdown_of, part.name)"
        " WHERE base.salt_days IS NOT NULL ORDER BY 1"
    )
    return [name for (name,) in found]


def faults(session: Session, counter: str) -> Iterator[tuple[int, str]]:
    """Yield (bucket's label, sentence) for each wrong sketch of a counter. A sketch is wrong if it
    is damaged or missing, or if ``counter_slot`` has no row for it. Reads in the caller's snapshot.
    """
    join = "USING (counter, bucket, counter_key, width, slot) WHERE counter = %s"
    for *found, without_row in session.stream(
        f"SELECT {_COLUMNS}, t.counter IS NULL FROM {_ROWS} LEFT JOIN counter_slot AS t {join}",
        (counter,),
    ):
        sketch = StoredSketch(counter, *found)
        try:
            sketch.add_to(SketchUnion())
        except DamagedSketch as error:
            yield sketch.label, str(error).partition(_ADVICE)[0]
        except NoSketches:
            pass  # its checksum is right
        if without_row:
            where = f"{key_text(sketch.key)!r} in the bucket {label_time(sketch.label)}"
            yield sketch.label, f"a sketch of {where} has no row of counter_slot"
    for label, key in session.stream(
        f"SELECT {LABEL}, counter_key FROM counter_slot FORCE INDEX (PRIMARY)"
        f" LEFT JOIN visitor_slot AS s FORCE INDEX (PRIMARY) {join}"
        " AND sketched AND s.counter IS NULL",
        (counter,),
    ):
        yield label, str(_damaged("missing", counter, label, key)).partition(_ADVICE)[0]


def number(session: Session, counter: str, where: str, args: Sequence[object], by: str) -> int:
    """Return how many sketches of a counter there should be: the number of rows of ``counter_slot``
    whose column ``sketched`` is set. ``where`` has further SQL conditions, beginning with AND (or
    an empty text), ``args`` their values, ``by`` names of the indexes that the server may use.
    """
    ((found,),) = session.query(
        f"SELECT COUNT(*) FROM counter_slot FORCE INDEX ({by})"
        f" WHERE counter = %s{where} AND sketched",
        (counter, *args),
    )
    return int(found)


def stored(
    session: Session, counter: str, where: str, args: Sequence[object], by: str
) -> Iterator["StoredSketch"]:
    """Yield a counter's sketches one by one, in no promised order, before their checksums are
    verified (see :meth:`StoredSketch.add_to`). The session can run no other query meanwhile.

    Args:
        session: in a snapshot.
        counter: the counter's name.
        where: further SQL conditions, beginning with AND; an empty text for all sketches.
        args: the values of the conditions.
        by: names of the indexes that the server may use.
    """
    for row in session.stream(
        f"SELECT {_COLUMNS} FROM visitor_slot FORCE INDEX ({by}) WHERE counter = %s{where}",
        (counter, *args),
    ):
        yield StoredSketch(counter, *row)


class StoredSketch(NamedTuple):
    """A sketch as it was read from ``visitor_slot``, its checksum not verified yet. ``label`` is
    the label of its bucket. The attributes after ``counter`` are in the order of :data:`_COLUMNS`.
    """

    counter: str
    label: int
    key: bytes
    slot: int
    sketch: bytes
    checksum: int

    def add_to(self, union: SketchUnion) -> None:
        """Verify the checksum of this sketch, and add its members to a union.

        Raises:
            DamagedSketch: the sketch is damaged; the message names counter, bucket and key.
            NoSketches: the library datasketches is needed, and not installed.
        """
        counter, label, key, slot, sketch, crc = self
        why = ""
        if checksum(counter, label, key, slot, sketch) == crc:
            try:
                union.add(sketch)
                return
            except DamagedSketch as error:
                why = f" ({error})"
        raise _damaged(f"damaged{why}", counter, label, key)


def _write(
    session: Session,
    slot: int,
    places: Sequence[_RowPlace],
    union_of: Callable[[_RowPlace], SketchUnion],
    lock: str = "",
) -> dict[_RowPlace, DamagedSketch | NoSketches]:
    """Add members to the sketches of rows in one slot, and store the sketches. A row without a
    sketch gets one. If some rows fail, the others are still written.

    Args:
        session: in a transaction that has locked the rows.
        slot: the slot.
        places: the rows.
        union_of: returns a union of the members to add to the sketch of a row. If the row has a
            sketch, its members are added to this union.
        lock: SQL locking clause with which sketches are read; an empty text reads without a lock.

    Returns:
        The rows whose sketch could not be written, each with the error.
    """
    failed: dict[_RowPlace, DamagedSketch | NoSketches] = {}
    into = "visitor_slot (counter, bucket, counter_key, width, slot, sketch, checksum)"
    clause = session.dialect.upsert_set("sketch", "checksum")
    for (counter, bucket), group in groupby(sorted(places), _BUCKET):
        for part in parts(list(group), _KEYS_PER_QUERY):
            where, args = _place(slot, part)
            found = session.query(f"SELECT {_COLUMNS} FROM {_ROWS} WHERE {where}{lock}", args)
            existing = {each.key: each for each in (StoredSketch(counter, *row) for row in found)}
            new = [place for place in part if place[2] not in existing]
            missing = _mark_sketched(session, slot, new)
            literals: list[str] = []
            head = sql.head(session.literal, counter, bucket)
            tail = f"', {width_number(bucket):d}, {slot:d}, X'"
            for place in part:
                key = place[2]
                try:
                    if key in missing:
                        raise _damaged("missing", *place)
                    union = union_of(place)
                    if key in existing:
                        existing[key].add_to(union)
                    sketch = union.sketch()
                    crc = checksum(counter, bucket, key, slot, sketch)
                    literals.append(f"{head}{key.hex()}{tail}{sketch.hex()}', {crc:d})")
                except (DamagedSketch, NoSketches) as error:
                    failed[place] = error
            if literals:
                session.execute(f"INSERT INTO {into} VALUES {', '.join(literals)}{clause}")
    return failed


def _mark_sketched(session: Session, slot: int, places: Sequence[_RowPlace]) -> set[bytes]:
    """Set the column ``sketched`` of rows of ``counter_slot`` (all in one bucket) that have no row
    in ``visitor_slot``. Return the keys of rows in which the column was set before: these rows had
    a sketch, and it is missing.
    """
    if not places:
        return set()
    rows = "counter_slot FORCE INDEX (PRIMARY)"
    where, args = _place(slot, places)
    # With a lock, to read the last commit instead of a snapshot.
    found = session.query(
        f"SELECT counter_key FROM {rows} WHERE {where} AND sketched FOR UPDATE", args
    )
    session.execute(f"UPDATE {rows} SET sketched = 1 WHERE {where}", args)
    return {key for (key,) in found}


def _place(slot: int, places: Sequence[_RowPlace]) -> tuple[str, list[object]]:
    """Return an SQL condition for rows of one bucket in one slot, and the condition's values.
    ``places``: the rows, at least one.
    """
    counter, bucket, _ = places[0]
    where = f"counter_key IN ({marks(places)}) AND width = {width_number(bucket):d}"
    args = [counter, label_time(bucket), *(key for _, _, key in places)]
    return f"counter = %s AND bucket = %s AND {where} AND slot = {slot:d}", args


def _damaged(problem: str, counter: str, bucket: int, key: bytes) -> DamagedSketch:
    return DamagedSketch(
        f"the different members of {counter!r}, {key_text(key)!r} in the bucket"
        f" {label_time(bucket)} are {problem}{_ADVICE}"
    )
