"""Rows of sketches beside those of counters: uniting members when they are counted, moving and
deleting sketches with their rows, reading them with their checksums.

A row of ``visitor_slot`` lies beside the row of ``counter_slot`` with the same primary key, and
that one is locked by whoever writes, moves or deletes it. Its column ``sketched`` says that there
is one, so that a sketch that was deleted is missed. All statements are of the caller's transaction.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from countersink.runtime.dead_letter import RowRefusal
from countersink.runtime.limits import key_text
from countersink.store import sql
from countersink.store.connection import Session
from countersink.store.errors import DamagedSketch, NoSketches, RefusedMembers
from countersink.store.sql import COMPACTED, LABEL, label_time, marks, parts, width_number
from countersink.store.visitors.sketch import MOST_EXACT, SketchUnion, checksum

CellPlace = tuple[str, int, str]
"""(counter, label of the bucket, key) of a cell."""

STATEMENT_BYTES: Final = 1_000_000
"""Bytes of a statement that writes sketches, at most."""

_KEYS_PER_QUERY: Final = 200
_BUCKET: Final = itemgetter(0, 1)
_ROWS: Final = "visitor_slot FORCE INDEX (PRIMARY)"


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
    failed: dict[CellPlace, RowRefusal] = {}
    if not members:
        return
    writer = _SketchWriter(session)
    # The order of code points is the order of their UTF-8 bytes.
    for (counter, bucket), group in groupby(sorted(members), _BUCKET):
        for part in parts(list(group), _KEYS_PER_QUERY):
            keys = [key.encode() for _, _, key in part]
            there = _read(session, counter, bucket, slot, keys)
            lost = _begin(session, counter, bucket, slot, [key for key in keys if key not in there])
            for place in part:
                key = place[2].encode()
                union = SketchUnion(MOST_EXACT)
                try:
                    if key in lost:
                        raise _missing(counter, bucket, key)
                    if key in there:
                        _add(union, (counter, bucket, key, slot), *there[key])
                    for hashes in members[place]:
                        union.add_hashes(hashes)
                    writer.add(counter, bucket, key, slot, union.sketch())
                except (DamagedSketch, NoSketches) as error:
                    failed[place] = RowRefusal(error.reason, str(error))
    if failed:
        raise RefusedMembers(failed)
    writer.flush()


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
    unions: dict[tuple[int, bytes], SketchUnion] = {}
    for found, key, slot, sketch, crc in session.query(
        f"SELECT {LABEL}, counter_key, slot, sketch, checksum FROM {_ROWS} WHERE {where}{slots}"
        " FOR UPDATE NOWAIT",
        args,
    ):
        label, own = int(found), bytes(key)
        left[label, own] = left.get((label, own), 0) - 1
        union = unions.setdefault((label if to is None else to, own), SketchUnion(MOST_EXACT))
        _add(union, (counter, label, own, int(slot)), sketch, crc)
    for (label, own), number in left.items():
        if number > 0:
            raise _missing(counter, label, own)
    deleted = f"DELETE visitor_slot FROM {_ROWS} WHERE {where}{slots}"
    session.execute(deleted, args)
    writer = _SketchWriter(session)
    for bucket, group in groupby(sorted(unions), itemgetter(0)):
        for part in parts([key for _, key in group], _KEYS_PER_QUERY):
            there = _read(session, counter, bucket, COMPACTED, part, " FOR UPDATE")
            new = [key for key in part if key not in there]
            lost = _begin(session, counter, bucket, COMPACTED, new)
            for key in part:
                if key in lost:
                    raise _missing(counter, bucket, key)
                union = unions[bucket, key]
                if key in there:
                    _add(union, (counter, bucket, key, COMPACTED), *there[key])
                writer.add(counter, bucket, key, COMPACTED, union.sketch())
    writer.flush()


def delete(session: Session, counter: str, places: Sequence[tuple[int, bytes, int]]) -> None:
    """Delete the sketches beside rows of a counter that the caller has locked.

    Args:
        session: in the transaction that deletes the rows, and locked them before anything was read
            without a lock; or while nobody counts.
        counter: its name.
        places: (bucket's label, key, slot).
    """
    if not places or not any_of(session, counter):
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


def any_of(session: Session, counter: str) -> bool:
    """Whether a counter has sketches."""
    return bool(session.query(f"SELECT 1 FROM {_ROWS} WHERE counter = %s LIMIT 1", (counter,)))


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
    for label, key, slot, sketch, crc, alone in session.stream(
        f"SELECT {LABEL}, counter_key, slot, sketch, checksum, t.counter IS NULL"
        f" FROM visitor_slot FORCE INDEX (PRIMARY) LEFT JOIN counter_slot AS t {same}",
        (counter,),
    ):
        try:
            _add(SketchUnion(), (counter, label, bytes(key), slot), sketch, crc)
        except DamagedSketch as error:
            yield label, str(error).partition(": `countersink verify`")[0]
        except NoSketches:
            pass  # its checksum was right
        if alone:
            where = f"{key_text(bytes(key))!r} in the bucket {label_time(label)}"
            yield label, f"a sketch of {where} lies beside no row of counter_slot"
    for label, key in session.stream(
        f"SELECT {LABEL}, counter_key FROM counter_slot FORCE INDEX (PRIMARY)"
        f" LEFT JOIN visitor_slot AS s FORCE INDEX (PRIMARY) {same}"
        " AND sketched AND s.counter IS NULL",
        (counter,),
    ):
        yield label, str(_missing(counter, label, bytes(key))).partition(": `countersink")[0]


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
    for label, key, slot, sketch, crc in session.stream(
        f"SELECT {LABEL}, counter_key, slot, sketch, checksum FROM visitor_slot"
        f" FORCE INDEX ({by}) WHERE counter = %s{where}",
        (counter, *args),
    ):
        yield StoredSketch(label, bytes(key), (counter, slot, sketch, crc))


class StoredSketch(NamedTuple):
    """A sketch as it was read.

    Attributes:
        label: of its bucket.
        key: its key.
        rest: counter, slot, sketch and checksum.
    """

    label: int
    key: bytes
    rest: tuple[str, int, bytes, int]

    def add_to(self, union: SketchUnion) -> None:
        """Unite it with others.

        Raises:
            DamagedSketch: it is not as it was written; names its counter, bucket and key.
            NoSketches: it takes datasketches, which is not installed.
        """
        counter, slot, sketch, crc = self.rest
        _add(union, (counter, self.label, self.key, slot), sketch, crc)


def _begin(
    session: Session, counter: str, bucket: int, slot: int, keys: Sequence[bytes]
) -> set[bytes]:
    """Note on rows that they get their first sketch; the keys of those that had one, which is not
    there.
    """
    if not keys:
        return set()
    rows = "counter_slot FORCE INDEX (PRIMARY)"
    where, args = _place(counter, bucket, slot, keys)
    # Locking, as what is, not what a snapshot shows.
    found = session.query(
        f"SELECT counter_key FROM {rows} WHERE {where} AND sketched FOR UPDATE", args
    )
    session.execute(f"UPDATE {rows} SET sketched = 1 WHERE {where}", args)
    return {bytes(key) for (key,) in found}


def _missing(counter: str, bucket: int, key: bytes) -> DamagedSketch:
    """Of a row whose sketch is not there."""
    return DamagedSketch(
        f"the different members of {counter!r}, {key_text(key)!r} in the bucket"
        f" {label_time(bucket)} are missing: `countersink verify` shows what else is wrong"
    )


def _read(
    session: Session,
    counter: str,
    bucket: int,
    slot: int,
    keys: Sequence[bytes],
    lock: str = "",
) -> dict[bytes, tuple[bytes, int]]:
    """The sketches, and their checksums, of keys of a bucket."""
    where, args = _place(counter, bucket, slot, keys)
    found = session.query(
        f"SELECT counter_key, sketch, checksum FROM {_ROWS} WHERE {where}{lock}", args
    )
    return {bytes(key): (bytes(sketch), int(crc)) for key, sketch, crc in found}


def _place(counter: str, bucket: int, slot: int, keys: Sequence[bytes]) -> tuple[str, list[object]]:
    """The condition for the rows of keys in one slot of a bucket, and the values for it."""
    where = f"counter_key IN ({marks(keys)}) AND width = {width_number(bucket):d}"
    args = [counter, label_time(bucket), *keys]
    return f"counter = %s AND bucket = %s AND {where} AND slot = {slot:d}", args


def _add(union: SketchUnion, place: tuple[str, int, bytes, int], sketch: bytes, crc: int) -> None:
    """Unite with the sketch of a row, if it is what was written.

    Raises:
        DamagedSketch: it is not; names its place.
        NoSketches: it takes datasketches, which is not installed.
    """
    counter, bucket, key, slot = place
    why = ""
    if checksum(counter, bucket, key, slot, sketch) == crc:
        try:
            union.add(sketch)
            return
        except DamagedSketch as error:
            why = f" ({error})"
    raise DamagedSketch(
        f"the different members of {counter!r}, {key_text(key)!r} in the bucket"
        f" {label_time(bucket)} are not what was written{why}: `countersink verify` shows what else"
        " is wrong"
    )


class _SketchWriter:
    """Writes sketches, several in a statement. For one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        columns = "counter, bucket, counter_key, width, slot, sketch, checksum"
        self._begin = f"INSERT INTO visitor_slot ({columns}) VALUES "
        self._end = session.dialect.upsert_set("sketch", "checksum")
        self._literals: list[str] = []
        self._size = 0

    def add(self, counter: str, bucket: int, key: bytes, slot: int, sketch: bytes) -> None:
        """Write one, now or with others."""
        crc = checksum(counter, bucket, key, slot, sketch)
        head = sql.head(self._session.literal, counter, bucket)
        place = f"{key.hex()}', {width_number(bucket):d}, {slot:d}"
        literal = f"{head}{place}, X'{sketch.hex()}', {crc:d})"
        if self._size + len(literal) > STATEMENT_BYTES:
            self.flush()
        self._literals.append(literal)
        self._size += len(literal) + 2

    def flush(self) -> None:
        """Write what is left."""
        if self._literals:
            self._session.execute(f"{self._begin}{', '.join(self._literals)}{self._end}")
        self._literals.clear()
        self._size = 0
