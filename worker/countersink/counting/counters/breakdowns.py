"""Breakdowns of counters that have dimensions: names of their own counters, how many there may be,
checks of declarations with the error messages, which cells a row is counted in, which breakdown
answers a question, and the SQL of declaring and removing them.

What is counted of a combination of dimensions is a counter of its own, such as ``page_views#1``,
which no name that a user can give is. It has the settings of the counter that it
breaks down, and is counted with it, in the same transactions. Its keys are those of
:func:`countersink.runtime.dimensions.composite`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from countersink.counting.apply.control import bump
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

T = TypeVar("T")

MAX_BREAKDOWNS: Final = 32
MAX_NUMBER: Final = 99
"""Numbers of a counter's breakdowns, those that were removed included."""
MAX_LENGTH: Final = 61
"""Characters in the name of a counter with dimensions: its breakdowns' names have 3 more."""
NONE: Final = "none"
"""As dimensions or breakdowns: there are to be none."""

_STORED: Final = re.compile(r"([A-Za-z0-9_.:\-]{1,61})#([1-9][0-9]?)", re.ASCII)

_REMEMBERED: Final = 20_000
"""Values whose form in keys is remembered: some 10 MB of the longest."""
_part: Final = lru_cache(_REMEMBERED)(part)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A breakdown.

    Attributes:
        name: of the counter that holds it.
        dimensions: in the order of its keys' values.
        since: Unix minutes; it holds the events from then on. 0: all.
    """

    name: str
    dimensions: tuple[str, ...]
    since: int = 0

    def key(self, key: RowKey) -> str:
        """Where a row is counted: a missing dimension has the value ``''``."""
        return self.composed(dict(key) if not isinstance(key, str) else {})

    def composed(self, values: Mapping[str, str]) -> str:
        """The key of some values by their dimensions; as
        :func:`countersink.runtime.dimensions.composite`, which would look at each value anew.
        """
        count = len(self.dimensions)
        return SEPARATOR.join([_part(values.get(name, ""), count) for name in self.dimensions])

    @property
    def text(self) -> str:
        """Its dimensions, as they are written: ``page,country``."""
        return ",".join(self.dimensions)


@dataclass(frozen=True, slots=True)
class Dimensioned:
    """What a counter with dimensions has declared.

    Attributes:
        counter: its name.
        dimensions: the names that increments may have.
        breakdowns: in the order of their numbers.
    """

    counter: str
    dimensions: tuple[str, ...]
    breakdowns: tuple[Breakdown, ...] = ()

    def cells(self, key: RowKey, minute: int) -> Iterator[tuple[Breakdown, str]]:
        """Where else a row is counted, beside its counter's own key; nowhere for a key that is
        neither dimensions nor ``''``.
        """
        if isinstance(key, str) and key:
            return
        for each in self.breakdowns:
            if minute >= each.since:
                yield each, each.key(key)

    def require(self, key: RowKey) -> None:
        """Check that the dimensions of a row are declared.

        Raises:
            UnknownDimension: one is not.
        """
        if not isinstance(key, str):
            for name, _ in key:
                require_declared(self.counter, self.dimensions, name)

    def answering(self, wanted: Iterable[str], first: Iterable[str] = ()) -> list[Breakdown]:
        """The breakdowns that have some dimensions, at least one: the smallest first, of several
        such those that begin with some of them.

        Raises:
            UnknownDimension: there is none; the message names the one to declare.
        """
        names, leading = set(wanted), set(first)
        for name in sorted(names):
            require_declared(self.counter, self.dimensions, name)
        holding = [each for each in self.breakdowns if names <= set(each.dimensions)]
        if not holding:
            text = ",".join(sorted(names, key=self.dimensions.index))
            declared = " ".join([*(each.text for each in self.breakdowns), text])
            raise UnknownDimension(
                f"no breakdown of {self.counter!r} holds {text}: `countersink counter set"
                f" {self.counter} --breakdowns {declared}` counts it from then on"
            )
        return sorted(
            holding,
            key=lambda each: (
                len(each.dimensions),
                not leading <= set(each.dimensions[: len(leading)]),
            ),
        )


def require_declared(counter: str, dimensions: Sequence[str], name: str) -> None:
    """Check that a counter has a dimension.

    Raises:
        UnknownDimension: it has not.
    """
    if name not in dimensions:
        has = f"its dimensions are {', '.join(dimensions)}" if dimensions else "it has none"
        raise UnknownDimension(
            f"{counter!r} has no dimension {name!r} ({has}): declare it with `countersink counter"
            f" set {counter} --dimensions {','.join([*dimensions, name])}`"
        )


def is_breakdown(name: str) -> bool:
    """Whether this is the name of a breakdown."""
    return _STORED.fullmatch(name) is not None


def counter_of(name: str) -> str:
    """The counter that a breakdown breaks down; any other name itself."""
    return name.partition("#")[0]


def check_dimensions(names: Sequence[str] | str) -> tuple[str, ...]:
    """The dimensions that are to be declared; none for ``none`` and for an empty sequence.

    Raises:
        TypeError, ValueError: these cannot be dimensions.
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
    """The breakdowns that are to be declared: each by its dimensions, or as ``page,country``.

    Raises:
        TypeError, ValueError: these cannot be breakdowns.
    """
    if breakdowns == NONE or list(breakdowns) == [NONE]:
        return ()
    if isinstance(breakdowns, str):
        breakdowns = breakdowns.split()
    found = []
    for each in breakdowns:
        names = tuple(check_name(name) for name in _names(each))
        if not names:
            raise ValueError("a breakdown has one dimension or more")
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
    """Counters that have dimensions, or one; in the transaction or snapshot of the caller."""
    one, args = ("", ()) if counter is None else (" AND %s IN (name, breakdown_of)", (counter,))
    own: dict[str, tuple[str, ...]] = {}
    breakdowns: dict[str, list[Breakdown]] = {}
    for name, names, of, since in session.query(
        "SELECT name, dimensions, breakdown_of, since FROM counter"
        f" WHERE dimensions IS NOT NULL{one} ORDER BY LENGTH(name), name",
        args,
    ):
        dimensions = tuple(names.split(","))
        if of is None:
            own[name] = dimensions
        else:
            begun = 0 if since is None else unix_seconds(since) // 60
            breakdowns.setdefault(of, []).append(Breakdown(name, dimensions, begun))
    return {
        name: Dimensioned(name, dimensions, tuple(breakdowns.get(name, ())))
        for name, dimensions in own.items()
    }


