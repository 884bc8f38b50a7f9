"""The decoder of entries: their limits of bytes and rows, the check of each row, and the
dead-letter reason and detail of each fault. See ``runtime/dead_letter.py`` for the texts of the
reasons.

This module needs msgspec, which an application that only counts does not install. So only programs
that read streams import it: the worker, reads of pending totals, and the retry of dead letters.
"""

import json
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from countersink.runtime import limits
from countersink.runtime.dead_letter import WHOLE_ENTRY, Bad, DeadReason, row_fault
from countersink.runtime.dimensions import RowKey, check_row_key
from countersink.runtime.limits import MAX_KEY_BYTES
from countersink.runtime.members import HASH_BYTES, MAX_HASHES, MAX_SALT_NUMBER, Seen
from countersink.stream.entry import MAX_ROWS_BYTES, VERSION, Delivery, derived_id

MAX_ROWS: Final = 10_000
"""Most rows of an entry; our producer sends at most 1,000. A transaction with more rows would take
too long.
"""
MAX_AT: Final = limits.MAX_MINUTE * 60_000

NumberedRow = tuple[int, str, RowKey, int, int]
"""A row: its position in the entry from 0, counter, key or dimensions, minute, amount."""

_MOST_VALUES: Final = 30 * MAX_ROWS
"""Most commas and opening brackets and braces in a ``rows`` field that has a bad row. A row has
five of them outside its texts, or 13 with eight dimensions. The JSON values of a field with more
could take a hundred times its bytes in memory.
"""


class _AnyRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A row in the JSON of a ``rows`` field, with or without hashed members."""

    counter: str
    key: str | dict[str, str]
    minute: int
    amount: int
    number: int | msgspec.UnsetType = msgspec.UNSET
    hashes: str | msgspec.UnsetType = msgspec.UNSET


_decode_rows = msgspec.json.Decoder(list[tuple[str, str, int, int]]).decode
_decode_dimensions = msgspec.json.Decoder(list[tuple[str, str | dict[str, str], int, int]]).decode
_decode_members = msgspec.json.Decoder(list[_AnyRow]).decode
_known_counters: set[str] = set()
_KNOWN_COUNTERS_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded entry: its good rows and its bad rows.

    Attributes:
        id: the entry id for the guard row and the acknowledgement, 32 hex digits in lower case.
        at: the time of the first attempt to send, in Unix ms, from the entry's field ``at``. If the
            field ``at`` or ``rows`` is missing, ``v``, ``id`` or ``at`` is bad, or ``v`` is newer
            than :data:`VERSION`, it is the time in the stream id.
        rows: the good rows.
        bad: the bad rows. If the entry is bad as a whole, one item for all of it; then there are no
            good rows.
        seen: the hashed members of those good rows that have members, by the row's position in the
            entry (the first item of a :data:`NumberedRow`).
    """

    id: str
    at: int
    rows: list[NumberedRow]
    bad: list[Bad]
    seen: dict[int, Seen] = field(default_factory=dict)


