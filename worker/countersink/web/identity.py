"""Who asks, and what they may do."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

Scope = Literal["ingest", "read", "admin"]
SCOPES: Final[tuple[Scope, ...]] = ("ingest", "read", "admin")
"""``ingest``: add to counters and take numbers. ``read``: see totals and the system's state.
``admin``: both, and change what is there, such as dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Somebody whose request was let in.

    Attributes:
        key_id: the public part of the API key; empty where there is none.
        name: for people and logs.
        scopes: what they may do; ``admin`` includes the others.
        counters: shell patterns of the counters they may name; empty: all.
        public: nobody in particular: only what is public is for them, and only by 1.
    """

    key_id: str = ""
    name: str = ""
    scopes: frozenset[Scope] = frozenset()
    counters: tuple[str, ...] = ()
    public: bool = False

    def may(self, scope: Scope) -> bool:
        """Whether ``scope`` is theirs."""
        return scope in self.scopes or "admin" in self.scopes

    def may_name(self, counter: str) -> bool:
        """Whether a counter (or sequence) is theirs to name."""
        return not self.counters or any(fnmatchcase(counter, each) for each in self.counters)
