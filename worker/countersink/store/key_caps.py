"""The most keys that a day of a counter may have: rows of further ones go to ``__overflow__``.

In the transaction that counts, before anything is added. Keys that are there already go on being
counted, so whatever is not remembered as being there is looked up. Whoever has new keys to make
holds the day's row of ``counter_keys`` (slot 0) from then on until the end of its transaction:
under that lock it looks once more, takes what room is left, and writes down how many keys there are
now. So there are never more of them than may be, whoever is killed when, or runs again.

Once a day is full, that is so until somebody changes something (the policies' version), and nobody
asks for the lock any more: not for an attack of a million keys either.

The number belongs to a version of the policies, under another one the keys are counted anew. Every
change of a cap is a new version, so it takes effect at once and exactly. They are counted anew as
well where retention has moved keys of the day to its month, which gives their room back
(:func:`count_anew`, :mod:`countersink.store.day_keys`).

The rows are locked in the order of (counter, day), before any other row but guards, so that nobody
waits in a circle. They are made in transactions of their own (:func:`make_rows`), since an INSERT
that others wait for, and that is rolled back, lets these deadlock.

Sessions are at READ COMMITTED: each look has to see what was committed before it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final, TypeVar

from countersink.store import day_keys
from countersink.store.amounts import Amounts
from countersink.store.connection import Session
from countersink.store.errors import Conflict
from countersink.store.keys import is_name
from countersink.store.overflow import OVERFLOW, Place
from countersink.store.policies import Policies

Cells = tuple[str, int]
"""(counter, label of the bucket)."""
Result = TypeVar("Result")

_LOCK_SLOT: Final = 0
"""Of the row of ``counter_keys`` that whoever makes keys holds."""
_ROWS: Final = "counter_keys FORCE INDEX (PRIMARY)"
"""By the other index others than one would lock its entries, and the row after them: MariaDB takes
it for an UPDATE of a small table. Two that come by different indexes wait in a circle."""
_PLACES_PER_QUERY: Final = 200


class RowsMissing(Exception):
    """Rows of ``counter_keys`` have to be made first, for ``places``: see :func:`with_rows`."""

    def __init__(self, places: Sequence[Place]) -> None:
        super().__init__(f"{len(places)} rows of counter_keys are missing")
        self.places = tuple(places)


@dataclass(slots=True)
class Capped:
    """What became of some amounts.

    Attributes:
        moved: the keys that have gone to :data:`OVERFLOW`, by counter and bucket.
        days: the day of each such bucket.
        made: the keys that are new, by (counter, day): there once the transaction is committed.
    """

    moved: dict[Cells, set[str]] = field(default_factory=dict)
    days: dict[Cells, date] = field(default_factory=dict)
    made: dict[Place, list[str]] = field(default_factory=dict)

    def cells(self) -> dict[Place, int]:
        """How many cells were moved, by (counter, day)."""
        found: dict[Place, int] = {}
        for (counter, label), keys in self.moved.items():
            place = counter, self.days[counter, label]
            found[place] = found.get(place, 0) + len(keys)
        return found


def cap(session: Session, amounts: Amounts, policies: Policies) -> Capped:
    """Move the amounts of keys for which there is no room to :data:`OVERFLOW`.

    Args:
        session: at READ COMMITTED, in a transaction that holds the share lock of control and has
            not added anything yet.
        amounts: what is to be added; it is changed.
        policies: those in force.

    Raises:
        RowsMissing: roll back, make them, and begin again.
        StoreError: as any query.
    """
    capped = Capped()
    if not policies.capped:
        return capped
    days = _unknown(amounts, policies)
    if not days:
        return capped
    deciding = _Deciding(session, policies)
    full, doubtful = deciding.look(days)
    over = {place: keys for place, keys in full.items() if keys}
    for place in sorted(doubtful):
        granted, refused = deciding.grant(place, doubtful[place])
        if granted:
            capped.made[place] = granted
        if refused:
            over[place] = refused
    for place, refused in over.items():
        gone = set(refused)
        for label in days[place].labels:
            counter = place[0]
            keys = gone & amounts.of(counter)[label].keys()
            if keys:
                amounts.move(counter, label, keys, OVERFLOW)
                capped.moved[counter, label] = keys
                capped.days[counter, label] = place[1]
    return capped


def make_rows(session: Session, places: Iterable[Place]) -> None:
    """Make the rows by which makers of keys take turns; each in a transaction of its own."""
    for counter, day in sorted(places):
        session.execute(
            "INSERT IGNORE INTO counter_keys (counter, day, slot) VALUES (%s, %s, %s)",
            (counter, day, _LOCK_SLOT),
        )


def with_rows(session: Session, attempt: Callable[[], Result]) -> Result:
    """Run ``attempt``, a whole transaction, again where it lacks rows, once they are made."""
    while True:
        try:
            return attempt()
        except RowsMissing as error:
            make_rows(session, error.places)


def count_anew(session: Session, place: Place) -> None:
    """Have the keys of a day counted anew by whoever makes the next one.

    Takes the lock that makers of keys take, until the transaction ends: to be called before any row
    of the day is locked that has an amount.
    """
    session.execute(
        f"UPDATE {_ROWS} SET version = NULL WHERE counter = %s AND day = %s AND slot = %s",
        (*place, _LOCK_SLOT),
    )


@dataclass(slots=True)
class _Day:
    """Keys of a day that are not remembered as being there, and the buckets that they are for."""

    labels: list[int] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)


def _unknown(amounts: Amounts, policies: Policies) -> dict[Place, _Day]:
    """What has to be looked up, the keys in the order in which they came."""
    found: dict[Place, _Day] = {}
    for counter in amounts.counters:
        if policies.cap(counter) is None or not is_name(counter):
            continue  # what is no name the server is going to refuse
        for label, keys in amounts.of(counter).items():
            try:
                day = policies.day(counter, label)
            except (ValueError, OverflowError):
                continue  # nor has any server such a day
            known = policies.made.of(counter, day)
            unknown = [key for key in keys if key not in known and key != OVERFLOW]
            if unknown:
                one = found.setdefault((counter, day), _Day())
                one.labels.append(label)
                one.keys.update(dict.fromkeys(unknown))
    return found


class _Deciding:
    """Which keys of some days may be made, in one transaction."""

    def __init__(self, session: Session, policies: Policies) -> None:
        self._session = session
        self._policies = policies
        self._seen: dict[Place, int | None] = {}

    def look(
        self, days: dict[Place, _Day]
    ) -> tuple[dict[Place, list[str]], dict[Place, list[str]]]:
        """The keys that are not there: of days that are full, and of those that may not be.

        Raises:
            RowsMissing: the rows to lock for the latter are not there.
        """
        # First whether it is full, then which keys are there: all of them that ever will be.
        states = self._seen = self._states(days)
        full: dict[Place, list[str]] = {}
        doubtful: dict[Place, list[str]] = {}
        for place, day in days.items():
            missing = day_keys.missing(self._session, self._policies, place, day.keys)
            if not missing:
                continue
            number = states.get(place)
            if number is not None and number >= self._most(place):
                full[place] = missing
            else:
                doubtful[place] = missing
        if without := [place for place in doubtful if place not in states]:
            raise RowsMissing(without)
        return full, doubtful

    def grant(self, place: Place, keys: Collection[str]) -> tuple[list[str], list[str]]:
        """The keys that may be made, and those that may not; the others are there by now.

        Nobody else makes keys of that day until this transaction ends.
        """
        session, policies, most = self._session, self._policies, self._most(place)
        number = self._lock(place)
        # Once more, if others have had the lock since it was looked which keys are there. Where
        # retention was at the day, another number may have come to be the same.
        same = (
            number is not None
            and number == self._seen[place]
            and not day_keys.is_rolled_up(session, place)
        )
        new = list(keys) if same else day_keys.missing(session, policies, place, keys)
        counted = day_keys.count(session, policies, place, most) if number is None else number
        room = max(0, most - counted)
        granted, refused = new[:room], new[room:]
        if number is None or granted:
            session.execute(
                f"UPDATE {_ROWS} SET number = %s, version = %s"
                " WHERE counter = %s AND day = %s AND slot = %s",
                (counted + len(granted), policies.version, *place, _LOCK_SLOT),
            )
        return granted, refused

    def _most(self, place: Place) -> int:
        most = self._policies.cap(place[0])
        assert most is not None
        return most

    def _states(self, places: Collection[Place]) -> dict[Place, int | None]:
        """How many keys the days have, as far as there are rows that say so; None: not counted.

        Without a lock: a number grows, or is of no worth any more.
        """
        found: dict[Place, int | None] = {}
        ordered = sorted(places)
        for start in range(0, len(ordered), _PLACES_PER_QUERY):
            part = ordered[start : start + _PLACES_PER_QUERY]
            where = " OR ".join(["(counter = %s AND day = %s AND slot = %s)"] * len(part))
            for counter, day, number, version in self._session.query(
                f"SELECT counter, day, number, version FROM counter_keys WHERE {where}",
                [value for place in part for value in (*place, _LOCK_SLOT)],
            ):
                found[counter, day] = self._valid(number, version)
        return found

    def _lock(self, place: Place) -> int | None:
        """Hold a day's row; how many keys it has, None if that was not counted."""
        rows = self._session.query(
            f"SELECT number, version FROM {_ROWS}"
            " WHERE counter = %s AND day = %s AND slot = %s FOR UPDATE",
            (*place, _LOCK_SLOT),
        )
        if not rows:
            raise Conflict("a row of counter_keys was there, and then was not")
        return self._valid(*rows[0])

    def _valid(self, number: int, version: int | None) -> int | None:
        return int(number) if version == self._policies.version else None
