"""Rows of sequences: the SQL statements that hand out values; peek, list, set, reset, configure,
delete, with lock waits, tries and refusals.

A statement that hands out a value adds and says what came of it in one step:
``LAST_INSERT_ID(expr)`` makes the new value the insert id of the server's reply ("Information
Functions" in the MySQL manual). It is cast, since its type is unsigned and the column's is not.
Everything else that counts is read under the lock of the same statement: the options under a share
lock, so that a change of them waits for every statement that went by the old ones. They come
without arguments, since some run on the application's own connections: names are hex literals, and
numbers are those that :func:`_integer` lets through.

Each change is one transaction on a session of ours. The row of options is locked first, always:
shared by whoever changes a value, alone by whoever changes the options or deletes. So nobody goes
by options that have changed, and nobody deadlocks.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, date, datetime
from functools import partial
from operator import itemgetter
from typing import Any, Final, cast

from countersink.store.connection import Session, rerun
from countersink.store.errors import Conflict
from countersink.store.sequences.options import (
    ALL_TIME,
    COLUMNS,
    DEFAULTS,
    FIELDS,
    MAX_VALUE,
    MIN_VALUE,
    WITHOUT_PERIODS,
    PeriodLength,
    PeriodSql,
    Scheme,
    SequenceOptions,
    changed,
    first_day,
    limits,
    name_text,
    options_of,
    place_at,
    seconds_of,
)
from countersink.store.sql import quoted


@dataclass(frozen=True, slots=True)
class SequenceTables:
    """The two tables, by their full names, quoted."""

    values: str
    options: str

    @classmethod
    def of(cls, database: str) -> "SequenceTables":
        """Those of a database."""
        return cls(f"{quoted(database)}.sequence", f"{quoted(database)}.sequence_option")


@dataclass(frozen=True, slots=True)
class ValueRequest:
    """What a caller asks of a sequence: step, start, number of values.

    Attributes:
        step: None: the configured one.
        start: the first value, where there is none yet; None: the configured one, else the step.
        n: how many values.
        as_configured: ``step`` is what the configured one is thought to be; where it is another,
            nothing is handed out.
    """

    step: int | None = None
    start: int | None = None
    n: int = 1
    as_configured: bool = False

    def fits(self) -> bool:
        """Whether it is a matter of 64 bits from the value before a block to its last one."""
        return MIN_VALUE <= self.n * (self.step or 1) <= MAX_VALUE

    def values(self, last: int) -> range:
        """The values, from the last one; the step must be known if there are several."""
        step = self.step or 1
        return range(last - (self.n - 1) * step, last + step, step)


def hand_out(tables: SequenceTables, name: bytes, place: PeriodSql, asked: ValueRequest) -> str:
    """Make the row of the period, or add to it. The insert id is the last value handed out.

    Changes no row where the sequence has no options, or others than was thought, or the server's
    clock is outside of ``place``. Fails with one of the codes of a limit where the value *or the
    first value of a new row* is beyond the limits: servers check the row to be inserted before they
    find that there is one. Then :func:`go_on` knows.
    """
    first = f"CAST(LAST_INSERT_ID({_block_end(_begin(asked), asked)}) AS SIGNED)"
    return (
        f"INSERT INTO {tables.values} (name, period, value, min_value, max_value, updated_at)"
        f" SELECT o.name, {place.expression}, {first}, o.minimum, o.maximum, UTC_TIMESTAMP(3)"
        f" FROM {tables.options} AS o"
        f" WHERE {_options(name, place, asked)} LOCK IN SHARE MODE"
        f" ON DUPLICATE KEY UPDATE value = {_added(f'{tables.values}.value', asked)},"
        " min_value = o.minimum, max_value = o.maximum, updated_at = UTC_TIMESTAMP(3)"
    )


def go_on(tables: SequenceTables, name: bytes, place: PeriodSql, asked: ValueRequest) -> str:
    """As :func:`hand_out`, only where there is a row."""
    return (
        f"UPDATE {tables.options} AS o JOIN {tables.values} AS s ON s.name = o.name"
        f" SET s.value = {_added('s.value', asked)}, s.min_value = o.minimum,"
        " s.max_value = o.maximum, s.updated_at = UTC_TIMESTAMP(3)"
        f" WHERE {_options(name, place, asked)} AND s.period = {place.expression}"
    )


def make_options(tables: SequenceTables, name: bytes) -> str:
    """Give a new sequence its row of options: the lock on it is what makes changes exact."""
    return (
        f"INSERT IGNORE INTO {tables.options}"
        " (name, start, step, minimum, maximum, cycle, period, time_zone)"
        f" VALUES ({literal(name)}, NULL, 1, NULL, NULL, FALSE, 'none', 'UTC')"
    )


def literal(name: bytes) -> str:
    """A text as a literal, in any character set and ``sql_mode``."""
    return f"X'{name.hex()}'"


def _options(name: bytes, place: PeriodSql, asked: ValueRequest) -> str:
    scheme = place.scheme
    found = f"o.name = {literal(name)} AND o.period = '{scheme.period}'"
    if asked.as_configured:
        found += f" AND o.step = {_step(asked)}"
    if scheme.period == "none":
        return found
    return f"{found} AND o.time_zone = {literal(scheme.time_zone.encode())} AND {place.condition}"


def _step(asked: ValueRequest) -> str:
    return "o.step" if asked.step is None else _integer(asked.step)


def _begin(asked: ValueRequest) -> str:
    """The first value of a new row."""
    if asked.start is not None:
        return _integer(asked.start)
    return f"COALESCE(o.start, {_step(asked)})"


def _block_end(first: str, asked: ValueRequest) -> str:
    """The last value of a block, from its first one."""
    return first if asked.n == 1 else f"{first} + {_times(asked.n - 1, asked)}"


def _times(n: int, asked: ValueRequest) -> str:
    if asked.step is not None:
        return _integer(n * asked.step)
    if n != 1:
        raise ValueError("the step must be known where there are several values")
    return "o.step"


def _added(value: str, asked: ValueRequest) -> str:
    """The value after a block, as the insert id: where it would be beyond the limits of a sequence
    that cycles, the end of the first block.
    """
    step = _times(asked.n, asked)
    wide = f"CAST({value} AS DECIMAL(20)) + {step}"
    # Within the limits, as configure() has seen to, whatever step this caller takes.
    again = _block_end("COALESCE(o.start, o.step)", asked)
    return (
        f"IF(o.cycle AND ({wide} > o.maximum OR {wide} < o.minimum),"
        f" CAST(LAST_INSERT_ID({again}) AS SIGNED),"
        f" CAST(LAST_INSERT_ID({value} + {step}) AS SIGNED))"
    )


def _integer(value: int) -> str:
    """A number as a literal.

    One beyond 64 bits would be unsigned or a decimal, and so would what it is added to: what is
    beyond the column would then be clipped in the insert id, and not be an error.
    """
    if not MIN_VALUE <= value <= MAX_VALUE:
        raise ValueError(f"{value} is beyond 64 bits")
    return f"{value:d}"


CHANGE_LOCK_WAIT: Final = 1
"""Seconds to wait for a lock: meanwhile nobody gets a value, so give way and try again."""
ATTEMPTS: Final = 20
_SHARE: Final = "LOCK IN SHARE MODE"
_ALONE: Final = "FOR UPDATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Value, period and options of a sequence at a moment.

    Attributes:
        name: its name.
        value: the last one handed out (or set) in its current period; None: none was.
        period_start: the local date on which its current period began; None: it has no periods.
        updated_at: aware; when ``value`` was handed out or set; None where there is none.
        options: how it goes on.
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
        start: the local date on which the period began; None: for all time.
        value: the last one handed out or set in it.
        updated_at: aware; when that was.
    """

    start: date | None
    value: int
    updated_at: datetime


