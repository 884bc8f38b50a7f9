"""Reader of access logs, many lines by one regular expression. See ``named.py`` and
``log_format.py`` for the patterns of formats, ``line.py`` for reasons of rejection.

One pattern matches all lines of a window and finds the fields that the recipe needs; tables turn
the bytes into cells and remember the results. So Python handles no lines one by one, except lines
that are malformed, too long, or unusual otherwise: those are read separately. Where most lines are
of one period within one bucket, the pattern finds those, and their times need no work at all.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final, TypeVar, cast

from countersink.logs.errors import Malformed
from countersink.logs.formats.detection import mismatch_reason
from countersink.logs.formats.line_format import LineFormat
from countersink.logs.formats.reader import (
    BLANK,
    Keys,
    LineReader,
    RecordTally,
    Window,
    note_window,
)
from countersink.logs.line import ESCAPED, line_pattern, minute_of
from countersink.runtime.dimensions import RowKey

_REMEMBERED: Final = 50_000
"""Entries of a table; a full table is emptied."""
_LONGEST_REMEMBERED: Final = 500
"""Bytes of the longest entry: clients do not decide how much memory is used."""
_UNESCAPED: Final = rb'[^"]*+'
"""Text between quotes where nothing is escaped. Faster than any set of bytes; may run over the end
of the line if a quote is missing, which the number of matches shows.
"""
_OTHERS: Final = 8
"""One line in so many may be of another period than the first line."""
_LINE: Final = re.compile(
    rb"[^ \n]++ [^ \n]++ [^ \n]++ \[(\d\d/[A-Z][a-z][a-z]/\d{4}:)(\d\d:)\d\d:\d\d ([+-]\d{4})\]"
)
_HOUR: Final = rb"(?:[01]\d|2[0-3]):"
_IN_HOUR: Final = rb"[0-5]\d:(?:[0-5]\d|60) "
_PERIODS_REMEMBERED: Final = 1_000


Found = bytes | tuple[bytes, ...]
"""One group of a match, or several."""
V = TypeVar("V", RowKey, int)
_UNMATCHED: Final = Malformed("the line is not of the window's pattern")


class _Table(dict[Found, V | Exception | None]):
    """Results by the groups of a line, computed when first seen; None: the line is left out; an
    error: the line is rejected for it, or its bucket is unknown.
    """

    def __init__(self, work_out: Callable[[Found], V | None]) -> None:
        super().__init__()
        self._work_out: Callable[[Found], V | None] = work_out
        self.failed = False  # whether there was an error since this was last set

    def __missing__(self, found: Found) -> V | Exception | None:
        try:
            meaning = self._work_out(found)
        except Exception as error:
            self.failed = True
            return error
        size = len(found) if isinstance(found, bytes) else sum(map(len, found))
        if size <= _LONGEST_REMEMBERED:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[found] = meaning
        return meaning


class AccessLog(LineReader):
    """Reader of access logs of one format.

    Args:
        keys: keys of lines, and conditions.
        form: the format.

    Raises:
        ValueError: the format lacks a requested field.
    """

    quoted = None

    def __init__(self, keys: Keys, form: LineFormat) -> None:
        self._form = form
        fields = {name: form.field(name) for name in keys.fields}
        groups = sorted({group for field in fields.values() for group in field.groups})
        # At least two groups, so that matches are tuples.
        captured = {*form.times, *groups}
        source = form.pattern(captured) + (rb"()" if len(captured) == 1 else rb"")
        self._line = re.compile(source + rb"\s*")
        self._exception = (
            re.compile(form.exception(captured) + rb"\s*") if form.exception else self._line
        )
        self._escaped = _windowed(source)
        self._combined = form.pattern is line_pattern
        self._unescaped = (
            _windowed(line_pattern(captured, _UNESCAPED)) if self._combined else self._escaped
        )

        index = self._line.groupindex
        self._when = itemgetter(*[index[name] - 1 for name in form.times])
        self._what = itemgetter(*[index[name] - 1 for name in groups] or [0])

        def getter(name: str) -> Callable[[Sequence[bytes]], str]:
            return fields[name].getter(groups)

        self._tests = keys.tests(getter)
        self._key = keys.key_of(getter, getter)
        self._finished = keys.finished
        self._range = keys.minutes
        self._leaves_out = keys.leaves_out
        self._keys: _Table[RowKey] = _Table(self._key_of)
        self._bucket = RecordTally().bucket
        self._periods = Periods(self._bucket, self._within)
        self._by_period = self._combined and groups == ["request"]
        self._labels: _Table[int] = _Table(self._label_of)

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add the counts and rejected lines of ``window``; each line counts 1."""
        note_window(window, tally)
        if tally.bucket != self._bucket:
            self._bucket = tally.bucket
            self._periods = Periods(self._bucket, self._within)
            self._labels.clear()
        self._keys.failed = self._labels.failed = False
        if self._by_period and self._count_period(window, tally):
            return
        rows = self._match(window)
        keys = list(map(self._keys.__getitem__, map(self._what, rows)))
        labels = list(map(self._labels.__getitem__, map(self._when, rows)))
        if self._leaves_out or self._keys.failed or self._labels.failed:
            keys, labels = self._countable(keys, labels, window, tally)
        _count(cast("list[RowKey]", keys), cast("list[int]", labels), tally)

    def _count_period(self, window: Window, tally: RecordTally) -> bool:
        """Count a window if most lines are of one period; False: nothing was done."""
        data, lines = window.data, len(window.numbers)
        period = self._periods.find(data)
        if period is None:
            return False
        time, label = period
        rows = _of_period(time, b"\\" in data).findall(data)
        others = rows.count(b"")  # also lines with an empty request, which is malformed
        if len(rows) != lines or others > lines // _OTHERS:
            return False
        keys = list(map(self._keys.__getitem__, rows))
        if others:
            keys = [key if row else _UNMATCHED for key, row in zip(keys, rows, strict=True)]
        if others or self._leaves_out or self._keys.failed:
            keys, _ = self._countable(keys, [label] * lines, window, tally)
        if keys:
            tally.amounts[label].update(cast("list[RowKey]", keys))
            tally.counted += len(keys)
        return True

    def _match(self, window: Window) -> list[tuple[bytes, ...]]:
        """The groups of each line; all empty for a malformed or blank line."""
        data, lines = window.data, len(window.numbers)
        if b"\\" not in data:
            rows = self._unescaped.findall(data)
            if len(rows) == lines:  # so no match took two lines
                return rows
        rows = self._escaped.findall(data)
        # Otherwise a line holds a newline: then each line is read separately.
        return rows if len(rows) == lines else [(b"",) * self._escaped.groups] * lines

    def _countable(
        self,
        keys: list[RowKey | Exception | None],
        labels: list[int | Exception | None],
        window: Window,
        tally: RecordTally,
    ) -> tuple[list[RowKey | Exception | None], list[int | Exception | None]]:
        """The keys and labels of lines that have both; the other lines are counted separately, or
        left out.
        """
        places: list[int] = []
        for place, (key, label) in enumerate(zip(keys, labels, strict=True)):
            if isinstance(key, str | tuple) and isinstance(label, int):
                places.append(place)
            elif isinstance(key, Exception) or isinstance(label, Exception):
                self._count_line(window.lines[place], window.numbers[place], tally)
            else:
                tally.filtered += 1
        return [keys[place] for place in places], [labels[place] for place in places]

    def _count_line(self, line: bytes, number: int, tally: RecordTally) -> None:
        match = self._line.fullmatch(line)
        if match is None:
            # NULs, as in a log that was truncated under its writer.
            stripped = line.strip(BLANK)
            if not stripped:
                return
            match = self._line.fullmatch(stripped) or self._exception.fullmatch(stripped)
            if match is None:
                tally.reject(number, mismatch_reason(self._form, stripped), line)
                return
        groups = match.groups(b"")
        key, label = self._keys[self._what(groups)], self._labels[self._when(groups)]
        if key is None or label is None:
            tally.filtered += 1
        elif isinstance(key, Malformed) or isinstance(label, Malformed):
            tally.reject(number, str(key if isinstance(key, Malformed) else label), line)
        elif isinstance(key, Exception):
            raise key
        elif isinstance(label, Exception):
            raise label  # the bucket is unknown; malformed lines do not need one
        else:
            tally.amounts[label][key] += 1
            tally.counted += 1

    def _key_of(self, found: Found) -> RowKey | None:
        groups = (found,) if isinstance(found, bytes) else found
        return self._finished(self._key(groups)) if self._fulfils(groups) else None

    def _label_of(self, found: Found) -> int | None:
        minute = self._form.minute((found,) if isinstance(found, bytes) else found)
        return self._bucket(minute) if self._within(minute) else None

    def _fulfils(self, found: Sequence[bytes]) -> bool:
        return all(holds(read(found)) for read, holds in self._tests)

    def _within(self, minute: int) -> bool:
        return self._range is None or self._range[0] <= minute < self._range[1]


