"""Keys picked by how they are written, byte by byte, as the table compares them."""

from dataclasses import dataclass

from countersink.store.keys import key_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMatch:
    """Which keys are wanted: all that satisfy both. Case and accents matter.

    Attributes:
        prefix: how they begin; empty for any.
        contains: what they have somewhere; empty for any.
    """

    prefix: str = ""
    contains: str = ""

    def __contains__(self, key: str) -> bool:
        """Whether a key is wanted."""
        written = key_bytes(key)
        return written.startswith(key_bytes(self.prefix)) and key_bytes(self.contains) in written

    def condition(self) -> tuple[str, tuple[object, ...]]:
        """The rest of a WHERE clause on ``counter_key``, from AND on, and its values."""
        terms: list[str] = []
        args: list[object] = []
        first = key_bytes(self.prefix)
        if first:
            terms.append(" AND counter_key >= %s")
            args.append(first)
            if (beyond := _after_all(first)) is not None:
                terms.append(" AND counter_key < %s")
                args.append(beyond)
        if self.contains:
            # Not LIKE: it gives %, _ and \ a meaning, and they are ordinary parts of a URL.
            terms.append(" AND LOCATE(%s, counter_key) > 0")
            args.append(key_bytes(self.contains))
        return "".join(terms), tuple(args)


ANY = KeyMatch()
"""All keys."""


def _after_all(prefix: bytes) -> bytes | None:
    """The least bytes that come after everything with this prefix; None where nothing does."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
