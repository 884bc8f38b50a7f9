"""Things of which a process has one beside its services, made when first asked for."""

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from countersink.web.services import Services

T = TypeVar("T")


class OnePer(Generic[T]):
    """One ``T`` for each :class:`Services`, gone with it. For the event loop's thread.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[Services], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[Services, T] = WeakKeyDictionary()

    def of(self, services: Services) -> T:
        """That of ``services``."""
        found = self._made.get(services)
        if found is None:
            found = self._made[services] = self._make(services)
        return found
