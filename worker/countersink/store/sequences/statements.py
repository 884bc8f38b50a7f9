"""The SQL statements that hand out values of sequences.

Each adds and says what came of it in one step: ``LAST_INSERT_ID(expr)`` makes the new value the
insert id of the server's reply ("Information Functions" in the MySQL manual). It is cast, since its
type is unsigned and the column's is not. Everything else that counts is read under the lock of the
same statement: the options under a share lock, so that a change of them waits for every statement
that went by the old ones.

They come without arguments, since some run on the application's own connections: names are hex
literals, and numbers are those that :func:`_integer` lets through.
"""

from dataclasses import dataclass

from countersink.store.sequences.options import MAX_VALUE, MIN_VALUE, PeriodSql
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
        f"INSERT INTO {tables.values} (name, period, value, min_value, max_value, updated_at,"
        f" handed, handed_at) SELECT o.name, {place.expression}, {first}, o.minimum, o.maximum,"
        f" UTC_TIMESTAMP(3), {_block_end(_begin(asked), asked)}, UTC_TIMESTAMP(3)"
        f" FROM {tables.options} AS o"
        f" WHERE {_options(name, place, asked)} LOCK IN SHARE MODE"
        f" ON DUPLICATE KEY UPDATE {_handed(tables.values, asked)},"
        f" value = {_added(f'{tables.values}.value', asked)}, min_value = o.minimum,"
        " max_value = o.maximum, updated_at = UTC_TIMESTAMP(3)"
    )


def go_on(tables: SequenceTables, name: bytes, place: PeriodSql, asked: ValueRequest) -> str:
    """As :func:`hand_out`, only where there is a row."""
    return (
        f"UPDATE {tables.options} AS o JOIN {tables.values} AS s ON s.name = o.name"
        f" SET {_handed('s', asked)},"
        f" s.value = {_added('s.value', asked)}, s.min_value = o.minimum,"
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
    added = f"CAST(LAST_INSERT_ID({value} + {_times(asked.n, asked)}) AS SIGNED)"
    return _cycled(value, asked, "CAST(LAST_INSERT_ID({}) AS SIGNED)", added)


def _handed(row: str, asked: ValueRequest) -> str:
    """Counts ``handed`` on, from what it was, so that a ``value`` that was changed by hand stays
    another one. Before all other columns: by what they were. It has more digits than a value, and
    is never an error.
    """
    known = f"IF({row}.handed_at = {row}.updated_at, {row}.handed, {row}.value)"
    added = f"CAST({known} AS DECIMAL(30)) + {_times(asked.n, asked)}"
    handed = _cycled(f"{row}.value", asked, "{}", added)
    return f"{row}.handed = {handed}, {row}.handed_at = UTC_TIMESTAMP(3)"


def _cycled(value: str, asked: ValueRequest, form: str, added: str) -> str:
    """What comes after a value: where it is beyond the limits of a sequence that cycles, the end of
    the first block, in a form; else ``added``.
    """
    wide = f"CAST({value} AS DECIMAL(20)) + {_times(asked.n, asked)}"
    # Within the limits, as configure() has seen to, whatever step this caller takes.
    again = form.format(_block_end("COALESCE(o.start, o.step)", asked))
    return f"IF(o.cycle AND ({wide} > o.maximum OR {wide} < o.minimum), {again}, {added})"


def _integer(value: int) -> str:
    """A number as a literal.

    One beyond 64 bits would be unsigned or a decimal, and so would what it is added to: what is
    beyond the column would then be clipped in the insert id, and not be an error.
    """
    if not MIN_VALUE <= value <= MAX_VALUE:
        raise ValueError(f"{value} is beyond 64 bits")
    return f"{value:d}"
