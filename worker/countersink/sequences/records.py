"""The rows of the table ``sequence``, and the SQL to hand out values, and to peek, list, set,
reset, configure and delete.

The row of a sequence with the period 1970-01-01 is its base row. It has the options and, if the
sequence has no periods, the last value. To hand out a value or to change the sequence, that row is
locked first. So no outdated options are used, and there are no deadlocks.

:func:`add_sql` hands out most values, with one statement that adds to the last value and returns
the sum: ``LAST_INSERT_ID(expr)`` makes the sum the insert id of the server's reply ("Information
Functions" in the MySQL manual). The statement casts the sum, because ``LAST_INSERT_ID`` is unsigned
and the column is signed. In all other cases (a first value, periods, the end of a cycle)
:func:`hand_out` locks the base row, and this program computes the value.

The statements that hand out values have no bound arguments, because some of them run on the
application's own connections. Names are written as hex literals, and numbers have 64 bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Final

from countersink.database.errors import Conflict
from countersink.database.session import Session, rerun_transaction
from countersink.database.sql import marks
from countersink.sequences.options import (
    ALL_TIME,
    DEFAULTS,
    FIELDS,
    MAX_NAME_BYTES,
    MAX_VALUE,
    MIN_VALUE,
    SequenceOptions,
    ValueRequest,
    changed,
    limits,
    name_text,
    next_values,
)

Execute = Callable[[str], object]
Query = Callable[[str], list[tuple[Any, ...]]]
CHANGE_LOCK_WAIT: Final = 1
"""Seconds that a change waits for a lock. Meanwhile no value can be handed out."""
ATTEMPTS: Final = 20
TABLE: Final = "sequence"
_LOCK: Final = "FOR UPDATE"
_COLUMNS: Final = tuple("period_length" if name == "period" else name for name in FIELDS)
"""Columns of the options, in the order of :data:`FIELDS`. NULL stands for an option's default."""
_BASE: Final = (
    "TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP()), value, updated_at,"
    f" {', '.join(_COLUMNS)}"
)
"""SQL for the columns that :meth:`_Base.from_row` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A sequence with its last value, its period and its options, as they were when they were read.

    Attributes:
        name: the sequence's name.
        value: the last value handed out or set in the present period; None if there is none.
        period_start: local date on which the present period began; None if there are no periods.
        updated_at: aware time at which ``value`` was handed out or set; None if there is no value.
        options: the sequence's options.
    """

    name: str
    value: int | None
    period_start: date | None
    updated_at: datetime | None
    options: SequenceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The last value of a sequence in a period.

    Attributes:
        start: the local date on which the period began; None if the sequence has no periods.
        value: the last value that was handed out or set in the period.
        updated_at: aware time at which this value was handed out or set.
    """

    start: date | None
    value: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class _Base:
    """The base row of a sequence, read at ``seconds``, the server's time in Unix seconds. The value
    and its time are None if the sequence has periods, or no value yet."""

    seconds: int
    value: int | None
    updated_at: datetime | None
    options: SequenceOptions

    @classmethod
    def from_row(cls, seconds: Any, value: Any, updated_at: Any, *options: Any) -> "_Base":
        """Make a base row from the columns :data:`_BASE`, which a driver may return as bytes or
        texts. ``options`` are in the order of :data:`FIELDS`; None stands for a default."""
        given: dict[str, Any] = {}
        for name, option in zip(FIELDS, options, strict=True):
            if option is not None:
                text = isinstance(getattr(DEFAULTS, name), str)
                given[name] = _text(option) if text else int(option)
        given["cycle"] = bool(given.get("cycle"))
        return cls(int(seconds), _number(value), updated_at, SequenceOptions(**given))


ADDED: Final = 2
"""Number of changed rows that servers report if an :func:`add_sql` statement handed out values."""


def add_sql(table: str, name: bytes, asked: ValueRequest) -> str:
    """Return a statement that adds to the last value of a sequence without periods. If it reports
    :data:`ADDED` changed rows, its insert id is the new last value.

    Otherwise the statement has handed out nothing, and :func:`hand_out` is needed: the sequence has
    no value yet, or has periods, or the sum would be beyond its limits, or ``asked`` is for several
    values without a step and the sequence's own step is not 1. In each case the statement creates
    the sequence, without a value, if it does not exist.

    Args:
        table: name of the table ``sequence``, with or without its database.
        name: the sequence's name in UTF-8.
        asked: which values the caller asks for.
    """
    added, simple = f"{asked.n * (asked.step or 1):d}", "period_length IS NULL"
    if asked.step is None and asked.n == 1:
        added = "COALESCE(step, 1)"
    elif asked.step is None:
        simple += " AND step IS NULL"  # only the last value is returned: the step must be known
    simple += (
        f" AND CAST(value AS DECIMAL(20)) + {added} BETWEEN COALESCE(minimum, {MIN_VALUE:d})"
        f" AND COALESCE(maximum, {MAX_VALUE:d})"
    )
    return (
        f"{_upsert_base(table, name)} updated_at = IF({simple}, UTC_TIMESTAMP(3), updated_at),"
        f" value = IF({simple}, CAST(LAST_INSERT_ID(value + {added}) AS SIGNED), value)"
    )


def hand_out(execute: Execute, query: Query, table: str, name: bytes, asked: ValueRequest) -> range:
    """Hand out values of any sequence in the caller's transaction, and return them. The base row is
    locked until this transaction ends.

    Args:
        execute, query: functions that run a statement, and a query, in this transaction.
        table, name, asked: the table ``sequence``, the name in UTF-8, and the values asked for.

    Raises:
        SequenceExhausted, UnknownZone: nothing was handed out.
        Conflict: the sequence does not exist: it was deleted after :func:`add_sql` was executed.
    """
    base = _read_base(query, name, _LOCK, table)
    if base is None:
        raise Conflict(f"the sequence {name_text(name)!r} was deleted meanwhile: try again")
    period, last = _read_current(query, name, base, _LOCK, table)
    block = next_values(name, base.options, last, asked)
    execute(_set_sql(name, period, block[-1], table))
    return block


def literal(name: bytes) -> str:
    """Return bytes as an SQL literal, which is valid in any character set and ``sql_mode``."""
    return f"X'{name.hex()}'"


def peek(session: Session, name: bytes, day: date | None) -> int | None:
    """Return the last value of the period that contains ``day``, or of the present period if
    ``day`` is None. Return None if the period has no value, or if there is no such sequence.

    Raises:
        ValueError: ``day`` is given, but the sequence has no periods.
    """
    base = _read_base(session.query, name)
    if base is None:
        return None
    if day is None:
        return _read_current(session.query, name, base)[1]
    if base.options.period == "none":
        raise ValueError(f"the sequence {name_text(name)!r} has no periods: leave the period out")
    return _read_value(session.query, name, base.options.period_of(day))


def periods(session: Session, name: bytes) -> list[Period]:
    """Return all periods of a sequence that have a value, the earliest first."""
    rows = session.query(
        "SELECT period, value, updated_at FROM sequence WHERE name = %s AND value IS NOT NULL"
        " ORDER BY period",
        (name,),
    )
    return [
        Period(start=_start(period.date()), value=int(value), updated_at=_aware(updated))
        for period, value, updated in rows
    ]


def read_all(session: Session, prefix: bytes) -> list[Sequence]:
    """Return the sequences whose names begin with ``prefix``, sorted by name, byte by byte.

    Raises:
        UnknownZone: this machine does not know the time zone of one of these sequences.
    """
    return _read(session, prefix, prefix + b"\xff" * MAX_NAME_BYTES)


def set_value(session: Session, name: bytes, value: int) -> None:
    """Set the last value of the present period. Create the sequence if it does not exist.

    Raises:
        ValueError: ``value`` is beyond the sequence's limits.
    """
    base = _lock_or_create(session, name)
    if not base.options.allow(value):
        raise ValueError(
            f"{value} is not within the limits of {name_text(name)!r}, {limits(base.options)}:"
            " configure other limits first"
        )
    session.execute(_set_sql(name, base.options.period_at(base.seconds), value))


def reset(session: Session, name: bytes) -> int | None:
    """Delete the last value of the present period, in the caller's transaction, and return it.
    Return None if there was none, or if there is no such sequence."""
    base = _read_base(session.query, name, _LOCK)
    if base is None:
        return None
    period, value = _read_current(session.query, name, base, _LOCK)
    session.execute(
        f"UPDATE sequence SET value = NULL, updated_at = NULL WHERE {_is_row(name, period)}"
    )
    return value


def reset_all(session: Session) -> int:
    """Reset every sequence, and return the number of those that had a value in the present period.

    Each one is reset in a short transaction of its own. So if a transaction of an application holds
    one sequence, users of the others do not wait.

    Raises:
        Conflict: a sequence was locked through all attempts. Those with smaller names were reset.
    """
    done = 0
    for (name,) in session.query("SELECT name FROM sequence WHERE period = %s", (ALL_TIME,)):
        work = partial(reset, session, bytes(name))
        done += rerun_transaction(session, work, attempts=ATTEMPTS) is not None
    return done


def configure(session: Session, name: bytes, changes: Mapping[str, Any]) -> Sequence:
    """Change options of a sequence, which is created if it does not exist. Return the sequence.
    ``changes`` come from :func:`check_changes`, which has checked each by itself. Raise ValueError
    if the options contradict each other, if the present value is beyond the limits, or if period or
    time zone would change although some period has a value.
    """
    base = _lock_or_create(session, name)
    before, after = base.options, changed(base.options, changes)
    if (before.period, before.time_zone) != (after.period, after.time_zone):
        # A read without a lock is enough: every other change waits for the locked base row.
        if periods(session, name):
            raise ValueError(
                f"the sequence {name_text(name)!r} has handed out values, so its period and time"
                " zone cannot change any more: delete it first, or use another name"
            )
    else:
        value = _read_current(session.query, name, base)[1]
        if value is not None and not after.allow(value):
            raise ValueError(
                f"the value {value} of the sequence {name_text(name)!r} is not within"
                f" {limits(after)}: set or reset it first"
            )
    kept = [
        None if option == default else option
        for option, default in zip(astuple(after), astuple(DEFAULTS), strict=True)
    ]
    assignments = ", ".join(f"{column} = %s" for column in _COLUMNS)
    session.execute(f"UPDATE sequence SET {assignments} WHERE {_is_row(name, ALL_TIME)}", kept)
    return _read(session, name, name)[0]


def delete(session: Session, name: bytes) -> bool:
    """Delete a sequence with its options and all its periods. Return False if there was none."""
    # Rows are locked in the order of the primary key, in which the base row is the first.
    return session.execute("DELETE FROM sequence WHERE name = %s", (name,)) > 0


def _read(session: Session, first: bytes, last: bytes) -> list[Sequence]:
    """Return the sequences whose names are from ``first`` to ``last``, both included."""
    within = "FROM sequence WHERE name BETWEEN %s AND %s AND period"
    rows = session.query(
        f"SELECT name, {_BASE} {within} = %s ORDER BY name", (first, last, ALL_TIME)
    )
    bases = {bytes(name): _Base.from_row(*row) for name, *row in rows}
    current = {name: base.options.period_at(base.seconds) for name, base in bases.items()}
    periods = list({ALL_TIME, *current.values()})
    rows = session.query(
        f"SELECT name, period, value, updated_at {within} IN ({marks(periods)})",
        (first, last, *periods),
    )
    values = {
        (bytes(name), period.date()): (value, updated) for name, period, value, updated in rows
    }
    listed = []
    for name, base in bases.items():
        value, updated = values.get((name, current[name]), (None, None))
        listed.append(
            Sequence(
                name=name_text(name),
                value=value,
                period_start=_start(current[name]),
                updated_at=None if updated is None else _aware(updated),
                options=base.options,
            )
        )
    return listed


def _read_base(query: Query, name: bytes, lock: str = "", table: str = TABLE) -> _Base | None:
    rows = query(f"SELECT {_BASE} FROM {table} WHERE {_is_row(name, ALL_TIME)} {lock}")
    return _Base.from_row(*rows[0]) if rows else None


def _read_current(
    query: Query, name: bytes, base: _Base, lock: str = "", table: str = TABLE
) -> tuple[date, int | None]:
    """Return the first day of the present period by the server's clock, and the period's last
    value, which is None if there is none. Without periods, this is the value of ``base``, the base
    row. Otherwise a query reads the period's row, with ``lock`` (``FOR UPDATE`` or empty) at its
    end. Raise UnknownZone if this machine does not know the sequence's time zone.
    """
    period = base.options.period_at(base.seconds)
    if base.options.period == "none":
        return period, base.value
    return period, _read_value(query, name, period, lock, table)


def _read_value(
    query: Query, name: bytes, period: date, lock: str = "", table: str = TABLE
) -> int | None:
    rows = query(f"SELECT value FROM {table} WHERE {_is_row(name, period)} {lock}")
    return _number(rows[0][0]) if rows else None


def _lock_or_create(session: Session, name: bytes) -> _Base:
    session.execute(f"{_upsert_base(TABLE, name)} name = name")  # locks an existing row
    base = _read_base(session.query, name, _LOCK)
    assert base is not None
    return base


def _upsert_base(table: str, name: bytes) -> str:
    """Return ``INSERT … ON DUPLICATE KEY UPDATE`` for a base row; the caller adds assignments."""
    return (
        f"INSERT INTO {table} (name, period) VALUES ({literal(name)}, {_midnight(ALL_TIME)})"
        " ON DUPLICATE KEY UPDATE"
    )


def _set_sql(name: bytes, period: date, value: int, table: str = TABLE) -> str:
    """Return a statement that sets the last value of a period and its time, the server's present
    time. It inserts the period's row if need be. The caller must have locked the base row.
    """
    return (
        f"INSERT INTO {table} (name, period, value, updated_at) VALUES ({literal(name)},"
        f" {_midnight(period)}, {value:d}, UTC_TIMESTAMP(3))"
        f" ON DUPLICATE KEY UPDATE value = {value:d}, updated_at = UTC_TIMESTAMP(3)"
    )


def _is_row(name: bytes, period: date) -> str:
    return f"name = {literal(name)} AND period = {_midnight(period)}"


def _midnight(day: date) -> str:
    return f"TIMESTAMP'{day} 00:00:00'"


def _start(period: date) -> date | None:
    return None if period == ALL_TIME else period


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()