def peek(session: Session, name: bytes, day: date | None) -> int | None:
    """The last value of the current period, or of that in which ``day`` lies.

    Raises:
        ValueError: a day, but the sequence has no periods.
    """
    options = read_options(session, name)
    if options is None:
        return None
    if day is None:
        found = read_current(session, name, options.scheme)
        return None if found is None else found[1]
    if options.period == "none":
        raise ValueError(f"the sequence {name_text(name)!r} has no periods: leave the period out")
    rows = session.query(
        "SELECT value FROM sequence WHERE name = %s AND period = %s",
        (name, first_day(options.scheme, day)),
    )
    return int(rows[0][0]) if rows else None


def periods(session: Session, name: bytes) -> list[Period]:
    """All periods of a sequence, the earliest first."""
    rows = session.query(
        "SELECT period, value, updated_at FROM sequence WHERE name = %s ORDER BY period", (name,)
    )
    return [
        Period(start=_start(period.date()), value=int(value), updated_at=_aware(updated))
        for period, value, updated in rows
    ]


def total(session: Session, name: bytes) -> int:
    """The sum of the periods' last values; 0 where there is none."""
    ((found,),) = session.query("SELECT SUM(value) FROM sequence WHERE name = %s", (name,))
    return int(found or 0)


def read_all(session: Session, prefix: bytes) -> list[Sequence]:
    """The sequences whose names begin with ``prefix``, by name, compared byte by byte.

    Raises:
        Refused: a time zone is unknown on this machine.
    """
    if not prefix:
        return _read(session, "TRUE", ())
    # UTF-8 has no byte 255, so the last one can grow.
    behind = prefix[:-1] + bytes([prefix[-1] + 1])
    return _read(session, "o.name >= %s AND o.name < %s", (prefix, behind))