def empty_key(counter: str) -> ValueError:
    """What to say where that key is to be deleted."""
    return ValueError(
        f"the key '' of {counter} holds the events that its breakdowns hold too, which would keep"
        " them: delete the counter, or remove its breakdowns first (`countersink counter set"
        f" {counter} --breakdowns {NONE}`)"
    )


def removed(session: Session, counter: str) -> list[str]:
    """The names of a counter's breakdowns that were removed, and are to be deleted, or were deleted
    a moment ago, when applications may still have counted in them.
    """
    return names_of(session, counter, "dimensions IS NULL")


def remove_all(session: Session, counter: str) -> None:
    """Let nothing be counted in a counter's breakdowns any more, in a transaction in which nobody
    counts.
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
    """Declare dimensions and breakdowns of a counter, which has its row. Breakdowns that are not
    named any more are removed.

    Args:
        session: in a transaction in which nobody counts.
        counter: its name.
        dimensions, breakdowns: what is wanted; None: as they are.
        since: Unix minutes from which on a new breakdown holds events; 0: it holds all.

    Raises:
        ValueError: it cannot be.
    """
    before = read_dimensioned(session, counter).get(counter, Dimensioned(counter, ()))
    there = {each.dimensions: each for each in before.breakdowns}
    names = before.dimensions if dimensions is None else dimensions
    wanted = tuple(there) if breakdowns is None else breakdowns
    if names and len(counter) > MAX_LENGTH:
        raise ValueError(
            f"{counter} has {len(counter)} characters, and a counter with dimensions at most"
            f" {MAX_LENGTH}: count under a shorter name"
        )
    for each in wanted:
        for name in each:
            if name not in names:
                raise ValueError(
                    f"the breakdown {','.join(each)} needs the dimension {name}: declare it as well"
                    " (--dimensions), or remove the breakdown (--breakdowns)"
                )
    session.execute(
        "UPDATE counter SET dimensions = %s WHERE name = %s", (",".join(names) or None, counter)
    )
    for gone in there.keys() - set(wanted):
        session.execute("UPDATE counter SET dimensions = NULL WHERE name = %s", (there[gone].name,))
    new = [each for each in wanted if each not in there]
    _add(session, counter, new, since)


def _add(session: Session, counter: str, new: Sequence[tuple[str, ...]], since: int) -> None:
    ((last,),) = session.query("SELECT last_breakdown FROM counter WHERE name = %s", (counter,))
    last = last or 0
    if last + len(new) > MAX_NUMBER:
        raise ValueError(
            f"{counter} has had {last} breakdowns, and there is no room for {len(new)} more: at"
            f" most {MAX_NUMBER} are possible, those that were removed included"
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


def names_of(session: Session, counter: str, condition: str = "created IS NOT NULL") -> list[str]:
    """The names of all of a counter's breakdowns, those that are being deleted included."""
    found = session.query(
        f"SELECT name FROM counter WHERE breakdown_of = %s AND {condition} ORDER BY name",
        (counter,),
    )
    return [name for (name,) in found]


def copy_settings(session: Session, counter: str) -> None:
    """Give a counter's breakdowns its settings; how far retention is with them stays as it is."""
    copied = ", ".join(f"own.{column} = whole.{column}" for column in _COPIED.split(", "))
    session.execute(
        "UPDATE counter AS own JOIN counter AS whole ON whole.name = own.breakdown_of"
        f" SET {copied} WHERE whole.name = %s",
        (counter,),
    )
