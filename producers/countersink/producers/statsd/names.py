"""Counter names and keys made of what clients send: valid, bounded, and apart where they were."""

import re
from hashlib import blake2b
from typing import Final

from countersink.stream.limits import MAX_COUNTER_LENGTH, MAX_KEY_BYTES

_MARK_BYTES: Final = 8
_MARK: Final = 2 * _MARK_BYTES + 1
"""Characters that tell a shortened name from others: ``~`` or ``-`` and 16 hex digits."""
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_.:\-]", re.ASCII)


def counter_name(name: str) -> str:
    """``name`` as a counter's: ``_`` for each character that none may have; cut, with a hash of the
    whole, where it is longer than 64. Not for an empty one.
    """
    clean = _NOT_ALLOWED.sub("_", name)
    if len(clean) <= MAX_COUNTER_LENGTH:
        return clean
    return f"{clean[: MAX_COUNTER_LENGTH - _MARK]}-{_hash(name)}"


def key_text(key: str) -> str:
    """``key``; cut, with a hash of the whole, where it is longer than 255 bytes of UTF-8."""
    if len(key) * 4 <= MAX_KEY_BYTES:
        return key
    data = key.encode()
    if len(data) <= MAX_KEY_BYTES:
        return key
    return f"{data[: MAX_KEY_BYTES - _MARK].decode('utf-8', 'ignore')}~{_hash(key)}"


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=_MARK_BYTES).hexdigest()
