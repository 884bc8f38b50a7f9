"""Time zones of the tests' own, to have a midnight when one is wanted.

The format is that of TZif (RFC 9636), version 1: a header, and here a single local time type.
"""

import struct
from pathlib import Path

DAY = 86_400


def write_zone(path: Path, midnight: int) -> None:
    """Write a time zone with one offset for all time, in which it is midnight at that moment.

    Args:
        path: of the file, below a directory of PYTHONTZPATH.
        midnight: Unix seconds.
    """
    offset = -midnight % DAY
    if offset > DAY // 2:
        offset -= DAY
    name = b"TST\0"
    header = struct.pack(">4sc15x6l", b"TZif", b"\0", 0, 0, 0, 0, 1, len(name))
    written = path.with_suffix(".new")
    written.write_bytes(header + struct.pack(">lbb", offset, 0, 0) + name)
    written.replace(path)
