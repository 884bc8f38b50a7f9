"""``Counters``, the interface for programs: list, show, set and delete counters, switch strict
mode, and set the default cap of keys and the default settings. See ``settings.py`` for the checks
of values.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from countersink.counting.apply import key_caps
from countersink.counting.apply.guards import (
    Control,
    CounterDefaults,
    bump,
    exclusive,
    read_control,
)
from countersink.counting.counters import all_counters, buckets, deletion, keep_steps, settings
from countersink.counting.counters import breakdowns as declared
from countersink.counting.counters.all_counters import Better, check_better, refuse_tracked
from countersink.counting.counters.breakdowns import check_breakdowns, check_dimensions
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.catalog import default_scheme
from countersink.counting.counters.deletion import Deleted
from countersink.counting.counters.settings import Counter, MaxKeys, SettingsChange
from countersink.counting.visitors import check_salt_days
from countersink.database.session import Connect, Session, explained, rerun
from countersink.database.sessions import Pool

__all__ = ["Counter", "Counters", "Deleted"]

Result = TypeVar("Result")


class Counters:
    """All counters and their settings. Threads and forked processes may share an object.

    A change applies to each batch that workers begin after :meth:`set` has returned. It applies to
    transactions of applications within a minute. Every method can raise the errors of
    :mod:`countersink.database.errors`. Among these, Conflict means that other transactions held the
    needed rows at each attempt.

    Args:
        connect: opens sessions at REPEATABLE READ, after a check of the version of the tables.
        pool: sessions for reading.
    """

    def __init__(self, connect: Connect, pool: Pool) -> None:
        self._connect = connect
        self._pool = pool

    def list(self) -> "list[Counter]":
        """Return every counter that was created or has counted an event, in the order of names. A
        breakdown is no item of its own: each item has its counter's breakdowns.
        """
        return self._pool.read(settings.read)

    def show(self, name: str) -> Counter:
        """Return one counter with its settings.

        Raises:
            UnknownCounter: it was neither created nor ever counted.
        """

        def work(session: Session) -> Counter:
            all_counters.require(session, name)
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
        better: Better | None = None,
    ) -> Counter:
        """Create a counter, or change settings of an existing one. Settings that are not given stay
        as they are. A new counter has the default settings, see :meth:`set_defaults`.

        Args:
            name: 1 to 64 characters of ``A-Z a-z 0-9 _ . : -``.
            time_zone: IANA name of the zone in which the counter's days begin at midnight. It
                cannot be changed once the counter was counted.
            resolution: width of the buckets in which events are counted from now on: ``day``,
                ``hour``, ``quarter`` (of an hour) or ``minute``. Minutes and quarters add up to the
                days of any zone, hours only to those of zones that are whole hours from UTC.
            keep: how long buckets finer than months are kept. An example is
                ``minute=2d,hour=90d,day=400d``: minutes for 2 days, then hours until 90 days, then
                days until 400 days, then months. With ``"forever"`` no bucket is rolled up.
            max_keys: maximum number of keys per day that workers and backfills make, 1 to
                100,000,000. Further keys are counted together in the key ``__overflow__``.
                (Transactions of applications make any number of keys.) With ``"none"`` (default)
                the cap of :meth:`set_max_keys` applies.
            app_slots: number of slots over which transactions of applications spread, 1 to 256. The
                default is 16.
            dimensions: names of the dimensions that increments may have, at most 8. The default,
                ``[]``, allows none.
            breakdowns: each combination of dimensions for which totals are kept, as
                ``"page,country"`` or as a sequence of names. A new breakdown counts events from its
                ``since`` on: the first midnight in the counter's time zone that is at least ten
                minutes ahead and after all buckets in which the key ``""`` (of all events with
                dimensions) has counts. If the counter was never counted, and no application or
                backfill may be counting it now, the breakdown counts all events. An existing
                breakdown that is not in the list is deleted with its counts.
            salt_days: count different members (such as visitors), hashed with a salt that is
                renewed after this number of days (of the counter's time zone), 1 to 366. With 0 the
                salt is never renewed. By default, different members are not counted; once this is
                set, it can be changed, but not switched off.
            better: whether a rise is good (``up``, default), bad (``down``) or neither (``none``);
                the dashboard colours changes by it.

        Returns:
            The counter with its new settings.

        Raises:
            TypeError, ValueError: a value is invalid, or the change is not allowed; the message
                says what is allowed.
            TrackedCounter: the counter belongs to a tracked table.
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
            None if better is None else check_better(better),
        )
        found = self._exclusively(partial(settings.change, wanted))
        if breakdowns is not None:
            with self._connect() as session:
                self._delete_removed(session, name)
        return found

    def _delete_removed(self, session: Session, name: str) -> None:
        """Delete the breakdowns that were removed from a counter's settings, with all their rows.
        Each deletion takes several transactions, during which others may count.
        """
        for breakdown in deletion.removed_breakdowns(session, name):
            deletion.delete_counter(session, breakdown)

    def delete(self, name: str, key: str | None = None) -> Deleted:
        """Delete a counter with its counts, settings, breakdowns, notes and share links; or only
        one of its keys.

        The deletion takes many short transactions, and others may count meanwhile. If it was
        interrupted, call it again. Later increments, and those still in the queue, start from 0.
        They are counted in the time zone and resolution that the counter had, unless the defaults
        change ten minutes later or more; its other settings are the defaults. (If its time
        zone or resolution is not the default one, its buckets are kept for ever.)

        Args:
            name: the counter's name.
            key: the key to delete; None deletes the counter.

        Returns:
            The number of deleted rows and the sum of their amounts; those of breakdowns are not
            included.

        Raises:
            UnknownCounter: there is no such counter. (If only the key is missing, 0 rows are
                deleted.)
            TrackedCounter: the counter belongs to a tracked table.
            ValueError: the key is ``""``, and the counter has breakdowns, which would keep the
                events of this key.
        """

        with self._connect() as session:
            refuse_tracked(session, name)
            all_counters.require(session, name)
            if key is None:
                if all_counters.names_of(session, name):
                    self._exclusively(lambda session, control: declared.remove_all(session, name))
                self._delete_removed(session, name)
                return deletion.delete_counter(session, name)
            if key == "" and all_counters.names_of(session, name):
                raise declared.empty_key(name)
            return deletion.delete_key(session, name, key)

    def defaults(self) -> CounterDefaults:
        """Return the default settings: time zone, resolution and steps of retention."""
        return self._pool.read(lambda session: read_control(session, lock="").defaults)

    def set_defaults(
        self,
        *,
        time_zone: str | None = None,
        resolution: Resolution | None = None,
        keep: str | None = None,
    ) -> CounterDefaults:
        """Change the default settings, which a counter gets when it is created or counted for the
        first time. Counters that exist keep their settings. A counter that was deleted, or that an
        application was about to count, keeps its settings if this was less than ten minutes ago.
        Defaults that are not given stay as they are. In a new installation the defaults are
        ``UTC``, ``day`` and ``forever``.

        Args:
            time_zone: IANA name of the zone in which a counter's days begin at midnight.
            resolution: width of the buckets in which events are counted: ``day``, ``hour``,
                ``quarter`` (of an hour) or ``minute``.
            keep: how long buckets of each width are kept before they are rolled up to wider ones,
                such as ``minute=2d,hour=90d``; ``forever`` for no roll-up.

        Returns:
            The new default settings.

        Raises:
            TypeError, ValueError: a value is invalid, or a counter cannot have these settings
                together.
        """
        if time_zone is not None:
            buckets.zone(time_zone)
        if resolution is not None:
            settings.check_resolution(resolution)
        steps = None if keep is None else keep_steps.parse(keep)

        def change(session: Session, control: Control) -> CounterDefaults:
            zone, width, text = control.defaults
            if steps is not None:
                text = keep_steps.text_of(steps) if steps else None
            changed = CounterDefaults(time_zone or zone, resolution or width, text)
            scheme = default_scheme("a new counter", changed)
            settings.check_hours(scheme.time_zone, scheme.resolution, control.now // 1000)
            settings.check_steps(scheme, keep_steps.stored(text), None, control.now)
            names = all_counters.names_without_row(session)
            all_counters.insert_rows(session, names, control.defaults)
            session.execute(
                "UPDATE control SET time_zone = %s, resolution = %s, keep_steps = %s WHERE id = 1",
                changed,
            )
            bump(session)
            return changed

        # Before the lock, because there may be very many counters: few are left for the change.
        with self._connect() as session:
            rerun(partial(all_counters.insert_all_rows, session))
            changed = self._exclusively(change)
            all_counters.delete_unused_rows(session)
        return changed

    def strict(self) -> bool:
        """Return whether strict mode is on. Strict mode refuses rows of counters that were neither
        created nor counted.
        """
        return self._pool.read(lambda session: read_control(session, lock="").strict)

    def set_strict(self, on: bool) -> None:
        """Switch strict mode on or off. While it is on, rows of unknown counters become dead
        letters.
        """

        def switch(session: Session, control: Control) -> None:
            session.execute("UPDATE control SET strict = %s WHERE id = 1", (bool(on),))
            bump(session)

        self._exclusively(switch)

    def max_keys(self) -> int | None:
        """Return the default cap: the maximum number of keys per day of a counter without its own
        cap. None means any number.
        """
        return self._pool.read(lambda session: read_control(session, lock="").max_keys)

    def set_max_keys(self, max_keys: int | None) -> None:
        """Set the default cap of keys per day, of each counter without its own cap. It also applies
        to days that have keys already.

        Args:
            max_keys: maximum number of keys; None removes the default cap.

        Raises:
            ValueError: ``max_keys`` is not a number from 1 to 100,000,000.
        """
        wanted = settings.check_max_keys(max_keys)

        def switch(session: Session, control: Control) -> None:
            session.execute("UPDATE control SET max_keys = %s WHERE id = 1", (wanted,))
            if control.max_keys is None:
                key_caps.count_anew(session)
            bump(session)

        self._exclusively(switch)

    def _exclusively(self, work: Callable[[Session, Control], Result]) -> Result:
        """Run ``work`` in a transaction during which no worker counts, and return its result.
        ``work`` gets the session and the values of the control row. After a conflict with another
        transaction it is run again.

        Raises:
            Conflict: other transactions held the needed locks at each attempt.
        """
        unchanged = "nothing was changed, since other transactions held the needed locks"
        with self._connect() as session, explained(unchanged, "try again"):
            return exclusive(session, partial(work, session))
