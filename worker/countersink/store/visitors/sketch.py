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
_SET_HEAD: Final = bytes([3, 1, 7, LG_K])
_ARRAY_HEAD: Final = bytes([10, 1, 7, LG_K])
"""The first bytes: length of the head in ints, version of the format, family, lg_k."""
_SET_TAIL: Final = bytes([0x08, 0, 1])
_ARRAY_TAIL: Final = bytes([0x18, 2])
"""Flags (compact; of an array also: merged) and mode."""
_LG_MOST_COUPONS: Final = LG_K - 3
_MOST_COUPONS: Final = 3 << (_LG_MOST_COUPONS - 2)
_UNUSED: Final = (1 << (26 - LG_K)) - 1
_MOST_VALUE: Final = 63
_MODE_BYTE: Final = 7
_ARRAY_AT: Final = 40
_SORTED_AT: Final = {0: 8, 1: 12, 2: _ARRAY_AT + _REGISTERS // 2}
"""Where the coupons begin of an HLL that is a list (0) or a set (1) of them, and what does not fit
the four bits of its register of one that is an array (2)."""
_COUPON_ADDRESS_BITS: Final = 26


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


def sketch_of(hashes: bytes) -> bytes:
    """The sketch of hashes of 8 bytes, in any order.

    Raises:
        ValueError: no whole number of hashes.
        NoSketches: it takes datasketches, which is not installed.
    """
    union = SketchUnion()
    union.add_hashes(hashes)
    return union.sketch()


def united(sketches: Iterable[bytes]) -> bytes:
    """The union of sketches.

    Raises:
        DamagedSketch, NoSketches: as :meth:`SketchUnion.add`.
    """
    union = SketchUnion()
    for sketch in sketches:
        union.add(sketch)
    return union.sketch()


def require_intact(sketch: bytes) -> None:
    """Check that these bytes are a sketch.

    Raises:
        DamagedSketch, NoSketches: as :meth:`SketchUnion.add`.
    """
    SketchUnion().add(sketch)


def registers(sketch: bytes) -> bytes:
    """The 8,192 registers of a sketch: equal for equal sets, whatever was united in which order.

    Raises:
        DamagedSketch: these bytes are none.
        NoSketches: datasketches is not installed.
    """
    hll = _module()
    union = SketchUnion()
    union.add(sketch)
    merged = _new_union()
    merged.update(union._result())
    found = merged.get_result(hll.HLL_8)
    image = found.serialize_updatable()
    if image[_MODE_BYTE] & 3 == 2:
        return bytes(image[_ARRAY_AT : _ARRAY_AT + _REGISTERS])
    image = _image(found)
    values = bytearray(_REGISTERS)
    for (coupon,) in struct.iter_unpack("<I", image[_SORTED_AT[image[_MODE_BYTE] & 3] :]):
        at = coupon % _REGISTERS
        values[at] = max(values[at], coupon >> _COUPON_ADDRESS_BITS)
    return bytes(values)


def checksum(counter: str, bucket: int, key: bytes, slot: int | None, sketch: bytes) -> int:
    """The CRC-32 of a row: of its primary key and its sketch, so that one in another row's place
    is found as well.

    Args:
        counter: its name.
        bucket: the bucket's label.
        key: the key.
        slot: None in a month.
        sketch: the bytes.
    """
    place = f"{counter}\0{bucket}\0{'' if slot is None else slot}\0{len(key)}\0"
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
    """The HLL of a sketch of that kind, looked at before the library reads it, which trusts its
    numbers: with wrong ones it ends the process.
    """
    if sketch[:1] != _HLL:
        raise DamagedSketch(
            f"a sketch begins with 01 or 02, not with {sketch[:1].hex() or 'nothing'}"
        )
    hll = _module()
    image = sketch[1:]
    if not (_is_set(image) or _is_array(image)):
        raise DamagedSketch(f"these {len(image):,} bytes are no HLL as it is written")
    try:
        found = hll.hll_sketch.deserialize(image)
    except (ValueError, IndexError, RuntimeError, MemoryError) as error:
        raise DamagedSketch(f"these bytes are no HLL: {error}") from error
    if _image(found) != image:
        raise DamagedSketch("these bytes are no HLL as it is written")
    return found


def _is_set(image: bytes) -> bool:
    """Whether these are bytes of an HLL that is a set of coupons."""
    if image[:4] != _SET_HEAD or image[5:8] != _SET_TAIL or len(image) % 4 or len(image) < 12:
        return False
    number, *coupons = struct.unpack(f"<{len(image) // 4 - 2}I", image[8:])
    if not 0 < number == len(coupons) <= _MOST_COUPONS or 4 * number > 3 << image[4]:
        return False
    rising = all(left < right for left, right in pairwise(coupons))
    return rising and coupons[0] >> _COUPON_ADDRESS_BITS > 0 and image[4] <= _LG_MOST_COUPONS


def _is_array(image: bytes) -> bool:
    """Whether these are bytes of an HLL that is an array, with the numbers that follow from it:
    see ``HllArray-internal.hpp`` of datasketches-cpp.
    """
    at = _SORTED_AT[2]
    if image[:4] != _ARRAY_HEAD or image[5:6] + image[7:8] != _ARRAY_TAIL or len(image) < at:
        return False
    least = image[6]
    hip, sums, at_least, exceptions = struct.unpack("<d16sII", image[8:_ARRAY_AT])
    # Half a byte is a register above the least one; 15: it is among the exceptions.
    numbers = _half_bytes(image[_ARRAY_AT:at])
    if (at_least, exceptions) != (numbers[0], numbers[15]) or len(image) != at + 4 * exceptions:
        return False
    values = {least + digit: number for digit, number in enumerate(numbers[:15])}
    there = set[int]()
    for (exception,) in struct.iter_unpack("<I", image[at:]):
        slot, value = exception % _REGISTERS, exception >> _COUPON_ADDRESS_BITS
        # The low four bits of a byte are the register with the even number.
        half = image[_ARRAY_AT + slot // 2] >> 4 * (slot % 2) & 15
        if value < least + 15 or half != 15 or exception >> LG_K & _UNUSED:
            return False
        there.add(slot)
        values[value] = values.get(value, 0) + 1
    if len(there) != exceptions or max(values) > _MOST_VALUE + 15:
        return False
    small, large = (  # inverse powers of two
        sum(number * 2.0**-value for value, number in values.items() if (value >= 32) is above)
        for above in (False, True)
    )
    return bool(hip == 0 and sums == struct.pack("<dd", small, large))


def _half_bytes(data: bytes) -> list[int]:
    """How many half bytes there are of each value."""
    import numpy  # noqa: PLC0415 (datasketches needs it, and nobody else)

    bytes_of_each = numpy.bincount(numpy.frombuffer(data, numpy.uint8), minlength=256)
    square = bytes_of_each.reshape(16, 16)
    found: list[int] = (square.sum(axis=0) + square.sum(axis=1)).tolist()
    return found


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
