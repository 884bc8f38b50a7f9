"""Room that one side fills and another promises to others."""


class Room:
    """So many units, and who has them.

    Promises are made without the owner's lock, which a thread that waits in the midst of one could
    hold up for ever: by two figures, of which each side writes one, ``promised`` and ``until``.
    Whoever wants room moves its own first, then looks at the other's, and moves back if that is too
    much. So of two at the same moment at least one sees the other, and never do both take the last
    room.

    Attributes:
        limit: units that there are in all.
        promised: units that were ever promised, and those for which somebody is just trying.
            Written by whoever promises, one thread at a time.
        redeemed: promised units that have come.
        until: what ``promised`` may come to: ``limit`` less what is held, and more by what was
            redeemed. Written by the owner, as is ``redeemed``.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.promised = 0
        self.redeemed = 0
        self.until = limit

    @property
    def reserved(self) -> int:
        """Units that were promised and are still to come."""
        return self.promised - self.redeemed

    @property
    def free(self) -> int:
        """Units that nobody has."""
        return self.until - self.promised

    def promise(self, units: int) -> bool:
        """Promise as many, if there are."""
        self.promised += units
        if self.promised <= self.until:
            return True
        self.promised -= units
        return False

    def claim(self, units: int) -> bool:
        """Take as many, if there are."""
        if self.free < units:
            return False
        self.until -= units
        if self.free >= 0:
            return True
        self.until += units  # promised to others at this moment
        return False

    def recount(self, held: int) -> None:
        """``held`` units are held."""
        self.until = self.limit - held + self.redeemed
