"""Where records end in bytes: at every newline, or (CSV) at those outside of quotes.

A newline is inside of quotes if an odd number of ``"`` stands before it in its record. Everything
here expects bytes that begin where a record begins.
"""

import re
from typing import Final

# No backtracking (possessive, atomic): a hostile source costs no more than its length. Groups are
# atomic, as possessive ones go wrong before Python 3.11.5 (python/cpython#106052).
_ONE: Final = rb'[^"\n]*+(?>(?:"[^"]*+"[^"\n]*+)*)\n'
_RECORD: Final = re.compile(_ONE)
_RECORDS: Final = re.compile(rb"(?>(?:" + _ONE + rb")*)")
_STEPS: Final = 64
"""Newlines looked at from the end on, before all is read from the beginning."""


def last_end(data: bytes, *, quoted: bool) -> int:
    """Where the last complete record of ``data`` ends, after its newline; 0 if there is none."""
    at = data.rfind(b"\n")
    if not quoted or at < 0:
        return at + 1
    quotes = data.count(b'"')
    upto = len(data)
    # From the end on: counting is ten times as fast as matching.
    for _ in range(_STEPS):
        quotes -= data.count(b'"', at, upto)
        if quotes % 2 == 0:
            return at + 1
        upto, at = at, data.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    found = _RECORDS.match(data)
    return found.end() if found else 0


def end_after(data: bytes, newline: int, *, quoted: bool) -> int:
    """Where the record ends that the newline at index ``newline`` ends or is inside of.

    One that ends there or later has to be in ``data``.
    """
    if quoted and data.count(b'"', 0, newline):
        for record in _RECORD.finditer(data):
            if record.end() > newline:
                return record.end()
    return newline + 1


def split(data: bytes, *, quoted: bool) -> list[bytes]:
    """The records of ``data``, which ends where one ends, without their last newlines."""
    lines = data.split(b"\n")
    del lines[-1]
    if quoted and b'"' in data and any(line.count(b'"') & 1 for line in lines):
        return [record[:-1] for record in _RECORD.findall(data)]
    return lines
