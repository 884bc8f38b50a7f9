"""Breakdowns of counters: totals by the values of some dimensions, such as page and country.

This module has the names and limits of breakdowns. It checks declarations, yields the cells in
which a row is counted, and chooses the breakdowns that can answer a question. It has the SQL that
declares and removes breakdowns.

A breakdown is stored as a counter of its own with a reserved name, such as ``page_views#1``, which
users cannot give. It has most settings of its counter (:func:`copy_settings`), and is counted in
the same transaction.
:func:`countersink.runtime.dimensions.composite` makes its keys from the values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from countersink.counting.apply.guards import bump
from countersink.counting.errors import UnknownDimension
from countersink.database.session import Session
from countersink.database.sql import datetime_of, unix_seconds
from countersink.runtime.dimensions import (
    MAX_DIMENSIONS,
    SEPARATOR,
    RowKey,
    check_name,
    part,
)
from countersink.runtime.texts import did_you_mean

T = TypeVar("T")

MAX_BREAKDOWNS: Final = 32
MAX_NUMBER: Final = 99
"""Maximum number in a breakdown's name. The number of a removed breakdown is not used again."""
MAX_LENGTH: Final = 61
"""Maximum characters in the name of a counter with dimensions: its breakdowns' names have 3 more.
"""
NONE: Final = "none"
"""The text by which users declare no dimensions, or no breakdowns."""
ALIKE: Final = 0.65
"""Similarity from which on a name may be a misspelling of another: ``dya`` of ``day``, but not
``source`` of ``hour``."""


