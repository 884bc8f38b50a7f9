"""Reader of access logs, which reads many lines by one call of a regular expression. ``named.py``
and ``log_format.py`` have the patterns of formats, ``line.py`` the reasons for rejecting lines.

One pattern matches all lines of a block, and captures the fields that keys and conditions need.
Tables turn the captured bytes into keys and buckets, and cache the results. So Python handles no
line by itself, unless it is malformed, too long, or otherwise unusual.

In many blocks, most lines are of one day (or hour) that one bucket holds completely. Then a pattern
with this day finds these lines, and their times are not parsed.
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
    RecordBlock,
    RecordTally,
    note_block,
)
from countersink.logs.line import ESCAPED, line_pattern, minute_of
from countersink.runtime.dimensions import RowKey

_REMEMBERED: Final = 50_000
"""Most results that a table remembers; a full table is emptied."""
_LONGEST_REMEMBERED: Final = 500
"""Bytes of the longest text whose result is remembered, so that clients do not decide how much
memory is used.
"""
_UNESCAPED: Final = rb'[^"]*+'
"""The pattern of a text between quotes in which nothing is escaped. It is faster than any set of
bytes. Where a quote is missing, it runs over the end of the line; then there are fewer matches than
lines.
"""
_OTHERS: Final = 8
"""A block is counted by its period if at most one line in so many has a time outside it."""
_LINE: Final = re.compile(
    rb"[^ \n]++ [^ \n]++ [^ \n]++ \[(\d\d/[A-Z][a-z][a-z]/\d{4}:)(\d\d:)\d\d:\d\d ([+-]\d{4})\]"
)
_HOUR: Final = rb"(?:[01][0-9]|2[0-3]):"
_IN_HOUR: Final = rb"[0-5][0-9]:(?:[0-5][0-9]|60) "
_PERIODS_REMEMBERED: Final = 1_000


Found = bytes | tuple[bytes, ...]
"""The bytes of one group of a match, or of several."""
V = TypeVar("V", RowKey, int)
_UNMATCHED: Final = Malformed("the line is not of the block's pattern")


class _Table(dict[Found, V | Exception | None]):
    """Cache from the captured bytes of a line to the line's key, or to the label of its bucket. A
    lookup computes a missing value by ``work_out``. The value is None for a line that the options
    leave out. If ``work_out`` raises an exception, a lookup returns the exception, and does not
    store it. Results for more than 500 bytes are not stored either.
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
    """Reader of access logs in one format.

    Args:
        keys: the rule that gives lines their keys, or leaves lines out.
        form: the format of the lines.

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
        self._escaped = _linewise(source)
        self._combined = form.pattern is line_pattern
        self._unescaped = (
            _linewise(line_pattern(captured, _UNESCAPED)) if self._combined else self._escaped
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

    def count(self, block: RecordBlock, tally: RecordTally) -> None:
        """Add the counts and rejected lines of ``block`` to ``tally``; each line counts 1."""
        note_block(block, tally)
        if tally.bucket != self._bucket:
            self._bucket = tally.bucket
            self._periods = Periods(self._bucket, self._within)
            self._labels.clear()
        self._keys.failed = self._labels.failed = False
        if self._by_period and self._count_period(block, tally):
            return
        rows = self._match(block)
        keys = list(map(self._keys.__getitem__, map(self._what, rows)))
        labels = list(map(self._labels.__getitem__, map(self._when, rows)))
        if self._leaves_out or self._keys.failed or self._labels.failed:
            keys, labels = self._countable(keys, labels, block, tally)
        _count(cast("list[RowKey]", keys), cast("list[int]", labels), tally)

    def _count_period(self, block: RecordBlock, tally: RecordTally) -> bool:
        """Count a block by its period (see :class:`Periods`), and return True. The few lines that
        the period's pattern does not match are read one by one. Count nothing and return False if
        the block has no period, if more than 1 in 8 lines (``_OTHERS``) do not match, or if the
        pattern does not find every line. The keys and conditions must need the request alone.
        """
        data, lines = block.data, len(block.numbers)
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
            keys, _ = self._countable(keys, [label] * lines, block, tally)
        if keys:
            tally.amounts[label].update(cast("list[RowKey]", keys))
            tally.counted += len(keys)
        return True

    def _match(self, block: RecordBlock) -> list[tuple[bytes, ...]]:
        """Return the captured bytes of each line. They are all b"" for a line that must be read
        alone: a malformed, blank or unusual line, or each line of a block in which some line holds
        a newline.
        """
        data, lines = block.data, len(block.numbers)
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
        block: RecordBlock,
        tally: RecordTally,
    ) -> tuple[list[RowKey | Exception | None], list[int | Exception | None]]:
        """Return the keys and labels of the lines that have both. A line with an error in place of
        its key or label is read again by itself: it is counted, rejected, left out or, if blank,
        skipped. Any other line with None as key or label is left out: it is only added to
        ``tally.filtered``.

        Args:
            keys: the key of each line of ``block``; an error, or None if the options leave it out.
            labels: the label of each line's bucket; an error, or None likewise.
            block: the lines.
            tally: the counts to which lines are added that are read again or left out.

        Raises:
            Exception: the bucket of a line that is read again is unknown.
        """
        places: list[int] = []
        for place, (key, label) in enumerate(zip(keys, labels, strict=True)):
            if isinstance(key, str | tuple) and isinstance(label, int):
                places.append(place)
            elif isinstance(key, Exception) or isinstance(label, Exception):
                self._count_line(block.lines[place], block.numbers[place], tally)
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
        fits = all(holds(read(groups)) for read, holds in self._tests)
        return self._finished(self._key(groups)) if fits else None

    def _label_of(self, found: Found) -> int | None:
        minute = self._form.minute((found,) if isinstance(found, bytes) else found)
        return self._bucket(minute) if self._within(minute) else None

    def _within(self, minute: int) -> bool:
        return self._range is None or self._range[0] <= minute < self._range[1]


def _count(keys: list[RowKey], labels: list[int], tally: RecordTally) -> None:
    """Add 1 to ``tally`` for each line, by its key and the label of its bucket."""
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
    """Return the pattern for ``findall`` that finds every line of a block. It captures the request
    of a combined or common line with one of these times, and b"" for any other line (also for
    some lines whose user has spaces).

    Args:
        time: the pattern of the times.
        escaped: whether quoted texts may have escapes.
    """
    return _linewise(line_pattern(("request",), ESCAPED if escaped else _UNESCAPED, only=time))


def _linewise(line: bytes) -> re.Pattern[bytes]:
    """Return the pattern for ``findall`` that finds every line of a block, with its newline. It
    captures the groups of a line that matches ``line``, and nothing of any other line. ``line`` is
    the pattern of a line without its newline; blanks may follow it.
    """
    return re.compile(rb"(?:" + line + rb"(?:\n|[^\S\n]++\n)|.*\n)")


class Periods:
    """Finds the period of a block: a day, or else an hour. The first and the last line of the block
    must lie in the period, one bucket must hold all of it, and all its minutes must be counted.

    Args:
        bucket: returns the label of the bucket that a Unix minute lies in.
        within: returns whether events of a Unix minute are counted.
    """

    def __init__(self, bucket: Callable[[int], int], within: Callable[[int], bool]) -> None:
        self._bucket = bucket
        self._within = within
        self._label = lru_cache(maxsize=_PERIODS_REMEMBERED)(self._only_label)
        self._period = lru_cache(maxsize=_PERIODS_REMEMBERED)(self._work_out)

    def find(self, data: bytes) -> tuple[bytes, int] | None:
        """Return the pattern of the times in the block's period, and the label of its bucket.
        Return None if the block has no period, so that its times must be read one by one.

        Args:
            data: the complete lines of the block.
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
        """Return the label of the bucket that holds all minutes from ``first`` to ``last``. Return
        None if several buckets hold them, if some are not counted, or if a time or its bucket gives
        an error; reading a line of that time by itself gives the error again. Both times are
        written without seconds: ``17/May/2015:10:05+0000``.
        """
        try:
            minutes = range(minute_of(first), minute_of(last) + 1)
            if not all(map(self._within, minutes)):
                return None
            labels = set(map(self._bucket, minutes))
        except Exception:  # raised again, or a reason of rejection, for the line itself
            return None
        return labels.pop() if len(labels) == 1 else None
