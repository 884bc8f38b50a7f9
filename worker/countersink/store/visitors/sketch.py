"""Sketches of sets of 64-bit hashes: exact up to 256 of them, an HLL beyond; unions (exact up to
``MOST_UNITED``), estimates with their bounds, checksums of rows.

A sketch is bytes. The first says of which kind it is: ``1`` is followed by up to 256 distinct
hashes of 8 bytes (big-endian), sorted; ``2`` by an HLL of Apache DataSketches (lg_k 13, HLL_4,
compact), whose relative standard error is 1.04/√8192 = 1.15 %. Small sets take no library; an HLL
imports ``datasketches``, which is the extra ``[sketches]``.

A union holds the same registers in whatever order its parts come, and however often. Estimates are
those of a union too (of an HLL with itself, where there is one only): datasketches estimates an HLL
that was never merged in another way, which depends on the order of its members.
"""

import struct
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from countersink.store.errors import DamagedSketch, NoSketches

if TYPE_CHECKING:
    from datasketches import hll_sketch, hll_union

MOST_EXACT: Final = 256
"""Members up to which a sketch that is stored is exact."""
MOST_UNITED: Final = 100_000
"""Members up to which a union of exact sketches is exact: some 9 MB."""
LG_K: Final = 13
HASH_BYTES: Final = 8
INSTALL: Final = "install the extra: pip install 'countersink[sketches]'"

