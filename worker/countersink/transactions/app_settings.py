"""Settings by which an application's own transactions count (``AppSettings``), remembered for a
minute; the row of ``counter`` that fixes a time zone before anything is counted in it; refusals of
tracked counters and, in strict mode, of unknown ones.

Such a transaction takes no lock for them, neither on ``control`` nor on the counter. A change waits
for no application (but that of a resolution for one that has counted events from the future), and
none waits for a change. So a transaction may count by settings that were
changed a minute ago, or, if its process was stopped in between, longer ago. That is exact all the
same:

- A row says the width of its bucket, so another resolution only means rows of another width.
- The time zone of a counter does not change once its row says that applications count in it
  (``zone_fixed``), which is written, and committed, before the first bucket is computed.
- A breakdown begins at a midnight at least ten minutes after it was declared. The minute of an
  event is taken while the settings are at most a minute old: then it is before that midnight,
  however much later the row is written. For an event from the future they are read anew.

Ages are measured by two clocks: the monotonic one may stand still while a machine sleeps, the other
one may be set.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from countersink.counting.apply.control import read_control
from countersink.counting.counters.all_counters import known_names, refuse_tracked
from countersink.counting.counters.breakdowns import Dimensioned, read_dimensioned
from countersink.counting.counters.catalog import Catalog, read_schemes
from countersink.counting.errors import UnknownCounter
from countersink.database.session import Connect, Session, rerun
from countersink.database.sessions import Pool
from countersink.database.sql import Dialect
from countersink.runtime.limits import minute_of

KEPT_S: Final = 60.0
"""For how long settings are remembered."""
REMEMBERED: Final = 10_000
"""Counters whose settings are remembered; then all are forgotten, and read again when counted."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The monotonic clock and the wall clock of this machine, in seconds."""

    monotonic: float
    wall: float

    @staticmethod
    def now() -> "Clocks":
        """What they show."""
        return Clocks(time.monotonic(), time.time())


@dataclass(frozen=True, slots=True)
class AppSettings:
    """Settings of a counter, as of one moment.

    Attributes:
        catalog: of it and its breakdowns.
        app_slots: over how many slots the application's transactions spread.
        dialect: of the server.
        snapshot_isolation: whether the server has ``innodb_snapshot_isolation``.
        asked: the clocks before they were read.
        answered: the monotonic clock after it.
        now_ms: Unix ms of the server's clock in between.
    """

    catalog: Catalog
    app_slots: int
    dialect: Dialect
    snapshot_isolation: bool
    asked: Clocks
    answered: float
    now_ms: int

    def are_fresh(self, now: Clocks) -> bool:
        """Whether they are at most a minute old, by both clocks."""
        return all(
            0 <= age < KEPT_S
            for age in (now.monotonic - self.asked.monotonic, now.wall - self.asked.wall)
        )

    def minute(self, now: Clocks) -> int:
        """The Unix minute on the server's clock, or an earlier one."""
        return int(self.now_ms + 1000 * (now.monotonic - self.answered)) // 60_000


class SettingsCache:
    """Settings of counters, read where they are not remembered. Thread-safe and fork-safe.

    Args:
        connect: makes sessions at REPEATABLE READ whose tables were checked.
        pool: for reading.
        clocks: what the time is; for tests.
    """

    def __init__(
        self, connect: Connect, pool: Pool, clocks: Callable[[], Clocks] = Clocks.now
    ) -> None:
        self._connect = connect
        self._pool = pool
        self._clocks = clocks
        # One assignment replaces a value as a whole: no lock, and nothing that a fork could break.
        self._known: dict[str, AppSettings] = {}

    def of(self, counter: str, at: datetime | None) -> tuple[AppSettings, int]:
        """The settings to count a counter by, and the Unix minute of the event.

        Args:
            counter: its name, which was checked.
            at: when the event happened, aware; None: now, on the server's clock.

        Raises:
            TypeError, ValueError: as :func:`countersink.runtime.limits.minute_of`.
            UnknownCounter: in strict mode, of a counter that was neither made nor ever counted.
            TrackedCounter: it is that of a tracked table.
            StoreError: MySQL did not do its part.
        """
        minute = None if at is None else minute_of(at)
        found, anew = self._known.get(counter), False
        while True:
            now = self._clocks()
            if found is not None and found.are_fresh(now):
                current = found.minute(now)
                if minute is None:
                    return found, current
                if anew or minute <= current:
                    return found, minute
            found, anew = self.read(counter), True

    def dimensioned(self, counter: str) -> Dimensioned | None:
        """What a counter with dimensions has declared; of one that is not known, too.

        Raises:
            TrackedCounter, StoreError: as :meth:`of`.
        """

        def work(session: Session) -> Dimensioned | None:
            refuse_tracked(session, counter)
            return read_dimensioned(session, counter).get(counter)

        return self._pool.read(work)

    def forget(self, counter: str) -> None:
        """Read the settings anew the next time."""
        self._known.pop(counter, None)

    def read(self, counter: str) -> AppSettings:
        """The settings as they are now, and to be remembered.

        Raises:
            As :meth:`of`.
        """
        look = partial(_read, counter=counter, asked=self._clocks(), clocks=self._clocks)
        while (settings := self._pool.read(look)) is None:
            with self._connect() as session:
                rerun(partial(_fix_zone, session, counter))
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[counter] = settings
        return settings


_FIXED: Final = "zone_fixed > UTC_TIMESTAMP(3) - INTERVAL 5 MINUTE"
"""Whether a time zone stays for five minutes: it may change ten minutes after it was fixed."""


def _read(
    session: Session, counter: str, asked: Clocks, clocks: Callable[[], Clocks]
) -> AppSettings | None:
    """The settings in one snapshot; None where the time zone is to be fixed first."""
    refuse_tracked(session, counter)
    control = read_control(session, lock="")
    if control.strict and not known_names(session, (counter,)):
        raise UnknownCounter(
            f"no counter is called {counter!r}, and only known ones are counted here:"
            f" `countersink counter set {counter}` makes it"
        )
    fixed = session.query(
        f"SELECT app_slots, {_FIXED}"
        " OR EXISTS (SELECT 1 FROM counter_ledger AS l WHERE l.counter = name)"
        " FROM counter WHERE name = %s",
        (counter,),
    )
    if not fixed or not fixed[0][1]:
        return None
    own = read_dimensioned(session, counter)
    broken_down = own[counter].breakdowns if counter in own else ()
    schemes = read_schemes(session, [counter, *(each.name for each in broken_down)])
    return AppSettings(
        Catalog(control.catalog_version, control.strict, schemes, dimensioned=own),
        int(fixed[0][0]),
        session.dialect,
        session.snapshot_isolation,
        asked,
        clocks().monotonic,
        control.now,
    )


def _fix_zone(session: Session, counter: str) -> None:
    """Keep the time zone of a counter from being changed for ten minutes."""
    session.execute(
        "INSERT INTO counter (name, zone_fixed) VALUES (%s, UTC_TIMESTAMP(3))"
        " ON DUPLICATE KEY UPDATE zone_fixed = UTC_TIMESTAMP(3)",
        (counter,),
    )
