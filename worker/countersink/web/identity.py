"""Who asks, and what they may do."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from countersink.store.api_keys import SCOPES, Scope

__all__ = ["EVERYBODY", "NOBODY", "SCOPES", "Identity", "Scope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Somebody whose request was let in.

    Attributes:
        key_id: the public part of the API key; empty where there is none.
        name: for people and logs.
        scopes: what they may do; ``admin`` includes the others.
        counters: shell patterns of the counters they may name; empty: all.
        public: they may add to public counters alone, and only 1 at a time: somebody without a
            key, or with one that may not count.
        session: hash of the cookie, where they have logged in with the key; else empty.
    """

    key_id: str = ""
    name: str = ""
    scopes: frozenset[Scope] = frozenset()
    counters: tuple[str, ...] = ()
    public: bool = False
    session: bytes = field(default=b"", repr=False)

    def may(self, scope: Scope) -> bool:
        """Whether ``scope`` is theirs."""
        return scope in self.scopes or "admin" in self.scopes

    def may_name(self, counter: str) -> bool:
        """Whether a counter (or sequence) is theirs to name."""
        return not self.counters or any(fnmatchcase(counter, each) for each in self.counters)


EVERYBODY: Final = Identity(name="everybody", scopes=frozenset(SCOPES))
"""Whoever asks while no key was ever made: who can reach the server may do everything."""

NOBODY: Final = Identity(name="nobody", public=True)
"""Whoever shows no key where one is needed, at a door that is open to the public."""
