"""Changes of sequences by hand, each in one transaction on a session of ours.

The row of options is locked first, always: shared by whoever changes a value, alone by whoever
changes the options or deletes. So nobody goes by options that have changed, and nobody deadlocks.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

from countersink.store.connection import Session
from countersink.store.errors import Conflict
from countersink.store.rerun import rerun
from countersink.store.sequences.arguments import name_text
from countersink.store.sequences.boundaries import PeriodLength, Scheme
from countersink.store.sequences.options import DEFAULTS, Options, changed, limits
from countersink.store.sequences.statements import Tables, literal, make_options
from countersink.store.sequences.views import (
    Sequence,
    current,
    read_current,
    read_one,
    read_options,
)

CHANGE_LOCK_WAIT: Final = 1
"""Seconds to wait for a lock: meanwhile nobody gets a value, so give way and try again."""
ATTEMPTS: Final = 20
_SHARE: Final = "LOCK IN SHARE MODE"
_ALONE: Final = "FOR UPDATE"


def set_value(session: Session, tables: Tables, name: bytes, value: int) -> None:
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
    session: Session, tables: Tables, name: bytes, changes: Mapping[str, Any]
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
    session.execute(
        "UPDATE sequence_option SET start = %s, step = %s, minimum = %s, maximum = %s, cycle = %s,"
        " period = %s, time_zone = %s WHERE name = %s",
        (
            after.start,
            after.step,
            after.minimum,
            after.maximum,
            after.cycle,
            after.period,
            after.time_zone,
            name,
        ),
    )
    return read_one(session, name)[0]


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


def _locked_or_made(session: Session, tables: Tables, name: bytes, lock: str) -> Options:
    options = read_options(session, name, lock)
    if options is None:
        session.execute(make_options(tables, name))
        options = read_options(session, name, lock)
    return options or DEFAULTS