def read_options(session: Session, name: bytes, lock: str = "") -> SequenceOptions | None:
    """A sequence's options; None if there is no such sequence."""
    rows = session.query(
        f"SELECT {COLUMNS} FROM sequence_option AS o WHERE o.name = %s {lock}", (name,)
    )
    return options_of(rows[0]) if rows else None


def read_current(
    session: Session, name: bytes, scheme: Scheme, lock: str = ""
) -> tuple[datetime, int] | None:
    """What ``period`` holds for the current period, and its last value; None: none was handed out.

    Raises:
        Refused: the time zone is unknown on this machine.
    """
    rows = session.query(
        "SELECT period, value FROM sequence"
        f" WHERE name = %s AND period = {current(session, scheme).expression} {lock}",
        (name,),
    )
    return (rows[0][0], int(rows[0][1])) if rows else None


def current(session: Session, scheme: Scheme) -> PeriodSql:
    """The period that it is on the server's clock, for statements that are sent at once.

    They say which one it is, and not this machine: just as those that hand out values.

    Raises:
        Refused: the time zone is unknown on this machine.
    """
    if scheme.period == "none":
        return place_at(WITHOUT_PERIODS, 0)
    ((moment,),) = session.query("SELECT UTC_TIMESTAMP(6)")
    return place_at(scheme, seconds_of(moment))


def set_value(session: Session, tables: SequenceTables, name: bytes, value: int) -> None:
    """Let ``value`` be the last one handed out in the current period.

    Raises:
        ValueError: it is beyond the sequence's limits.
    """
    options = _locked_or_made(session, tables, name, _SHARE)
    if not options.allow(value):
        raise ValueError(
            f"{value} is not within the limits of {name_text(name)!r}, {limits(options)}: configure"
            " others first"
        )
    kept = (value, options.minimum, options.maximum)
    session.execute(
        "INSERT INTO sequence (name, period, value, min_value, max_value, updated_at)"
        f" VALUES (%s, {current(session, options.scheme).expression}, %s, %s, %s,"
        " UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE"
        " value = %s, min_value = %s, max_value = %s, updated_at = UTC_TIMESTAMP(3)",
        (name, *kept, *kept),
    )


def reset(session: Session, name: bytes) -> int | None:
    """Delete the current period's row; its value, None if there was none."""
    options = read_options(session, name, _SHARE)
    if options is None:
        return None
    found = read_current(session, name, options.scheme, _ALONE)
    if found is None:
        return None
    period, value = found
    session.execute("DELETE FROM sequence WHERE name = %s AND period = %s", (name, period))
    return value


