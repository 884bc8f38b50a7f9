"""Sketches of members, and their registers by the library alone."""

import struct
from collections.abc import Iterable

import datasketches as hll

from countersink.counting.visitors import LG_K, SketchUnion

_REGISTERS = 1 << LG_K
_ARRAY = 2
_COUPONS_AT = {0: 8, 1: 12}
"""Where the coupons begin of a list (0) and of a set (1) of them."""


def sketch_of(hashes: bytes) -> bytes:
    """The sketch of hashes of 8 bytes, in any order."""
    union = SketchUnion()
    union.add_hashes(hashes)
    return union.sketch()


def united(sketches: Iterable[bytes]) -> bytes:
    """The union of sketches."""
    union = SketchUnion()
    for sketch in sketches:
        union.add(sketch)
    return union.sketch()


def registers(sketch: bytes) -> bytes:
    """The 8,192 registers of a sketch: equal for equal sets, whatever was united in which order."""
    union = hll.hll_union(LG_K)
    if sketch[0] == 1:
        part = hll.hll_sketch(LG_K, hll.HLL_4)
        for (number,) in struct.iter_unpack(">Q", sketch[1:]):
            part.update(number)
    else:
        part = hll.hll_sketch.deserialize(sketch[1:])
    union.update(part)
    found = union.get_result(hll.HLL_8)
    image = found.serialize_updatable()
    if image[7] & 3 == _ARRAY:
        return bytes(image[40 : 40 + _REGISTERS])
    image = found.serialize_compact()
    values = bytearray(_REGISTERS)
    for (coupon,) in struct.iter_unpack("<I", image[_COUPONS_AT[image[7] & 3] :]):
        at = coupon % _REGISTERS
        values[at] = max(values[at], coupon >> 26)
    return bytes(values)
