"""What a question about totals selects: counter, keys (exact, prefix, contains, excluded), days or
times, a window that ends now (``Last``); checks with error messages.

Keys are chosen byte by byte, as the table compares them.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypedDict, Unpack

from countersink.counting.counters.buckets import MAX_MINUTE, UNITS, unix
from countersink.database.sql import day_label, marks, parts
from countersink.runtime.dimensions import check_dimensions
from countersink.runtime.limits import key_bytes, text_bytes

MAX_PARTS: Final = 1_000
"""Keys and prefixes of one match: more would make a statement that no index is used for."""


def _texts(given: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,) if given else ()
    return tuple(dict.fromkeys(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMatch:
    """Which keys are wanted. Case and accents matter; no character has a meaning of its own.

    A key is wanted if it is one of ``keys`` or begins with one of ``prefix`` (where there are
    neither, any key), has ``contains`` in it, and is not excluded.

    Attributes:
        keys: these.
        prefix: those that begin so: one text, or several; an empty one says nothing.
        contains: what they have somewhere; empty for any.
        exclude_keys: not these, whatever else is said.
        exclude_prefix: nor those that begin so: one text, or several.
        values: (place, part): parts that keys of breakdowns have, by their places from 0.

    Raises:
        ValueError: an empty prefix is excluded, which would be all keys; or there are more than
            :data:`MAX_PARTS` keys and prefixes.
        TypeError: ``keys`` or ``exclude_keys`` is a single text.
    """

    keys: Sequence[str] = ()
    prefix: str | Sequence[str] = ()
    contains: str = ""
    exclude_keys: Sequence[str] = ()
    exclude_prefix: str | Sequence[str] = ()
    values: Sequence[tuple[int, str]] = ()
    _keys: frozenset[bytes] = field(init=False, repr=False, compare=False)
    _begins: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    _not_keys: frozenset[bytes] = field(init=False, repr=False, compare=False)
    _not_begins: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Bring everything into one form."""
        for name in ("keys", "exclude_keys"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is a sequence of str")
        prefixes = tuple(filter(None, _texts(self.prefix)))
        excluded = _texts(self.exclude_prefix)
        if "" in excluded:
            raise ValueError("an empty prefix would exclude all keys")
        self._set(
            keys=tuple(dict.fromkeys(self.keys)),
            prefix=prefixes,
            exclude_keys=tuple(dict.fromkeys(self.exclude_keys)),
            exclude_prefix=excluded,
        )
        self._set(
            _keys=frozenset(map(key_bytes, self.keys)),
            _begins=tuple(map(text_bytes, prefixes)),
            _not_keys=frozenset(map(key_bytes, self.exclude_keys)),
            _not_begins=tuple(map(text_bytes, excluded)),
        )
        parts = (self._begins, self._not_keys, self._not_begins)
        # Keys alone are asked for in parts.
        if sum(map(len, parts)) + (len(self._keys) if self._begins else 0) > MAX_PARTS:
            raise ValueError(f"choose by at most {MAX_PARTS:,} keys and prefixes")

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __contains__(self, key: str) -> bool:
        """Whether a key is wanted."""
        written = key_bytes(key)
        return (
            (not self.bounded or written in self._keys or written.startswith(self._begins))
            and text_bytes(self.contains) in written
            and written not in self._not_keys
            and not written.startswith(self._not_begins)
            and all(_part(written, place) == text_bytes(value) for place, value in self.values)
        )

    @property
    def bounded(self) -> bool:
        """Whether the wanted keys are in a few ranges of an index over keys."""
        return bool(self._keys or self._begins)

    @property
    def indexes(self) -> str:
        """Those that the server may choose from: for few keys of many days the one over keys, for
        many keys of few days the primary one.
        """
        return "PRIMARY, by_key" if self.bounded else "PRIMARY"

    def condition(self) -> tuple[str, tuple[object, ...]]:
        """The rest of a WHERE clause on ``counter_key``, from AND on, and its values."""
        terms: list[str] = []
        args: list[object] = []
        if self.bounded:
            terms.append(f" AND ({_any_of(self._keys, self._begins, args)})")
        if self.contains:
            # Not LIKE: it gives %, _ and \ a meaning, and they are ordinary parts of a URL.
            terms.append(" AND LOCATE(%s, counter_key) > 0")
            args.append(text_bytes(self.contains))
        for place, value in self.values:
            head = f"SUBSTRING_INDEX(counter_key, X'00', {place + 1:d})"
            terms.append(f" AND SUBSTRING_INDEX({head}, X'00', -1) = %s")
            args.append(text_bytes(value))
        if self._not_keys or self._not_begins:
            terms.append(f" AND NOT ({_any_of(self._not_keys, self._not_begins, args)})")
        return "".join(terms), tuple(args)


def _part(key: bytes, place: int) -> bytes:
    """A part of a breakdown's key, as SUBSTRING_INDEX finds it: the last where there are fewer."""
    return b"\0".join(key.split(b"\0")[: place + 1]).rpartition(b"\0")[2]


ANY = KeyMatch()
"""All keys."""

Keys = Sequence[str] | KeyMatch | None
"""Of which keys a question is: these, those that match, or (None) all."""

ChosenKeys = KeyMatch | tuple[bytes, ...]
"""Keys that match, or these as the table has them."""


@dataclass(frozen=True, slots=True)
class PickedKeys:
    """A part of a WHERE clause that picks keys.

    Attributes:
        where, args: from AND on, and its values.
        indexes: those it may go by.
        ranges: of an index, for each counter; 0: it goes by none over keys.
        ordered: as :func:`countersink.counting.totals.sums.grouping` has it.
    """

    where: str
    args: tuple[object, ...]
    indexes: str
    ranges: int
    ordered: bool


def chosen_keys(keys: Keys) -> ChosenKeys:
    """The keys that a question is of, in one form."""
    if keys is None or isinstance(keys, KeyMatch):
        return keys or ANY
    return tuple(sorted({key_bytes(key) for key in keys}))


def picked_keys(chosen: ChosenKeys, size: int) -> list[PickedKeys]:
    """Parts that together pick the keys, of named ones so many; none where there are no keys."""
    if isinstance(chosen, KeyMatch):
        ranges = len(chosen.keys) + len(chosen.prefix)
        return [PickedKeys(*chosen.condition(), chosen.indexes, ranges, not ranges)]
    return [
        PickedKeys(f" AND counter_key IN ({marks(part)})", tuple(part), "by_key", len(part), True)
        for part in parts(chosen, size)
    ]


MAX_LAST_DAYS: Final = 36_500
_LAST: Final = re.compile(r"([0-9]{1,9})([mhd])")


@dataclass(frozen=True, slots=True)
class Last:
    """A window that ends now: so many minutes, or so many days.

    Days are whole days of the time zone, today's included. Minutes move: the bucket that is open
    now, and those before it, as many as make up the window.

    Attributes:
        minutes: of the window; of days 1440 each.
        days: whether they are days.
    """

    minutes: int
    days: bool = False

    @classmethod
    def of(cls, given: "str | timedelta | Last") -> "Last":
        """The window that is meant: ``90m``, ``24h``, ``7d``, or a timedelta, which is of minutes.

        Raises:
            ValueError: none, or longer than 36,500 days.
        """
        if isinstance(given, Last):
            return given
        if isinstance(given, timedelta):
            minutes, rest = divmod(given, timedelta(minutes=1))
            if rest or not 0 < minutes <= MAX_LAST_DAYS * 1440:
                raise ValueError(f"the last {given}: give whole minutes, 1 or more")
            return cls(minutes)
        found = _LAST.fullmatch(given)
        minutes = int(found[1]) * UNITS[found[2]] if found else 0
        if found is None or not 0 < minutes <= MAX_LAST_DAYS * 1440:
            raise ValueError(
                f"{given[:40]!r} is no window: give minutes, hours or days, such as 90m, 24h or 7d,"
                f" of at most {MAX_LAST_DAYS:,} days"
            )
        return cls(minutes, found[2] == "d")

    def __str__(self) -> str:
        unit = "d" if self.days else "m" if self.minutes % 60 else "h"
        return f"{self.minutes // UNITS[unit]}{unit}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which counts are wanted; None means all.

    Attributes:
        counter: one counter's name.
        keys: these keys only, or those that match.
        start, end: days, both inclusive; or times, aware and whole minutes: the range begins with
            the one, and ends before the other.
        last: instead of both, the window that ends now:
            :func:`countersink.counting.totals.query.settled` says which that is.
        time_zone: whose days; None for the counter's own zone.
        where: (dimension, value): only events that have these; instead of ``keys``.
        visible: where all counters are asked for, tells which of them may be seen.

    Raises:
        TypeError: a day is no ``datetime.date``.
        ValueError: the range ends before it begins, or cannot be; or both it and ``last`` are
            given.
    """

    counter: str | None = None
    _: KW_ONLY
    keys: Keys = None
    start: date | None = None
    end: date | None = None
    last: Last | None = None
    time_zone: str | None = None
    where: tuple[tuple[str, str], ...] = ()
    visible: Callable[[str], bool] = field(default=lambda _: True, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        check_range(self.start, self.end)
        for name, edge in (("start", self.start), ("end", self.end)):
            if isinstance(edge, datetime):
                # Of other zones the difference of two times would be one of clocks.
                object.__setattr__(self, name, edge.astimezone(UTC))
        if self.last is not None and (self.start is not None or self.end is not None):
            raise ValueError("give a range (from, to) or the last so many, not both")

    @property
    def everything(self) -> bool:
        """Whether it is of all times."""
        return self.start is None and self.end is None and self.last is None

    @property
    def named(self) -> Sequence[str] | None:
        """The keys, for a question that takes only keys named one by one; None for all."""
        assert not isinstance(self.keys, KeyMatch)
        return self.keys


def check_days(start: date | None, end: date | None) -> None:
    """Refuse what is no range of days.

    Raises:
        TypeError: not a ``date`` (a ``datetime`` is none).
        ValueError: it ends before it begins.
    """
    for day in (start, end):
        if isinstance(day, datetime) or not isinstance(day, date | None):
            raise TypeError(f"a range is given in days, as datetime.date, not {type(day).__name__}")
    if start is not None and end is not None and end < start:
        raise ValueError(f"the range ends ({end}) before it begins ({start})")


def check_range(start: date | None, end: date | None) -> None:
    """Refuse what is no range of days or times.

    Raises:
        TypeError: neither a ``date`` nor a ``datetime``.
        ValueError: it ends before it begins; a time is naive, no whole minute, or none that an
            event can have.
    """
    for moment in (start, end):
        if isinstance(moment, datetime):
            _check_time(moment)
    times = isinstance(start, datetime), isinstance(end, datetime)
    if times == (False, False):
        check_days(start, end)
    elif start is not None and end is not None:
        # A day may begin 14 hours before that of UTC, and end 12 hours behind it.
        first = unix(start) if isinstance(start, datetime) else day_label(start) - 14 * 3600
        until = unix(end) if isinstance(end, datetime) else day_label(end) + (24 + 12) * 3600
        if until <= first:
            raise ValueError(f"the range ends ({end}) before it begins ({start})")


def _check_time(moment: datetime) -> None:
    if moment.utcoffset() is None:
        raise ValueError(
            f"{moment} has no time zone, and guessing one would be wrong by hours:"
            " datetime(…, tzinfo=ZoneInfo(…))"
        )
    minute, rest = divmod(unix(moment), 60)
    if rest or moment.microsecond:
        raise ValueError(f"{moment} is not a whole minute")
    if not 0 <= minute <= MAX_MINUTE:
        raise ValueError(f"{moment}: no event has such a time; give one from 1970-01-01 on, in UTC")


def wanted_keys(key: str | None, keys: Sequence[str] | None, match: KeyMatch = ANY) -> Keys:
    """The keys asked for, by one name, by several, or by a match, to which those named belong.

    Raises:
        ValueError: both a key and keys were given. TypeError: ``keys`` is a single text.
    """
    if key is not None and keys is not None:
        raise ValueError("give key or keys, not both")
    if isinstance(keys, str):
        raise TypeError("keys is a sequence of str; for a single one say key=")
    chosen = keys if key is None else [key]
    if match == ANY:
        return chosen
    if chosen is None and not match.keys:
        return match
    if chosen is not None:
        if not chosen and not match.bounded:
            return chosen  # none at all
        match = replace(match, keys=(*match.keys, *chosen))
    # Named one by one, and no others: those that are left are known here.
    return match if match.prefix else [each for each in match.keys if each in match]


class DayRange(TypedDict, total=False):
    """A range of days, both included, or of times (aware ``datetime``), from the one to before the
    other; or the last so many: ``"24h"``, ``"90m"``, ``"7d"``, a ``timedelta``. Left out: all that
    has data. Days are of the counter's own zone, or of ``time_zone``.
    """

    start: date | None
    end: date | None
    last: str | timedelta | Last | None
    time_zone: str | None


class TotalsQuestion(DayRange, total=False):
    """Which keys of a counter are meant (one, several, or those that match; left out: all), or
    which values of its dimensions, and of which days.
    """

    key: str | None
    keys: Sequence[str] | None
    match: KeyMatch
    where: Mapping[str, str] | None


def selection_of(counter: str | None, **asked: Unpack[TotalsQuestion]) -> Selection:
    """What is wanted of one counter, or of all, as programs say it.

    Raises:
        ValueError, TypeError: as :func:`wanted_keys`, :meth:`Last.of` and :class:`Selection`.
    """
    rest: dict[str, Any] = {**asked}
    key, keys, last, where = (rest.pop(name, None) for name in ("key", "keys", "last", "where"))
    return Selection(
        counter,
        keys=wanted_keys(key, keys, rest.pop("match", ANY)),
        last=None if last is None else Last.of(last),
        where=checked_where(where),
        **rest,
    )


def checked_where(
    where: Mapping[str, str] | Sequence[tuple[str, str]] | None,
) -> tuple[tuple[str, str], ...]:
    """Values of dimensions as a selection has them; none for None.

    Raises:
        TypeError, ValueError: a name or a value cannot be, or a name is there twice.
    """
    if not where:
        return ()
    values = dict(where)
    if len(values) < len(where):
        raise ValueError("give each dimension once")
    checked = check_dimensions(values)
    return () if isinstance(checked, str) else checked


def _any_of(keys: Iterable[bytes], prefixes: Iterable[bytes], args: list[object]) -> str:
    """That a key is one of these, or begins so; the values go to ``args``."""
    terms = []
    if named := sorted(keys):
        terms.append(f"counter_key IN ({marks(named)})")
        args += named
    for prefix in prefixes:
        beyond = _after_all(prefix)
        terms.append("counter_key >= %s" + (" AND counter_key < %s" if beyond else ""))
        args += [prefix, beyond] if beyond else [prefix]
    return terms[0] if len(terms) == 1 else " OR ".join(f"({term})" for term in terms)


def _after_all(prefix: bytes) -> bytes | None:
    """The least bytes that come after everything with this prefix; None where nothing does."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
