"""``TrackedTables``: plan, track, untrack, list, repair and check tables whose rows triggers count.
See ``triggers.py`` for the triggers, and ``row_count.py`` for ``row_count()``."""

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

    ``progress(done, about)`` is called with the number of rows counted so far and an estimate of
    all rows; ``notice(sentence)`` with warnings and reasons to wait. Every method raises the errors
    of :mod:`countersink.database.errors`.

    Args:
        connect: opens sessions at REPEATABLE READ, with the tables' version checked, whose server
            may be silent for :data:`countersink.row_counts.check.COUNT_SECONDS`.
        pool: sessions for reading.
        database: countersink's database.
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
        """The plan of :meth:`track`, with all its checks; changes nothing."""
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
        """Count a table's rows from now on, while it is written to, and without locking it.

        Run it again if it was interrupted: it continues.

        Args:
            table: ``name`` (in countersink's database), ``schema.name``, or either part in
                backquotes.
            counter: an unused counter; by default the table's name.
            by: columns whose values make the key, in this order; see
                :mod:`countersink.row_counts.encoding`.
            day: a DATE, DATETIME or TIMESTAMP column whose date (UTC) is the day; see
                :mod:`countersink.row_counts.encoding`.
            app_slots: number of slots of the triggers, 1 to 256: about the number of connections
                that write at once.
            progress: called during the counting.
            notice: called with the plan's warnings and reasons to wait.

        Returns:
            the tracked table.

        Raises:
            ValueError: the table cannot be tracked so; the message has the reason, and what can be
                done. Nothing was changed.
            Refused: a right is missing; the message has the GRANT. Nothing was changed.
            Conflict: a transaction has been using the table all the time, or another process is
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
        """Drop the triggers of a table and delete its counter; returns the former tracked table.

        Removes exactly the things that :meth:`track` has created, also if some are missing or
        :meth:`track` was interrupted. Run it again if it was interrupted itself.

        Args:
            table_or_counter: a table that is tracked in one counter, or a counter whose name is not
                the name of another tracked table.
            counter: the counter, in place of ``table_or_counter``.
            notice: called with reasons to wait.

        Raises:
            UnknownCounter: no tracked table or its counter has this name.
            ValueError: the table is tracked in several counters: name one of them.
            Conflict: a transaction has been using the table all the time.
        """
        tracked = self._find(table_or_counter, counter)
        lifecycle.untrack(self._connect, tracked, notice)
        return tracked

    def list(self) -> builtins.list[TrackedTable]:
        """All tracked tables, by counter."""
        return self._pool.read(definitions.read_all)

    def repair(
        self,
        table_or_counter: str | None = None,
        *,
        counter: str | None = None,
        progress: Progress = ignore,
        notice: Notice = ignore,
    ) -> Repaired:
        """Create missing triggers again, and count the rows again, while the table is written to.

        Args:
            table_or_counter, counter, notice: as of :meth:`untrack`.
            progress: called during the counting.

        Raises:
            UnknownCounter: no tracked table or its counter has this name.
            ValueError: the table is tracked in several counters: name one of them; or it cannot be
                tracked any more.
            Conflict: as :meth:`track`.
        """
        name = self._find(table_or_counter, counter).counter
        done = lifecycle.count(self._connect, self._database, name, progress, notice)
        return replace(done, tracked=self._of_counter(name))

    def check(self, session: Session, tracked: TrackedTable) -> builtins.list[RowDifference]:
        """Problems of a tracked table: see :func:`countersink.row_counts.check.check`.

        Args:
            session: at REPEATABLE READ, outside a transaction.
            tracked: the table.
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