_REMEMBERED: Final = 20_000
"""Number of values whose encoded form is cached. The longest values take about 10 MB."""
_part: Final = lru_cache(_REMEMBERED)(part)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A breakdown of a counter: its dimensions, and the name under which it is stored.

    Attributes:
        name: name of the counter that stores it, such as ``page_views#1``.
        dimensions: its dimensions, in the order of their values in its keys.
        since: Unix minute from which on it counts events; 0 if it counts all events.
    """

    name: str
    dimensions: tuple[str, ...]
    since: int = 0

    def key(self, key: RowKey) -> str:
        """Return the key under which this breakdown counts a row, given the row's dimensions (or
        its key ``''``, if it has none). A dimension that the row does not have gets the value
        ``''``.
        """
        return self.composed(dict(key) if not isinstance(key, str) else {})

    def composed(self, values: Mapping[str, str]) -> str:
        """Return this breakdown's key for these values (by dimension). A missing value is taken as
        ``''``; values of other dimensions are ignored. The key equals the result of
        :func:`countersink.runtime.dimensions.composite`, but the encoded values are cached.
        """
        count = len(self.dimensions)
        return SEPARATOR.join([_part(values.get(name, ""), count) for name in self.dimensions])

    @property
    def text(self) -> str:
        """The dimensions as text, such as ``page,country``."""
        return ",".join(self.dimensions)


@dataclass(frozen=True, slots=True)
class Dimensioned:
    """The dimensions and breakdowns that a counter has declared.

    Attributes:
        counter: the counter's name.
        dimensions: names of the dimensions that increments may have, in the order in which they
            were declared.
        breakdowns: its breakdowns, in the order of their numbers.
    """

    counter: str
    dimensions: tuple[str, ...]
    breakdowns: tuple[Breakdown, ...] = ()

    def cells(self, key: RowKey, minute: int) -> Iterator[tuple[Breakdown, str]]:
        """Yield (breakdown, key in the breakdown) for each breakdown that counts a row. Breakdowns
        that begin after the row's minute do not count it. A row with a text other than ``''`` as
        its key is counted by no breakdown. A row with the key ``''`` has the value ``''`` for each
        dimension.

        Args:
            key: the row's key (a text), or its dimensions.
            minute: Unix minute of the row's events.
        """
        if isinstance(key, str) and key:
            return
        for each in self.breakdowns:
            if minute >= each.since:
                yield each, each.key(key)

    def require(self, key: RowKey) -> None:
        """Raise an error if a row has dimensions that the counter has not declared. A row with a
        key in place of dimensions is always allowed.

        Raises:
            UnknownDimension: a dimension is not declared; the message names it.
        """
        if not isinstance(key, str):
            for name, _ in key:
                require_declared(self.counter, self.dimensions, name)

    def answering(self, wanted: Iterable[str], first: Iterable[str] = ()) -> list[Breakdown]:
        """Return the breakdowns that have all dimensions in ``wanted``; there is at least one.
        Breakdowns with fewer dimensions come first, as fewer rows are read. Of breakdowns with
        equally many, those that begin with the dimensions in ``first`` (in any order) come first.
        When a breakdown began to count (``since``) does not matter here.

        Args:
            wanted: the dimensions by which a question groups, and those of which it gives a value.
            first: the dimensions of which the question gives a value. In a breakdown that begins
                with them, one range of the index has the wanted keys.

        Raises:
            UnknownDimension: the counter has not declared a dimension in ``wanted``, or no
                breakdown has all of them; the message says how to declare it.
        """
        names, leading = set(wanted), set(first)
        for name in sorted(names):
            require_declared(self.counter, self.dimensions, name)
        holding = [each for each in self.breakdowns if names <= set(each.dimensions)]
        if not holding:
            text = ",".join(sorted(names, key=self.dimensions.index))
            declared = " ".join([*(each.text for each in self.breakdowns), text])
            raise UnknownDimension(
                f"no breakdown of {self.counter!r} has {text}: declare one, which counts later"
                f" events, with `countersink counter set {self.counter} --breakdowns {declared}`"
            )
        return sorted(
            holding,
            key=lambda each: (
                len(each.dimensions),
                not leading <= set(each.dimensions[: len(leading)]),
            ),
        )


def require_declared(counter: str, dimensions: Sequence[str], name: str) -> None:
    """Raise an error if a counter has not declared a dimension.

    Args:
        counter: the counter's name.
        dimensions: names of the dimensions that the counter has declared.
        name: name of the dimension to look for.

    Raises:
        UnknownDimension: ``name`` is not in ``dimensions``.
    """
    if name not in dimensions:
        names = f"its dimensions are {', '.join(dimensions)}" if dimensions else "it has none"
        hint = did_you_mean(name, dimensions, ALIKE)
        step = f"{hint} Otherwise declare it" if hint else "declare it"
        keys = "" if dimensions else ", or ask by key"
        raise UnknownDimension(
            f"{counter!r} has no dimension {name!r} ({names}): {step} with `countersink counter"
            f" set {counter} --dimensions {','.join([*dimensions, name])}`{keys}"
        )


def check_dimensions(names: Sequence[str] | str) -> tuple[str, ...]:
    """Check names of dimensions, and return them as a tuple.

    Args:
        names: a sequence of names, or a text such as ``page,country``. The text ``none`` gives an
            empty tuple.

    Raises:
        TypeError, ValueError: a name is invalid or given twice, or there are more than 8.
    """
    if names == NONE:
        return ()
    checked = tuple(check_name(name) for name in _names(names))
    if len(checked) > MAX_DIMENSIONS:
        raise ValueError(f"a counter has at most {MAX_DIMENSIONS} dimensions, not {len(checked)}")
    return _each_once(checked, ",".join(checked))


def check_breakdowns(
    breakdowns: Sequence[str | Sequence[str]] | str,
) -> tuple[tuple[str, ...], ...]:
    """Check declarations of breakdowns, and return the dimensions of each breakdown.

    Args:
        breakdowns: a sequence with one item for each breakdown. An item is a sequence of
            dimensions, or a text such as ``page,country``. Or a single text with all items, with
            blanks between them. The text ``none`` gives an empty tuple.

    Raises:
        TypeError, ValueError: a declaration is invalid; or it is given twice, with its dimensions
            in the same order; or there are more than 32.
    """
    if breakdowns == NONE or list(breakdowns) == [NONE]:
        return ()
    if isinstance(breakdowns, str):
        breakdowns = breakdowns.split()
    found = []
    for each in breakdowns:
        names = tuple(check_name(name) for name in _names(each))
        if not names:
            raise ValueError("a breakdown needs at least one dimension")
        found.append(_each_once(names, ",".join(names)))
    if len(found) > MAX_BREAKDOWNS:
        raise ValueError(f"a counter has at most {MAX_BREAKDOWNS} breakdowns, not {len(found)}")
    return _each_once(tuple(found), " ".join(map(",".join, found)))


def _names(names: Sequence[str] | str) -> Sequence[str]:
    return names.split(",") if isinstance(names, str) else names


def _each_once(values: tuple[T, ...], text: str) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise ValueError(f"{text}: name each once")
    return values


def read_dimensioned(session: Session, counter: str | None = None) -> dict[str, Dimensioned]:
    """Return the declared dimensions and breakdowns of each counter that has dimensions, by the
    counter's name. With ``counter``, read only this counter; the result is empty if it has no
    dimensions. Reads in the caller's transaction or snapshot.
    """
    only, args = ("", ()) if counter is None else (" AND %s IN (name, breakdown_of)", (counter,))
    declared: dict[str, tuple[str, ...]] = {}
    breakdowns: dict[str, list[Breakdown]] = {}
    for name, names, parent, since in session.query(
        "SELECT name, dimensions, breakdown_of, since FROM counter"
        f" WHERE dimensions IS NOT NULL{only} ORDER BY LENGTH(name), name",
        args,
    ):
        dimensions = tuple(names.split(","))
        if parent is None:
            declared[name] = dimensions
        else:
            begun = 0 if since is None else unix_seconds(since) // 60
            breakdowns.setdefault(parent, []).append(Breakdown(name, dimensions, begun))
    return {
        name: Dimensioned(name, dimensions, tuple(breakdowns.get(name, ())))
        for name, dimensions in declared.items()
    }


def empty_key(counter: str) -> ValueError:
    """Return the error that a caller raises instead of deleting the key ``''`` of a counter with
    breakdowns.
    """
    return ValueError(
        f"the events of the key '' of {counter} are also counted in its breakdowns, which would"
        " keep them: delete the counter, or remove its breakdowns first (`countersink counter set"
        f" {counter} --breakdowns {NONE}`)"
    )


def remove_all(session: Session, counter: str) -> None:
    """Remove all breakdowns from a counter's settings, and increase the version of the catalog.
    Call this in a transaction during which nobody counts. The rows of the breakdowns stay until the
    caller deletes the breakdowns. The counter's dimensions stay declared.
    """
    session.execute("UPDATE counter SET dimensions = NULL WHERE breakdown_of = %s", (counter,))
    bump(session)


def declare(
    session: Session,
    counter: str,
    dimensions: tuple[str, ...] | None,
    breakdowns: tuple[tuple[str, ...], ...] | None,
    since: int,
) -> None:
    """Set the dimensions and breakdowns of a counter that has a row in ``counter``. Existing
    breakdowns that are not in ``breakdowns`` are removed from the settings. The caller deletes
    their rows, gives the counter's settings to new breakdowns (:func:`copy_settings`), and
    increases the version of the catalog.

    Args:
        session: in a transaction during which nobody counts.
        counter: the counter's name.
        dimensions, breakdowns: the complete new lists; None leaves a list unchanged.
        since: Unix minute from which on new breakdowns count events; 0 if they count all events.

    Raises:
        ValueError: a breakdown has a dimension that is not declared; or the counter has dimensions
            and a name of more than 61 characters; or it would have had more than 99 breakdowns,
            including removed ones. Roll back.
    """
    before = read_dimensioned(session, counter).get(counter, Dimensioned(counter, ()))
    stored = {each.dimensions: each for each in before.breakdowns}
    names = before.dimensions if dimensions is None else dimensions
    wanted = tuple(stored) if breakdowns is None else breakdowns
    if names and len(counter) > MAX_LENGTH:
        raise ValueError(
            f"the name {counter} has {len(counter)} characters, and a counter with dimensions can"
            f" have at most {MAX_LENGTH}: count under a shorter name"
        )
    for each in wanted:
        for name in each:
            if name not in names:
                raise ValueError(
                    f"the breakdown {','.join(each)} needs the dimension {name}: declare this, too"
                    " (--dimensions), or remove the breakdown (--breakdowns)"
                )
    session.execute(
        "UPDATE counter SET dimensions = %s WHERE name = %s", (",".join(names) or None, counter)
    )
    for old in stored.keys() - set(wanted):
        session.execute("UPDATE counter SET dimensions = NULL WHERE name = %s", (stored[old].name,))
    new = [each for each in wanted if each not in stored]
    _add(session, counter, new, since)


def _add(session: Session, counter: str, new: Sequence[tuple[str, ...]], since: int) -> None:
    ((last,),) = session.query("SELECT last_breakdown FROM counter WHERE name = %s", (counter,))
    last = last or 0
    if last + len(new) > MAX_NUMBER:
        raise ValueError(
            f"{counter} has had {last} breakdowns, including removed ones, and can have at most"
            f" {MAX_NUMBER} in all, so {len(new)} more cannot be added"
        )
    for number, dimensions in enumerate(new, last + 1):
        session.execute(
            "INSERT INTO counter (name, dimensions, breakdown_of, since, created)"
            " VALUES (%s, %s, %s, %s, UTC_TIMESTAMP(3))",
            (
                f"{counter}#{number}",
                ",".join(dimensions),
                counter,
                datetime_of(since * 60) if since else None,
            ),
        )
    session.execute(
        "UPDATE counter SET last_breakdown = %s WHERE name = %s", (last + len(new), counter)
    )


_COPIED: Final = (
    "time_zone, resolution, counted_minute, counted_quarter, counted_hour, counted_day, keep_steps,"
    " max_keys, app_slots"
)


def copy_settings(session: Session, counter: str) -> None:
    """Copy settings of a counter to its breakdowns: time zone, resolution (with the times of former
    resolutions), steps of retention, the counter's own cap of keys, and the number of slots for
    transactions of applications. The times up to which buckets are rolled up are not copied: each
    breakdown has its own.
    """
    copied = ", ".join(f"part.{column} = base.{column}" for column in _COPIED.split(", "))
    session.execute(
        "UPDATE counter AS part JOIN counter AS base ON base.name = part.breakdown_of"
        f" SET {copied} WHERE base.name = %s",
        (counter,),
    )
