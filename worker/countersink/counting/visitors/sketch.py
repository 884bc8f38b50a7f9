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
from collections import deque
from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from countersink.counting.errors import DamagedSketch, NoSketches

if TYPE_CHECKING:
    from datasketches import hll_sketch, hll_union

MOST_EXACT: Final = 256
"""Members up to which a sketch that is stored is exact."""
MOST_UNITED: Final = 100_000
"""Members up to which a union of exact sketches is exact: some 9 MB."""
LG_K: Final = 13
INSTALL: Final = "install the extra: pip install 'countersink[sketches]'"

_EXACT: Final = b"\x01"
_HLL: Final = b"\x02"


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
        self._estimated: hll_union | None = None

    @property
    def exact(self) -> int:
        """Members that are kept exactly."""
        return len(self._hashes)

    def add(self, sketch: bytes) -> None:
        """Unite with a sketch, whose checksum is right: the library trusts the numbers in it.

        Raises:
            DamagedSketch: these bytes are none; the union is as it was.
            NoSketches: it takes datasketches, which is not installed.
        """
        kind, rest = sketch[:1], sketch[1:]
        try:
            if kind == _EXACT:
                self.add_hashes(rest)
            elif kind == _HLL:
                part = _module().hll_sketch.deserialize(rest)
                self.estimate().update(part)
            else:
                raise ValueError(f"it begins with {kind.hex() or 'nothing'}, not with 01 or 02")
        except (ValueError, IndexError, RuntimeError, MemoryError, struct.error) as error:
            raise DamagedSketch(f"these bytes are no sketch: {error}") from error

    def add_hashes(self, hashes: bytes) -> None:
        """Unite with hashes of 8 bytes, in any order.

        Raises:
            struct.error: no whole number of hashes.
            NoSketches: as :meth:`estimate`.
        """
        self._hashes.update(struct.unpack(f">{len(hashes) // 8}Q", hashes))
        if self._estimated is not None or len(self._hashes) > self._most:
            self.estimate()

    def estimate(self) -> "hll_union":
        """Go on as an HLL, which takes some KB however many members there are.

        Raises:
            NoSketches: it takes datasketches, which is not installed.
        """
        if self._estimated is None:
            self._estimated = _module().hll_union(LG_K)
        deque(map(self._estimated.update, self._hashes), maxlen=0)
        self._hashes.clear()
        return self._estimated

    def sketch(self) -> bytes:
        """The union as a sketch to be stored.

        Raises:
            NoSketches: it takes datasketches, which is not installed.
        """
        if self._estimated is None and len(self._hashes) <= MOST_EXACT:
            return _EXACT + struct.pack(f">{len(self._hashes)}Q", *sorted(self._hashes))
        image: bytes = self._result().serialize_compact()
        return _HLL + image

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
        hll = _module()
        # Small ones become an array member by member, which only merging with itself makes one of
        # no order.
        found = self.estimate().get_result(hll.HLL_8)
        merged = hll.hll_union(LG_K)
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