def _count(keys: list[RowKey], labels: list[int], tally: RecordTally) -> None:
    """Add 1 for each line."""
    amounts = tally.amounts
    different = set(labels)
    if len(different) == 1:
        amounts[different.pop()].update(keys)
    else:
        for (label, key), lines in Counter(zip(labels, keys, strict=True)).items():
            amounts[label][key] += lines
    tally.counted += len(keys)


@lru_cache(maxsize=256)
def _of_period(time: bytes, escaped: bool) -> re.Pattern[bytes]:
    """The pattern that finds the requests of lines with these times; others give empty texts."""
    return _windowed(line_pattern(("request",), ESCAPED if escaped else _UNESCAPED, only=time))


def _windowed(line: bytes) -> re.Pattern[bytes]:
    """The pattern that matches line by line; lines that do not match ``line`` give no groups."""
    return re.compile(rb"(?:" + line + rb"(?:\n|[^\S\n]++\n)|.*\n)")


class Periods:
    """Periods of windows: the day or hour of the first and the last line, if one bucket holds all
    of it.

    Args:
        bucket: the label of the bucket of a Unix minute.
        within: whether a Unix minute is counted.
    """

    def __init__(self, bucket: Callable[[int], int], within: Callable[[int], bool]) -> None:
        self._bucket = bucket
        self._within = within
        self._label = lru_cache(maxsize=_PERIODS_REMEMBERED)(self._only_label)
        self._period = lru_cache(maxsize=_PERIODS_REMEMBERED)(self._work_out)

    def find(self, data: bytes) -> tuple[bytes, int] | None:
        """The pattern of the times of the period in which ``data``, complete lines, begins and
        ends, and the label of its bucket; None: the times have to be read one by one.
        """
        first, last = _LINE.match(data), _LINE.match(data, data.rfind(b"\n", 0, -1) + 1)
        if first is None or last is None:
            return None
        period = self._period(*first.groups())
        return period if period == self._period(*last.groups()) else None

    def _work_out(self, day: bytes, hour: bytes, zone: bytes) -> tuple[bytes, int] | None:
        for first, last, hours in (
            (b"00:00", b"23:59", _HOUR),
            (hour + b"00", hour + b"59", hour),
        ):
            label = self._label(day + first + zone, day + last + zone)
            if label is not None:
                return day + hours + _IN_HOUR + re.escape(zone), label
        return None

    def _only_label(self, first: bytes, last: bytes) -> int | None:
        """The only label of the minutes from first to last, if all are counted; None also where a
        label is unknown: the reader of such a line gets the error.
        """
        try:
            minutes = range(minute_of(first), minute_of(last) + 1)
            if not all(map(self._within, minutes)):
                return None
            labels = set(map(self._bucket, minutes))
        except Exception:  # raised again, or a reason of rejection, for the line itself
            return None
        return labels.pop() if len(labels) == 1 else None
