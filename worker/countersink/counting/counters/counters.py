"""``Counters`` for programs: list, show, set, delete, strict mode, default number of keys; checks
of the values and their messages are in ``settings.py``."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from countersink.counting.apply import key_caps
from countersink.counting.apply.control import Control, bump, exclusive, read_control
from countersink.counting.counters import breakdowns as declared
from countersink.counting.counters import buckets, deletion, keep_steps, settings
from countersink.counting.counters.all_counters import refuse_tracked
from countersink.counting.counters.breakdowns import check_breakdowns, check_dimensions
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.deletion import Deleted
from countersink.counting.counters.settings import Counter, MaxKeys, SettingsChange
from countersink.counting.visitors import check_salt_days
from countersink.database.session import Connect, Session, explained
from countersink.database.sessions import Pool

__all__ = ["Counter", "Counters", "Deleted"]

Result = TypeVar("Result")


class Counters:
    """The counters and their settings. Thread-safe and fork-safe.

    Workers follow a change at once and exactly: what they count after :meth:`set` has returned goes
    by it; applications' own transactions do within a minute. Every method raises what
    :mod:`countersink.database.errors` lists; Conflict: others were in the way all the time.

    Args:
        connect: makes sessions at REPEATABLE READ whose tables were checked.
        pool: for reading.
    """

    def __init__(self, connect: Connect, pool: Pool) -> None:
        self._connect = connect
        self._pool = pool

    def list(self) -> "list[Counter]":
        """Every counter that was made or counted, by name."""
        return self._pool.read(settings.read)

    def show(self, name: str) -> Counter:
        """One counter.

        Raises:
            UnknownCounter: it was neither made nor ever counted.
        """

        def work(session: Session) -> Counter:
            settings.require(session, name)
            return settings.read(session, name)[0]

        return self._pool.read(work)

    def set(
        self,
        name: str,
        *,
        time_zone: str | None = None,
        resolution: Resolution | None = None,
        keep: str | None = None,
        max_keys: MaxKeys | None = None,
        app_slots: int | None = None,
        dimensions: Sequence[str] | None = None,
        breakdowns: "Sequence[str | Sequence[str]] | None" = None,
        salt_days: int | None = None,
    ) -> Counter:
        """Make a counter, or change what is given of one; what is not given stays.

        Args:
            name: 1 to 64 of ``A-Z a-z 0-9 _ . : -``.
            time_zone: IANA name; whose midnights begin its days. At first UTC; it stays once
                anything was counted.
            resolution: ``day``, ``hour``, ``quarter`` (of an hour) or ``minute``, for what is
                counted from now on: from minutes and quarters the days of any zone can be added up,
                from hours those of zones that are whole hours from UTC. At first ``day``.
            keep: for how long buckets finer than months are kept, such as
                ``minute=2d,hour=90d,day=400d``: minutes for two days, then hours until 90 days,
                then days until 400, then months. ``"forever"``, as at first: none becomes a wider
                one any more.
            max_keys: keys that workers and backfills make for a day of it, 1 to 100,000,000; what
                comes for others goes to the key ``__overflow__``. ``"none"``: as for all counters
                (:meth:`set_max_keys`), as at first.
            app_slots: 1 to 256; over how many slots the application's own transactions spread. At
                first 16.
            dimensions: names that increments may have, at most 8; ``[]``: none, as at first.
            breakdowns: all combinations of them of which totals are to be kept, each as
                ``"page,country"``, or by its names in order. A new one holds the events from its
                ``since`` on: the counter's first midnight at least ten minutes ahead; all, if the
                counter was never counted. One that is left out is deleted with its counts.
            salt_days: count its different members, too, hashed with a salt that is another one
                every so many days of its time zone, 1 to 366; 0: always the same.

        Returns:
            the counter as it is now.

        Raises:
            ValueError: a value that cannot be, or a change that may not be; says what can.
            TrackedCounter: it is that of a tracked table.
        """
        settings.check_name(name)
        if time_zone is not None:
            buckets.zone(time_zone)
        wanted = SettingsChange(
            name,
            time_zone,
            None if resolution is None else settings.check_resolution(resolution),
            None if max_keys is None else (settings.check_max_keys(max_keys),),
            None if app_slots is None else settings.check_app_slots(app_slots),
            None if keep is None else keep_steps.parse(keep),
            None if dimensions is None else check_dimensions(dimensions),
            None if breakdowns is None else check_breakdowns(breakdowns),
            None if salt_days is None else check_salt_days(salt_days),
        )
        found = self._alone(partial(settings.change, wanted))
        if breakdowns is not None:
            with self._connect() as session:
                self._delete_removed(session, name)
        return found

    def _delete_removed(self, session: Session, name: str) -> None:
        """Delete what is left of the breakdowns of a counter that were removed."""
        for breakdown in declared.removed(session, name):
            deletion.delete_counter(session, breakdown)

    def delete(self, name: str, key: str | None = None) -> Deleted:
        """Delete a counter with all it was ever counted and its settings, or one key of it.

        In many short transactions, beside whoever counts; if it is interrupted, call it again. What
        is counted later, be it in the queue already, counts from 0, in the time zone and resolution
        that the counter had; else it has the defaults then.

        Raises:
            UnknownCounter: there is no such counter. (Of a key that it does not have 0 rows are
                deleted.)
            TrackedCounter: it is that of a tracked table.
            ValueError: the key ``""`` of a counter that has breakdowns, which hold the same events.
        """

        with self._connect() as session:
            refuse_tracked(session, name)
            settings.require(session, name)
            if key is None:
                if declared.names_of(session, name):
                    self._alone(lambda session, control: declared.remove_all(session, name))
                self._delete_removed(session, name)
                return deletion.delete_counter(session, name)
            if key == "" and declared.names_of(session, name):
                raise declared.empty_key(name)
            return deletion.delete_key(session, name, key)

    def strict(self) -> bool:
        """Whether rows of counters that were neither made nor counted before are refused."""
        return self._pool.read(lambda session: read_control(session, lock="").strict)

    def set_strict(self, on: bool) -> None:
        """From now on refuse rows of unknown counters (they become dead letters), or take them."""

        def switch(session: Session, control: Control) -> None:
            session.execute("UPDATE control SET strict = %s WHERE id = 1", (bool(on),))
            bump(session)

        self._alone(switch)

    def max_keys(self) -> int | None:
        """The most keys that a day may have, of counters without a cap of their own; None: any
        number.
        """
        return self._pool.read(lambda session: read_control(session, lock="").max_keys)

    def set_max_keys(self, max_keys: int | None) -> None:
        """Set that number, from now on and for days that have keys already too; None: no cap.

        Raises:
            ValueError: not a number from 1 to 100,000,000.
        """
        wanted = settings.check_max_keys(max_keys)

        def switch(session: Session, control: Control) -> None:
            session.execute("UPDATE control SET max_keys = %s WHERE id = 1", (wanted,))
            if control.max_keys is None:
                key_caps.count_anew(session)
            bump(session)

        self._alone(switch)

    def _alone(self, work: Callable[[Session, Control], Result]) -> Result:
        """Run ``work`` in a transaction while no worker is counting."""
        unchanged = "nothing was changed, since others held what it takes all the time"
        with self._connect() as session, explained(unchanged, "try again"):
            return exclusive(session, partial(work, session))
