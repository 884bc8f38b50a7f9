"""Numbers of different members (such as visitors) in a range: in all, by day, week, hour,
minute or month, by key, or by group of keys. Unites the sketches of cells, and raises errors where
they cannot be united.

Ranges, time zones and errors are as in :mod:`countersink.counting.totals.sums` and
:mod:`countersink.counting.totals.series`. Each function also raises:

    NotUnique: the counter does not count different members; or the members of one row of the answer
        were hashed with several salts, so that equal members cannot be recognized.
    DamagedSketch: a sketch is damaged or missing; the message says where.
    NoSketches: the library datasketches is needed, and not installed.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

from countersink.counting.counters import buckets
from countersink.counting.counters.all_counters import counter_of
from countersink.counting.errors import DamagedSketch, NotUnique
from countersink.counting.totals.selection import Selection, chosen_keys, picked_keys
from countersink.counting.totals.series import DATE_UNITS, SECONDS, Unit
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.totals.sums import Scope
from countersink.counting.totals.views import View, condition
from countersink.counting.visitors import SketchUnion, Visitors, periods_of
from countersink.counting.visitors.rows import StoredSketch, number, stored
from countersink.database.session import Session
from countersink.runtime.limits import key_text, text_bytes
from countersink.runtime.texts import plural

G = TypeVar("G")

MOST_EXACT_IN_ANSWER: Final = 200_000
"""Maximum number of hashes that all unions of an answer hold together: about 20 MB."""
_AT_A_TIME: Final = 50
"""Number of sketches to unite (in about 2 ms) before a pause, in which other threads can run, such
as that of the event loop."""
_PAUSE_S: Final = 0.0001

_KEYS_PER_QUERY: Final = 500


def total(snapshot: Snapshot, selection: Selection) -> Visitors:
    """Return the number of different members (visitors, say) of the selected keys in the selected
    range; the number is 0 if there are none.
    """
    found = _united(snapshot, selection, lambda view, sketch: None)
    return found[None].visitors() if found else Visitors()


def by_unit(
    snapshot: Snapshot, selection: Selection, unit: Unit, places: Sequence[Any]
) -> list[tuple[Any, Visitors]]:
    """Return (place, number of different members, such as visitors) for each of ``places``, in
    their order; the number is 0 for a place without members. A place is a day, week, hour, minute
    or month (``unit``): a date (of a week or month, its first day), or the time at which the hour
    or minute begins. The places are those in the rows of
    :func:`countersink.counting.totals.series.series`, which the caller has called for the same
    selection.
    """
    found = _united(snapshot, selection, partial(_place, unit), unit=unit, wanted=frozenset(places))
    return [(place, found[place].visitors() if place in found else Visitors()) for place in places]


def by_key(
    snapshot: Snapshot, selection: Selection, *, limit: int | None = None
) -> list[tuple[str, Visitors]]:
    """Return (key, number of different members) of the keys that have members (such as visitors),
    the largest number first; equal numbers are in the order of keys. With ``limit``, only the first
    ``limit`` are returned.
    """
    found = by_group(snapshot, selection, lambda key: (key,))
    return [(key, visitors) for (key,), visitors in found][:limit]


def by_group(
    snapshot: Snapshot, selection: Selection, group: Callable[[str], tuple[str, ...]]
) -> list[tuple[tuple[str, ...], Visitors]]:
    """Return (group, number of different members) of the groups that have members (such as
    visitors), the largest number first; equal numbers are in the order of groups. ``group`` is a
    function that returns the group of a key.
    """
    found = _united(snapshot, selection, lambda view, sketch: group(key_text(sketch.key)))
    counted = [(name, union.visitors()) for name, union in found.items()]
    counted.sort(key=lambda pair: (-pair[1].total, tuple(map(text_bytes, pair[0]))))
    return counted


def _united(
    snapshot: Snapshot,
    selection: Selection,
    group: Callable[[View, StoredSketch], G],
    *,
    unit: Unit | None = None,
    wanted: frozenset[G] | None = None,
) -> dict[G, SketchUnion]:
    """Return the union of the selected sketches for each group. Groups without sketches are left
    out. If a sketch brings the exact unions to more than :data:`MOST_EXACT_IN_ANSWER` members
    together, the union to which it was added becomes an estimate.

    Args:
        snapshot: the snapshot to read.
        selection: counter, keys, range and time zone of the sketches.
        group: returns the group to which a sketch belongs.
        unit: the unit of the groups if they are days, weeks, hours, minutes or months, else None;
            it decides whether :func:`_sketches` checks the range.
        wanted: the only groups to return; None for all.
    """
    view = snapshot.selected(selection)
    salts = _Salts(snapshot.session, view.counter)
    unions: dict[G, SketchUnion] = {}
    exact = 0
    for place, sketch in enumerate(_sketches(snapshot.session, selection, view, unit), 1):
        if not place % _AT_A_TIME:
            time.sleep(_PAUSE_S)
        name = group(view, sketch)
        if wanted is not None and name not in wanted:
            continue
        salts.note(name, view, sketch)
        union = unions.setdefault(name, SketchUnion())
        exact -= union.exact
        sketch.add_to(union)
        if exact + union.exact > MOST_EXACT_IN_ANSWER:
            union.estimate()
        exact += union.exact
    return unions


def _sketches(
    session: Session, selection: Selection, view: View, unit: Unit | None
) -> Iterator[StoredSketch]:
    """Yield the sketches of the selected keys in the selected range. ``view`` has the buckets of
    the selected counter, in the time zone of the selection.

    If ``unit`` is None or a month, the start and the end of the range are checked here. For other
    units, the caller of :func:`by_unit` has checked them by reading the series of totals.

    Raises:
        DamagedSketch: some sketches are missing. Keys are read in parts of up to 500: this is
            raised after the other sketches of the same part were yielded.
        InexactZone, RolledUp: the range begins or ends within a bucket. Raised only if ``unit`` is
            None or a month.
    """
    if unit in (None, "month"):
        ranges = Scope.of(view, selection.start, selection.end).ranges
    else:
        ranges = view.ranges(selection.start, selection.end)
    if ranges is not None and not ranges:
        return
    where, args = condition(ranges)
    for part in picked_keys(chosen_keys(selection.keys), _KEYS_PER_QUERY):
        rows = (view.counter, where + part.where, (*args, *part.args), part.indexes)
        missing = number(session, *rows)
        for sketch in stored(session, *rows):
            missing -= 1
            yield sketch
        if missing > 0:
            raise DamagedSketch(
                f"different members of {view.counter!r} are missing in"
                f" {plural(missing, 'row')}: run `countersink verify` to find the first"
            )


def _place(unit: Unit, view: View, sketch: StoredSketch) -> date:
    """Return the day, week, hour, minute or month to which a sketch belongs: a date (of a week or
    month, its first day), or the begin of the hour or minute as a time in UTC.
    """
    if unit in DATE_UNITS:
        return DATE_UNITS[unit].first(view.day(sketch.label))
    begins = view.scheme.starts_at(sketch.label)
    instant, _ = buckets.hour_at(view.zone, begins, SECONDS[unit])
    return datetime.fromtimestamp(instant, UTC)


class _Salts:
    """Checks that the members (such as visitors) of each group were hashed with one salt.

    Raises:
        NotUnique: the counter does not count different members; raised by the constructor.
    """

    def __init__(self, session: Session, counter: str) -> None:
        self._counter = counter_of(counter)
        self._periods = periods_of(session, self._counter)
        found = session.query("SELECT salt_days FROM counter WHERE name = %s", (self._counter,))
        self._days: int | None = found[0][0] if found else None
        if self._days is None:
            raise NotUnique(
                f"{self._counter!r} does not count different members: have those of later events"
                f" counted with `countersink counter set {self._counter} --unique`"
            )
        self._begins = [period.begins for period in self._periods]
        self._ends = [inf if each.ends is None else each.ends for each in self._periods]
        self._of_groups: dict[object, tuple[int, int]] = {}
        self._of_labels: dict[int, tuple[int, int]] = {}

    def note(self, group: object, view: View, sketch: StoredSketch) -> None:
        """Check that a sketch has the same salt as the earlier sketches of its group. The salts of
        a sketch are those whose periods overlap its bucket. ``group`` is the group's name.

        Raises:
            NotUnique: the sketch has another salt than the earlier ones, or periods of several
                salts overlap its bucket.
        """
        if len(self._periods) == 1:
            return
        if sketch.label not in self._of_labels:
            begins = view.scheme.starts_at(sketch.label) // 60
            ends = view.scheme.ends_at(sketch.label) // 60
            # Places of the first and the last salt that events of the bucket may have.
            places = bisect_right(self._ends, begins), bisect_left(self._begins, ends) - 1
            self._of_labels[sketch.label] = places
        first, last = self._of_labels[sketch.label]
        before = self._of_groups.setdefault(group, (first, last))
        if first != last or before != (first, last):
            raise self._several()

    def _several(self) -> NotUnique:
        days = self._days
        often = "each day" if days == 1 else f"each {days} days"
        why = f"salts are renewed {often}" if days else "its salt was renewed"
        other = "" if days else ", or for a range with one salt"
        return NotUnique(
            f"equal members of {self._counter!r} cannot be recognized in this range, as {why}: ask"
            f" by day, in its own time zone{other}"
        )
