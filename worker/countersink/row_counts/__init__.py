"""``TrackedTables``: plans, tracks, untracks, lists, repairs and checks tables whose rows are
counted by triggers. See ``triggers.py`` for the triggers, and ``row_count.py`` for ``row_count()``.
"""

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
from countersink.row_counts.triggers import Notice, ignore


class TrackedTables:
    """The tracked tables. Thread-safe and fork-safe.

    Two arguments of the methods are functions. ``progress(done, about)`` is called with the number
    of rows counted so far, and with an estimate of the number of all rows. ``notice(sentence)`` is
    called with each warning, and with each reason to wait. Every method may raise the errors of
    :mod:`countersink.database.errors`.

    Args:
        connect: opens a session at REPEATABLE READ, and checks the tables' version. A query of this
            session may take :data:`countersink.row_counts.check.COUNT_SECONDS`.
        pool: sessions for reading.
        database: name of countersink's database.
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
        """Return the plan to track a table: the tracked table, the SQL of its triggers, and
        warnings. Nothing is changed. The plan is checked as by :meth:`track`, except that some
        refusals (by the ledger, or by the server at CREATE TRIGGER) come only there.

        Args:
            table, counter, by, day, app_slots: the table, the counter for its rows, the columns of
                the key, the day column, and the number of slots, as :meth:`track` takes them.

        Raises:
            ValueError: the table cannot be tracked in this way. The message says why, and what can
                be done.
            Refused: the user lacks a right. The message has the GRANT statement.
        """
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
        progress: Progress = ignore,
        notice: Notice = ignore,
    ) -> TrackedTable:
        """Track a table: create triggers that count every change of its rows from now on, and count
        the rows that it has. The table can be written to meanwhile; only while a trigger is
        created, statements on the table wait, about a second at most each time.

        If this is interrupted, run it again: it continues. If the table is tracked in just this way
        already, its triggers are repaired and its rows counted again. After ValueError or Refused,
        a table that was not tracked before stays untracked, unless it has triggers by then.

        Args:
            table: the table: ``name`` (in countersink's database) or ``schema.name``. Each part may
                be in backquotes.
            counter: the counter for the rows. It must be unused, unless the table is tracked in it
                already. By default it is named as ``table`` without backquotes: ``orders``, or
                ``shop.orders``.
            by: columns whose values make the key, in this order; see
                :mod:`countersink.row_counts.keys`. Without columns all rows have the key ``''``.
            day: a column of type DATE, DATETIME or TIMESTAMP. A row is counted on the column's date
                (of a TIMESTAMP, in UTC); see :mod:`countersink.row_counts.keys`. None: all rows are
                counted on 1970-01-01.
            app_slots: number of slots that the triggers use, 1 to 256. It should be about the
                number of connections that write to the table simultaneously.
            progress: called while the rows are counted.
            notice: called with a sentence on each kind of change that the triggers do not count
                rightly (``Plan.warnings``), and on each reason to wait.

        Returns:
            the tracked table.

        Raises:
            ValueError: the table cannot be tracked in this way. The message says why, and what can
                be done.
            Refused: the user lacks a right. The message has the GRANT statement.
            Conflict: a transaction went on using the table, another process is counting it, or it
                was truncated or altered meanwhile.
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
                lifecycle.undo_claim(self._connect, plan.definition)
            raise
        return self._of_counter(name)

    def untrack(
        self,
        table_or_counter: str | None = None,
        *,
        counter: str | None = None,
        notice: Notice = ignore,
    ) -> TrackedTable:
        """Drop the triggers of a tracked table, delete its counter, and return the table as it was
        tracked.

        This removes exactly what :meth:`track` has created, even if a part of that is missing or
        :meth:`track` was interrupted. If this is interrupted itself, run it again.

        Args:
            table_or_counter: a table that is tracked in only one counter; or a counter whose name
                is not also the name of another tracked table.
            counter: the counter, instead of ``table_or_counter``.
            notice: called with reasons to wait.

        Raises:
            UnknownCounter: no tracked table, and no counter of a tracked table, has this name.
            ValueError: the table is tracked in several counters: name one of them. Or the name is
                a counter of one table, and the name of another.
            TypeError: neither or both of the names are given.
            Conflict: a transaction went on using the table, or another process is counting its
                rows. Run this again.
        """
        tracked = self._find(table_or_counter, counter)
        lifecycle.untrack(self._connect, tracked, notice)
        return tracked

    def list(self) -> builtins.list[TrackedTable]:
        """Return all tracked tables, sorted by counter."""
        return self._pool.read(definitions.read_all)

    def repair(
        self,
        table_or_counter: str | None = None,
        *,
        counter: str | None = None,
        progress: Progress = ignore,
        notice: Notice = ignore,
    ) -> Repaired:
        """Create missing and changed triggers of a tracked table again, drop wrong ones, count its
        rows again, and correct its counter. Return what was repaired. The table can be written to
        meanwhile.

        Args:
            table_or_counter: a table that is tracked in only one counter; or a counter whose name
                is not also the name of another tracked table.
            counter: the counter, instead of ``table_or_counter``.
            progress: called while the rows are counted.
            notice: called with reasons to wait.

        Raises:
            UnknownCounter: no tracked table, and no counter of a tracked table, has this name.
            ValueError: the table is tracked in several counters: name one of them. Or the name is
                a counter of one table, and the name of another. Or the table cannot be tracked any
                more.
            TypeError: neither or both of the names are given.
            Conflict: a transaction went on using the table, another process is counting it, or it
                was truncated or altered meanwhile. Run this again.
        """
        name = self._find(table_or_counter, counter).counter
        done = lifecycle.count(self._connect, self._database, name, progress, notice)
        return replace(done, tracked=self._of_counter(name))

    def check(self, session: Session, tracked: TrackedTable) -> builtins.list[RowDifference]:
        """Return the problems of a tracked table, such as changed triggers or a wrong count; an
        empty list if there are none. See :func:`countersink.row_counts.check.check`.

        Args:
            session: a session at REPEATABLE READ, outside a transaction.
            tracked: the tracked table.
        """
        return check.check(session, tracked)

    def _find(self, table_or_counter: str | None, counter: str | None) -> TrackedTable:
        if (table_or_counter is None) == (counter is None):
            raise TypeError("name either a table or a counter")
        if table_or_counter is not None:
            return definitions.find_one(self.list(), table_or_counter, self._database)
        return self._of_counter(counter)

    def _of_counter(self, counter: str | None) -> TrackedTable:
        found = next((each for each in self.list() if each.counter == counter), None)
        if found is None:
            raise UnknownCounter(
                f"no table is tracked in the counter {counter!r}: see `countersink track --list`"
            )
        return found