def configure(
    session: Session, tables: SequenceTables, name: bytes, changes: Mapping[str, Any]
) -> Sequence:
    """Change the options given, which were checked one by one.

    Raises:
        ValueError: together, or with what was handed out already, they cannot be.
    """
    before = _locked_or_made(session, tables, name, _ALONE)
    after = changed(before, changes)
    if before.scheme != after.scheme:
        # Plain reads will do: whoever could add a row holds the options' row, which is ours now.
        if session.query("SELECT 1 FROM sequence WHERE name = %s LIMIT 1", (name,)):
            raise ValueError(
                f"the sequence {name_text(name)!r} has handed out values, so its period and time"
                " zone cannot change any more: reset or delete it first, or use another name"
            )
    else:
        found = read_current(session, name, after.scheme)
        if found is not None and not after.allow(found[1]):
            raise ValueError(
                f"the sequence {name_text(name)!r} stands at {found[1]}, which is not within"
                f" {limits(after)}: set or reset it first"
            )
    assignments = ", ".join(f"{field} = %s" for field in FIELDS)
    session.execute(
        f"UPDATE sequence_option SET {assignments} WHERE name = %s", (*astuple(after), name)
    )
    return _read(session, "o.name = %s", (name,))[0]


def delete(session: Session, name: bytes) -> bool:
    """Delete a sequence with its options and all its periods; False if there was none."""
    if read_options(session, name, _ALONE) is None:
        return False
    session.execute("DELETE FROM sequence WHERE name = %s", (name,))
    session.execute("DELETE FROM sequence_option WHERE name = %s", (name,))
    return True


def reset_all(session: Session) -> int:
    """Delete the current period's row of every sequence; how many there were.

    One short transaction for each, outside of any: a sequence that an application's transaction
    holds keeps none of the others waiting.

    Raises:
        Conflict: a sequence was held all the time; says how many before it by name were reset.
    """
    names = session.query(
        "SELECT o.name, o.period, o.time_zone FROM sequence_option AS o ORDER BY o.name"
    )
    deleted = 0
    for name, period, time_zone in names:
        now = current(session, Scheme(cast(PeriodLength, period), time_zone)).expression
        sql = f"DELETE FROM sequence WHERE name = {literal(bytes(name))} AND period = {now}"
        try:
            deleted += rerun(partial(session.execute, sql), attempts=ATTEMPTS)
        except Conflict as error:
            raise Conflict(
                f"{deleted} sequences were reset, and then an application's transaction held"
                f" {name_text(name)!r} all the time ({error}): try again",
                code=error.code,
            ) from error
    return deleted


def _read(session: Session, where: str, args: tuple[bytes, ...]) -> list[Sequence]:
    schemes = session.query(
        f"SELECT DISTINCT o.period, o.time_zone FROM sequence_option AS o WHERE {where}", args
    )
    found: list[tuple[bytes, Sequence]] = []
    for period, time_zone in schemes:
        now = current(session, Scheme(cast(PeriodLength, period), time_zone)).expression
        rows = session.query(
            f"SELECT o.name, {now}, s.value, s.updated_at, {COLUMNS} FROM sequence_option AS o"
            f" LEFT JOIN sequence AS s ON s.name = o.name AND s.period = {now}"
            f" WHERE {where} AND o.period = %s AND o.time_zone = %s",
            (*args, period, time_zone),
        )
        for name, start, value, updated, *options in rows:
            sequence = Sequence(
                name=name_text(name),
                value=None if value is None else int(value),
                period_start=_start(start.date()),
                updated_at=None if updated is None else _aware(updated),
                options=options_of(options),
            )
            found.append((bytes(name), sequence))
    return [sequence for _, sequence in sorted(found, key=itemgetter(0))]


def _start(period: date) -> date | None:
    return None if period == ALL_TIME else period


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)


def _locked_or_made(
    session: Session, tables: SequenceTables, name: bytes, lock: str
) -> SequenceOptions:
    options = read_options(session, name, lock)
    if options is None:
        session.execute(make_options(tables, name))
        options = read_options(session, name, lock)
    return options or DEFAULTS