_EXACT: Final = b"\x01"
_HLL: Final = b"\x02"
_REGISTERS: Final = 1 << LG_K
_MODE_BYTE: Final = 7
_SORTED_AT: Final = {0: 8, 1: 12, 2: 40 + _REGISTERS // 2}
"""Where the coupons begin of an HLL that is a list (0) or a set (1) of them, and what does not fit
the four bits of its register of one that is an array (2)."""


@dataclass(frozen=True, slots=True)
class Visitors:
    """How many different members there are.

    Attributes:
        total: the number, or the estimate of it.
        estimate: whether it is one.
        low, high: between which it lies with 95 % (two standard deviations); of an exact number
            itself.
    """

    total: int = 0
    estimate: bool = False
    low: int = 0
    high: int = 0


class SketchUnion:
    """The union of sketches, and of hashes; exact as long as all of them are, and it has at most
    ``most`` members.
    """

    def __init__(self, most: int = MOST_UNITED) -> None:
        self._most = most
        self._hashes: set[int] = set()
        self._estimated: hll_sketch | None = None  # takes hashes that are not kept
        self._merged: hll_union | None = None

    @property
    def exact(self) -> int:
        """Members that are kept exactly."""
        return len(self._hashes)

    def add(self, sketch: bytes) -> None:
        """Unite with a sketch.

        Raises:
            DamagedSketch: these bytes are none; the union is as it was.
            NoSketches: it takes datasketches, which is not installed.
        """
        if sketch[:1] == _EXACT:
            self._take(_exact_hashes(sketch))
        else:
            part = _hll(sketch)
            self.estimate()
            if self._merged is None:
                self._merged = _new_union()
            self._merged.update(part)

    def add_hashes(self, hashes: bytes) -> None:
        """Unite with hashes of 8 bytes, in any order.

        Raises:
            ValueError: no whole number of hashes.
            NoSketches: as :meth:`estimate`.
        """
        self._take(_numbers(hashes))

    def _take(self, hashes: "array[int]") -> None:
        if self._estimated is not None:
            deque(map(self._estimated.update, hashes), maxlen=0)
            return
        self._hashes.update(hashes)
        if len(self._hashes) > self._most:
            self.estimate()

    def estimate(self) -> None:
        """Go on as an HLL, which takes some KB however many members there are.

        Raises:
            NoSketches: it takes datasketches, which is not installed.
        """
        if self._estimated is None:
            hll = _module()
            self._estimated = hll.hll_sketch(LG_K, hll.HLL_4)
            deque(map(self._estimated.update, self._hashes), maxlen=0)
            self._hashes = set()

    def sketch(self) -> bytes:
        """The union as a sketch to be stored.

        Raises:
            NoSketches: it takes datasketches, which is not installed.
        """
        if self._estimated is None and len(self._hashes) <= MOST_EXACT:
            return _EXACT + _bytes_of(sorted(self._hashes))
        return _HLL + _image(self._result())

    def visitors(self) -> Visitors:
        """How many members there are.

        Raises:
            NoSketches: as :meth:`sketch`.
        """
        if self._estimated is None:
            number = len(self._hashes)
            return Visitors(number, False, number, number)
        result = self._result()
        low, high = result.get_lower_bound(2), result.get_upper_bound(2)
        return Visitors(round(result.get_estimate()), True, floor(low), ceil(high))

    def _result(self) -> "hll_sketch":
        """The union as an HLL whose estimate does not depend on the order in which it came."""
        self.estimate()
        hll = _module()
        both = _new_union()
        both.update(self._estimated)
        if self._merged is not None:
            both.update(self._merged.get_result(hll.HLL_8))
        # Small ones become an array member by member, which only merging with itself makes one of
        # no order.
        found = both.get_result(hll.HLL_8)
        merged = _new_union()
        for _ in range(2):
            merged.update(found)
        return merged.get_result(hll.HLL_4)


def checksum(counter: str, bucket: int, key: bytes, slot: int, sketch: bytes) -> int:
    """The CRC-32 of a row: of its primary key and its sketch, so that one in another row's place
    is found as well.

    Args:
        counter: its name.
        bucket: the bucket's label, which has its width.
        key: the key.
        slot: its slot.
        sketch: the bytes.
    """
    place = f"{counter}\0{bucket}\0{slot}\0{len(key)}\0"
    return crc32(sketch, crc32(key, crc32(place.encode())))


def _exact_hashes(sketch: bytes) -> "array[int]":
    if len(sketch) % HASH_BYTES != 1 or len(sketch) > 1 + MOST_EXACT * HASH_BYTES:
        raise DamagedSketch(f"{len(sketch):,} bytes are no set of up to {MOST_EXACT} hashes")
    found = _numbers(sketch[1:])
    if any(left >= right for left, right in pairwise(found)):
        raise DamagedSketch("the hashes of a set are not in order")
    return found


def _numbers(hashes: bytes) -> "array[int]":
    found = array("Q")
    found.frombytes(hashes)
    if _LITTLE_ENDIAN:
        found.byteswap()
    return found


def _bytes_of(numbers: Iterable[int]) -> bytes:
    found = array("Q", numbers)
    if _LITTLE_ENDIAN:
        found.byteswap()
    return found.tobytes()


_LITTLE_ENDIAN: Final = array("Q", [1]).tobytes()[0] == 1


def _hll(sketch: bytes) -> "hll_sketch":
    """The HLL of a sketch of that kind. The library trusts its numbers: let it read only what is
    as it was written, by its checksum.
    """
    if sketch[:1] != _HLL:
        raise DamagedSketch(
            f"a sketch begins with 01 or 02, not with {sketch[:1].hex() or 'nothing'}"
        )
    hll = _module()
    try:
        return hll.hll_sketch.deserialize(sketch[1:])
    except (ValueError, IndexError, RuntimeError, MemoryError) as error:
        raise DamagedSketch(f"these bytes are no HLL: {error}") from error


def _image(found: "hll_sketch") -> bytes:
    """The bytes of an HLL: coupons, and the exceptions of an array, which the library writes in any
    order, are sorted.
    """
    image: bytes = found.serialize_compact()
    at = _SORTED_AT[image[_MODE_BYTE] & 3]
    values = struct.unpack(f"<{(len(image) - at) // 4}I", image[at:])
    return image[:at] + struct.pack(f"<{len(values)}I", *sorted(values))


def _new_union() -> "hll_union":
    return _module().hll_union(LG_K)


def _module() -> Any:
    """The library; imported by those who need it."""
    try:
        import datasketches  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise NoSketches(
            f"more than {MOST_EXACT} different members of a key (of an answer {MOST_UNITED:,}) take"
            f" datasketches, which is not installed: {INSTALL}"
        ) from error
    return datasketches
