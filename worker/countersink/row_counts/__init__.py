"""``TrackedTables`` for programs: plan, track, untrack, list, repair, check; the triggers are in
``triggers.py``, ``row_count()`` in ``row_count.py``."""

import builtins
from collections.abc import Sequence
from dataclasses import replace

from countersink.counting.counters.settings import DEFAULT_APP_SLOTS
from countersink.counting.errors import UnknownCounter
from countersink.database.errors import StoreError
from countersink.database.session import Connect, Session
from countersink.database.sessions import Pool
from countersink.row_counts import check, definitions, lifecycle
from countersink.row_counts.check import Progress, RowDifference
from countersink.row_counts.definitions import TrackedTable
from countersink.row_counts.lifecycle import Plan
from countersink.row_counts.recount import Repaired
from countersink.row_counts.triggers import Notice, quiet


class TrackedTables:
    """The tables whose rows are counted. Thread-safe and fork-safe.

    ``progress(done, about)`` is told how many rows were counted so far and about how many there
    are; ``notice(sentence)`` what is being waited for. Every method raises what
    :mod:`countersink.database.errors` lists.

    Args:
        connect: makes sessions at REPEATABLE READ whose tables were checked; a server may be silent
            on them for :data:`countersink.row_counts.check.COUNT_SECONDS`.
        pool: for reading.
        database: where the tables of countersink are.
    """

    def __init__(self, connect: Connect, pool: Pool, database: str) -> None:
        self._connect = connect
        self._pool = pool
        self._database = database

    def plan(
        self,
        table: str,
        *,
        counter: str | None = None,
        by: Sequence[str] = (),
        day: str | None = None,
        app_slots: int = DEFAULT_APP_SLOTS,
    ) -> Plan:
        """What :meth:`track` would do; checks everything that can be, and changes nothing."""
        with self._connect() as session:
            return lifecycle.make_plan(session, self._database, table, counter, by, day, app_slots)

    def track(
        self,
        table: str,
        *,
        counter: str | None = None,
        by: Sequence[str] = (),
        day: str | None = None,
        app_slots: int = DEFAULT_APP_SLOTS,
        progress: Progress = quiet,
        notice: Notice = quiet,
    ) -> TrackedTable:
        """Count a table's rows from now on, beside whoever writes them and without locking it.

        Run it again if it was interrupted: it goes on.

        Args:
            table: ``name`` (in the database of countersink), ``schema.name``, or either part in
                backquotes.
            counter: the counter to count in, which nobody has used; else the table's name.
            by: columns whose values make the key, in this order; see
                :mod:`countersink.row_counts.encoding`.
            day: a DATE, DATETIME or TIMESTAMP whose date (UTC) is the day; see
                :mod:`countersink.row_counts.encoding`.
            app_slots: 1 to 256; over how many slots the triggers spread: about as many as
                connections write at once.
            progress: told how far the counting is.
            notice: told the plan's warnings, and what is being waited for.

        Returns:
            how the table is tracked.

        Raises:
            ValueError: it cannot be tracked so; says why, and what can. Nothing was changed.
            Refused: a right is missing; says what to grant. Nothing was changed.
            Conflict: a transaction has been using the table all the time, or somebody else is
                counting it.
        """
        with self._connect() as session:
            plan = lifecycle.make_plan(session, self._database, table, counter, by, day, app_slots)
            claimed = lifecycle.claim(session, plan.definition)
        for warning in plan.warnings:
            notice(warning)
        name = plan.definition.counter
        try:
            lifecycle.count(self._connect, self._database, name, progress, notice)
        except (StoreError, ValueError):
            if claimed:
                lifecycle.withdraw(self._connect, plan.definition)
            raise
        return self._of(name)

    def untrack(
        self,
        table_or_counter: str | None = None,
        *,
        counter: str | None = None,
        notice: Notice = quiet,
    ) -> TrackedTable:
        """Drop the triggers of a table and delete its counter; how it was tracked.

        It drops what :meth:`track` has made, also if some of it is gone or :meth:`track` was
        interrupted, and nothing else. Run it again if it was interrupted itself.

        Args:
            table_or_counter: a table that is tracked in one counter, or a counter whose name is
                that of no other tracked table.
            counter: instead: the counter, whatever tables are called.
            notice: told what is being waited for.

        Raises:
            UnknownCounter: nothing is tracked under this name.
            ValueError: the table is tracked in several counters, one of which is to be named.
            Conflict: a transaction has been using the table all the time.
        """
        tracked = self._named(table_or_counter, counter)
        lifecycle.forget(self._connect, tracked, notice)
        return tracked

    def list(self) -> builtins.list[TrackedTable]:
        """All tracked tables, by counter."""
        return self._pool.read(definitions.read_all)

    def repair(
        self,
        table_or_counter: str | None = None,
        *,
        counter: str | None = None,
        progress: Progress = quiet,
        notice: Notice = quiet,
    ) -> Repaired:
        """Make missing triggers anew, and count the rows again, beside whoever writes them.

        Args:
            table_or_counter, counter, notice: as for :meth:`untrack`.
            progress: told how far the counting is.

        Raises:
            UnknownCounter: nothing is tracked under this name.
            ValueError: the table is tracked in several counters, one of which is to be named; or
                it cannot be tracked any more.
            Conflict: as :meth:`track`.
        """
        name = self._named(table_or_counter, counter).counter
        done = lifecycle.count(self._connect, self._database, name, progress, notice)
        return replace(done, tracked=self._of(name))

    def check(self, session: Session, tracked: TrackedTable) -> builtins.list[RowDifference]:
        """What is wrong with a tracked table; as :func:`countersink.row_counts.check.check`.

        Args:
            session: at REPEATABLE READ, outside a transaction.
            tracked: the table.
        """
        return check.check(session, tracked)

    def _named(self, table_or_counter: str | None, counter: str | None) -> TrackedTable:
        if (table_or_counter is None) == (counter is None):
            raise TypeError("name a table or a counter, one of them")
        if table_or_counter is not None:
            return definitions.find_one(self.list(), table_or_counter, self._database)
        return self._of(counter)

    def _of(self, counter: str | None) -> TrackedTable:
        found = next((each for each in self.list() if each.counter == counter), None)
        if found is None:
            raise UnknownCounter(
                f"no table is tracked in the counter {counter!r}: see `countersink track --list`"
            )
        return found
