"""How many different members there are: in a range, by day, hour, minute, month, key or group of
keys; unions of sketches, and the errors where they cannot be united (``NotUnique``).

Ranges, zones and errors are those of :mod:`countersink.counting.totals.sums` and
:mod:`countersink.counting.totals.series`; beside these errors each function raises:

    NotUnique: the counter does not count its different members; or those of what was asked for
        were hashed with several salts, so that nobody can tell which are the same.
    DamagedSketch: a sketch is not what was written, with its counter, bucket and key; or some are
        missing.
    NoSketches: it takes datasketches, which is not installed.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

from countersink.counting.counters import buckets
from countersink.counting.counters.breakdowns import counter_of
from countersink.counting.counters.buckets import month_of
from countersink.counting.errors import DamagedSketch, NotUnique
from countersink.counting.totals.selection import Selection, chosen_keys, picked_keys
from countersink.counting.totals.series import SECONDS, Unit
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.totals.sums import Scope
from countersink.counting.totals.views import View, condition
from countersink.counting.visitors import SketchUnion, Visitors, periods_of
from countersink.counting.visitors.rows import StoredSketch, number, stored
from countersink.database.session import Session
from countersink.runtime.limits import key_text, text_bytes

G = TypeVar("G")

MOST_EXACT_IN_ANSWER: Final = 200_000
"""Members that all unions of an answer keep exactly, together: some 20 MB."""
_AT_A_TIME: Final = 50
"""Sketches that are united, in about 2 ms, before other threads run: the event loop's is one."""
_PAUSE_S: Final = 0.0001

_KEYS_PER_QUERY: Final = 500


def total(snapshot: Snapshot, selection: Selection) -> Visitors:
    """How many different members there are of all keys, or of those selected."""
    found = _united(snapshot, selection, lambda view, sketch: None)
    return found[None].visitors() if found else Visitors()


def by_unit(
    snapshot: Snapshot, selection: Selection, unit: Unit, places: Sequence[Any]
) -> list[tuple[Any, Visitors]]:
    """The same for each of these days, hours, minutes or months, which the series of totals has
    found; 0 without members.
    """
    found = _united(snapshot, selection, partial(_place, unit), unit=unit, wanted=frozenset(places))
    return [(place, found[place].visitors() if place in found else Visitors()) for place in places]


def by_key(
    snapshot: Snapshot, selection: Selection, *, limit: int | None = None
) -> list[tuple[str, Visitors]]:
    """(key, how many different members) of the keys that have any, those with most first, then by
    key; all of them, or the first ``limit``.
    """
    found = by_group(snapshot, selection, lambda key: (key,))
    return [(key, visitors) for (key,), visitors in found][:limit]


def by_group(
    snapshot: Snapshot, selection: Selection, group: Callable[[str], tuple[str, ...]]
) -> list[tuple[tuple[str, ...], Visitors]]:
    """The same of keys that belong together, by what ``group`` says of them."""
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
    """The unions of the selected sketches by group; where they would have too many members
    together, those that grow go on as estimates.
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
    """The selected sketches.

    Raises:
        DamagedSketch: some are missing.
    """
    if unit in (None, "month"):
        ranges = Scope.of(view, selection.start, selection.end).ranges
    else:
        ranges = view.ranges(selection.start, selection.end)
    if ranges is not None and not ranges:
        return
    where, args = condition(ranges)
    for one in picked_keys(chosen_keys(selection.keys), _KEYS_PER_QUERY):
        rows = (view.counter, where + one.where, (*args, *one.args), one.indexes)
        missing = number(session, *rows)
        for sketch in stored(session, *rows):
            missing -= 1
            yield sketch
        if missing > 0:
            raise DamagedSketch(
                f"different members of {view.counter!r} are missing, those of {missing:,} keys and"
                " buckets: `countersink verify` names the first"
            )


def _place(unit: Unit, view: View, sketch: StoredSketch) -> date:
    """The day, hour, minute or month that a sketch is of."""
    if unit == "day":
        return view.day(sketch.label)
    if unit == "month":
        return month_of(view.day(sketch.label))
    begins = view.scheme.starts_at(sketch.label)
    instant, _ = buckets.hour_at(view.zone, begins, SECONDS[unit])
    return datetime.fromtimestamp(instant, UTC)


class _Salts:
    """With which salts the members of groups were hashed.

    Raises:
        NotUnique: the counter does not count its different members.
    """

    def __init__(self, session: Session, counter: str) -> None:
        self._counter = counter_of(counter)
        self._periods = periods_of(session, self._counter)
        found = session.query("SELECT salt_days FROM counter WHERE name = %s", (self._counter,))
        self._days: int | None = found[0][0] if found else None
        if self._days is None:
            raise NotUnique(
                f"{self._counter!r} does not count its different members: `countersink counter set"
                f" {self._counter} --unique` has them counted from then on"
            )
        self._begins = [period.begins for period in self._periods]
        self._ends = [inf if each.ends is None else each.ends for each in self._periods]
        self._of_groups: dict[object, tuple[int, int]] = {}
        self._of_labels: dict[int, tuple[int, int]] = {}

    def note(self, group: object, view: View, sketch: StoredSketch) -> None:
        """Note the salts of a sketch.

        Raises:
            NotUnique: the group has another one.
        """
        if len(self._periods) == 1:
            return
        if sketch.label not in self._of_labels:
            begins = view.scheme.starts_at(sketch.label) // 60
            ends = view.scheme.ends_at(sketch.label) // 60
            # The first and the last salt that events of the bucket may have, by their places.
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
        rest = "" if days else ", or for a range with one salt"
        return NotUnique(
            f"which members of {self._counter!r} are the same cannot be told over the whole of this"
            f" range, as {why}: ask by day, in its own time zone{rest}"
        )