class _Fault(Exception):
    """Raised where a row, or a whole entry, cannot be counted."""

    def __init__(self, reason: DeadReason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def decode(delivery: Delivery) -> Decoded:
    """Decode one entry. Never raises because of its content: bad rows, or an entry that is bad as a
    whole, are in ``Decoded.bad``.
    """
    fields: dict[bytes, bytes] = {}
    for name, value in delivery.fields:
        fields.setdefault(name, value)  # a repeated field's first value, as scripts/entry.lua
    at = min(int(delivery.stream_id.partition("-")[0]), MAX_AT)
    entry_id = entry_id_of(delivery)
    try:
        sent_at, raw = _checked(fields)
    except _Fault as fault:
        bad = Bad(WHOLE_ENTRY, fault.reason, fault.detail, _pack(fields))
        return Decoded(entry_id, at, [], [bad])
    at = at if sent_at is None else sent_at
    rows, seen, bad_rows = decode_rows(raw, at)
    return Decoded(entry_id, at, rows, bad_rows, seen)


def entry_id_of(delivery: Delivery) -> str:
    """Return the value of the entry's field ``id``, in lower case, if it is a valid id, even if
    other fields are bad; else the :func:`countersink.stream.entry.derived_id` of the whole entry.
    """
    given = delivery.first(b"id")
    if given is not None:
        try:
            return _read_id(given)
        except _Fault:
            pass  # decode() reports it; the entry still needs an id
    return delivery.derived or derived_id(delivery.stream, delivery.stream_id, delivery.fields)


ReadRows = tuple[list[NumberedRow], dict[int, Seen], list[Bad]]
"""The good rows; the hashed members of rows that have members, by the row's position; the bad
rows.
"""


def decode_payload(payload: bytes) -> ReadRows:
    """Decode the payload of a dead letter, for its retry. Return the good rows, the hashed
    members by the row's position, and the bad rows. The payload is a ``rows`` field (around the
    JSON of a single row the caller puts ``[]``), or the JSON object of all fields of an entry. An
    entry with a malformed field, or of a newer format than this version knows, is returned as one
    bad item again.
    """
    fields = _unpack(payload)
    if fields is None:
        return decode_rows(payload)
    try:
        return decode_rows(_checked(fields)[1])
    except _Fault as fault:
        return [], {}, [Bad(WHOLE_ENTRY, fault.reason, fault.detail, payload)]


def decode_rows(raw: bytes, at: int = 0) -> ReadRows:
    """Decode a ``rows`` field. Return the good rows, the hashed members by the row's position, and
    the bad rows. If the field as a whole cannot be read, or has too many bytes or rows, it is
    returned as one bad item.

    Args:
        raw: the bytes of the field.
        at: when the field was sent, in Unix ms. A row is bad if its minute is more than
            ``limits.MAX_AHEAD`` minutes after the later of ``at`` and now by this machine's clock.
            By default only now matters.
    """
    if len(raw) > MAX_ROWS_BYTES:
        detail = f"'rows' has more than {MAX_ROWS_BYTES:,} bytes, the maximum"
        return [], {}, [Bad(WHOLE_ENTRY, DeadReason.TOO_LARGE, detail, raw)]
    items: list[Any]
    try:
        # A row with members ends with a text, and dimensions have a brace. Without either, the
        # narrower type is decoded faster.
        if b'"]' in raw:
            items = [_items(row) for row in _decode_members(raw)]
        else:
            items = _decode_dimensions(raw) if b"{" in raw else _decode_rows(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            items = _decode_loosely(raw)
        except _Fault as fault:
            return [], {}, [Bad(WHOLE_ENTRY, fault.reason, fault.detail, raw)]
    if len(items) > MAX_ROWS:
        detail = f"'rows' holds {len(items):,} rows; the maximum is {MAX_ROWS:,}: split the entry"
        return [], {}, [Bad(WHOLE_ENTRY, DeadReason.TOO_MANY_ROWS, detail, raw)]
    rows: list[NumberedRow] = []
    seen: dict[int, Seen] = {}
    bad: list[Bad] = []
    known = _known_counters
    latest = limits.latest_minute(at)
    for position, item in enumerate(items):
        try:
            counter, key, minute, amount = item
            is_usual = (
                counter in known
                and type(key) is str
                and len(key) <= MAX_KEY_BYTES
                and key.isascii()
                and type(minute) is int
                and limits.MIN_MINUTE <= minute <= latest
                and type(amount) is int
                and limits.MIN_AMOUNT <= amount <= limits.MAX_AMOUNT
            )
        except (TypeError, ValueError):
            is_usual = False
        if is_usual:
            rows.append((position, counter, key, minute, amount))
            continue
        try:
            row, members = _checked_row(position, item, latest)
        except _Fault as fault:
            bad.append(_bad(position, fault.reason, fault.detail, item))
            continue
        rows.append(row)
        if members is not None:
            seen[position] = members
    return rows, seen, bad


def _items(row: _AnyRow) -> tuple[Any, ...]:
    plain = row.counter, row.key, row.minute, row.amount
    if row.number is msgspec.UNSET:
        return plain
    return (*plain, row.number) if row.hashes is msgspec.UNSET else (*plain, row.number, row.hashes)


def _checked_row(position: int, item: Any, latest: int) -> tuple[NumberedRow, Seen | None]:
    """Check one item of a ``rows`` field. Return it as a row in the form in which it is counted,
    and its hashed members (None if it has none). ``position`` is the item's position in the field,
    ``latest`` the latest minute that is allowed.

    Raises:
        _Fault: the item is not a valid row.
    """
    if not (isinstance(item, list | tuple) and len(item) in (4, 6)):
        detail = "a row is [counter, key, minute, amount] or [..., salt number, hashes of members]"
        raise _Fault(DeadReason.NOT_A_ROW, detail)
    counter, key, minute, amount, *members = item
    try:
        limits.check_counter(counter)
        checked = limits.check_key(key) if type(key) is str else check_row_key(key)
        limits.check_minute(minute)
        limits.check_amount(amount)
    except (TypeError, ValueError) as error:
        fault = row_fault((counter, key, minute, amount))
        raise _Fault(*(fault or (DeadReason.NOT_A_ROW, str(error)))) from None
    if minute > latest:
        days = limits.MAX_AHEAD // 1440
        detail = f"the event is more than {days} days later than now, and than its sending"
        raise _Fault(DeadReason.BAD_MINUTE, detail)
    if len(_known_counters) < _KNOWN_COUNTERS_LIMIT:
        _known_counters.add(counter)
    row = position, counter, checked, minute, amount
    return row, _checked_members(amount, *members) if members else None


def _checked_members(amount: int, number: Any, hashes: Any) -> Seen:
    if amount < 0:
        detail = "the amount of a row with members is a number of sightings: it must not be below 0"
        raise _Fault(DeadReason.BAD_AMOUNT, detail)
    if type(number) is not int or not 0 <= number <= MAX_SALT_NUMBER:
        raise _Fault(DeadReason.BAD_MEMBERS, "a salt number is an int from 0 to 2**32 - 1")
    return Seen(number, _read_hashes(hashes))


def _read_hashes(text: Any) -> bytes:
    try:
        if type(text) is not str:
            raise ValueError
        hashes = b64decode(text, validate=True)
    except ValueError:
        detail = "hashes of members are a text in base64, without line breaks"
        raise _Fault(DeadReason.BAD_MEMBERS, detail) from None
    count, rest = divmod(len(hashes), HASH_BYTES)
    if rest or not 1 <= count <= MAX_HASHES:
        detail = f"a row has 1 to {MAX_HASHES:,} hashes of {HASH_BYTES} bytes"
        raise _Fault(DeadReason.BAD_MEMBERS, f"{detail}, not {len(hashes)} bytes")
    return hashes


def _bad(position: int, reason: DeadReason, detail: str, item: Any) -> Bad:
    counter = item[0] if isinstance(item, list | tuple) and item else ""
    payload = json.dumps(item, separators=(",", ":")).encode()  # lone surrogates stay escaped
    return Bad(position, reason, detail, payload, counter if limits.is_name(counter) else "")


def _decode_loosely(raw: bytes) -> list[Any]:
    """Return the items of a ``rows`` field, each of any JSON type, so that its good rows can be
    counted although others are bad.

    Raises:
        _Fault: the field has too many values, is no JSON, or is not a list.
    """
    if sum(map(raw.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        detail = f"'rows' holds more than {MAX_ROWS:,} rows, the maximum: split the entry"
        raise _Fault(DeadReason.TOO_MANY_ROWS, detail)
    try:
        items = _loads(raw.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise _Fault(DeadReason.BAD_ENTRY, f"'rows' is not JSON: {error}") from None
    if not isinstance(items, list):
        detail = f"'rows' is a JSON {type(items).__name__}, not a list of rows"
        raise _Fault(DeadReason.BAD_ENTRY, detail)
    return items


def _loads(text: str) -> Any:
    # Python raises for an int of more than 4,300 digits; a text is a bad value of one row only.
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 40 else digits)


def _check_version(raw: bytes | None) -> None:
    if raw is None or raw == b"%d" % VERSION:
        return
    if not raw.isdigit() or len(raw) > 9 or int(raw) < 1:
        raise _Fault(DeadReason.BAD_ENTRY, f"'v' is {raw[:40]!r}, not a format version")
    if int(raw) > VERSION:
        raise _Fault(
            DeadReason.NEWER_VERSION,
            f"the entry has format {int(raw)}, this worker knows formats up to {VERSION}: "
            "upgrade it, then run 'countersink dead retry'",
        )


def _read_id(raw: bytes) -> str:
    text = raw.decode("ascii", "replace").lower()
    if len(text) != 32 or not set(text) <= set("0123456789abcdef"):
        raise _Fault(DeadReason.BAD_ENTRY, f"'id' is {raw[:40]!r}, not 32 hex digits")
    return text


def _read_at(raw: bytes) -> int:
    if not (raw.isdigit() and len(raw) <= 15 and int(raw) <= MAX_AT):
        raise _Fault(DeadReason.BAD_ENTRY, f"'at' is {raw[:40]!r}, not a time in Unix ms")
    return int(raw)


def _checked(fields: dict[bytes, bytes]) -> tuple[int | None, bytes]:
    """Check the fields of an entry. Return its time of sending in Unix ms (None if it has none),
    and its ``rows`` field.

    Raises:
        _Fault: ``v``, ``id`` or ``at`` is malformed, ``v`` is newer than :data:`VERSION`, or
            ``rows`` is missing.
    """
    _check_version(fields.get(b"v"))
    if b"id" in fields:
        _read_id(fields[b"id"])
    at = _read_at(fields[b"at"]) if b"at" in fields else None
    if b"rows" not in fields:
        raise _Fault(DeadReason.BAD_ENTRY, "the entry has no field 'rows'")
    return at, fields[b"rows"]


def _pack(fields: dict[bytes, bytes]) -> bytes:
    text = {
        name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, value in fields.items()
    }
    return json.dumps(text, separators=(",", ":")).encode()  # ASCII: invalid UTF-8 is escaped


def _unpack(payload: bytes) -> dict[bytes, bytes] | None:
    """Return the fields in a dead letter's payload of all fields of an entry (by :func:`_pack`);
    return ``None`` if the payload is not a JSON object of texts.
    """
    if not payload.startswith(b"{"):
        return None
    try:
        text = json.loads(payload)
        return {
            name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
            for name, value in text.items()
        }
    except (ValueError, AttributeError, RecursionError):
        return None
