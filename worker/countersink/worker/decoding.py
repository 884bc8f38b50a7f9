"""From what Redis delivers to what the store applies; survives a bug in between: one entry must not
stop the stream.
"""

import logging

from countersink.store.dead import WHOLE_ENTRY, DeadRow
from countersink.store.merge import Incoming
from countersink.stream.decode import decode, entry_id_of
from countersink.stream.delivery import Delivery
from countersink.worker.logs import Action, Log

INTERNAL_ERROR = "internal_error"
"""The dead letters' reason for an entry that fails in a way nobody foresaw."""
INTERNAL_DETAIL = "an unexpected error in countersink; the worker's log has the traceback"


def incoming(delivery: Delivery, log: Log) -> tuple[str, Incoming]:
    """The entry's id (32 hex digits), and the entry for the store.

    Where decoding itself fails, which is a bug, all of it is a dead letter, and the log says so.
    """
    payload = _first(delivery, b"rows")
    try:
        entry = decode(delivery)
    except Exception as error:
        log(
            Action.ENTRY_FAILED,
            "an entry cannot be decoded: it goes to the dead letters",
            level=logging.ERROR,
            bug=error,
            stream=delivery.stream,
            stream_id=delivery.stream_id,
        )
        entry_id = entry_id_of(delivery)
        at = int(delivery.stream_id.partition("-")[0])
        return entry_id, buried(
            Incoming(bytes.fromhex(entry_id), at, (), (), delivery.stream, payload)
        )
    name = bytes.fromhex(entry.id)
    dead = [
        DeadRow(name, bad.position, delivery.stream, entry.at, bad.reason, bad.detail, bad.payload)
        for bad in entry.bad
    ]
    return entry.id, Incoming(name, entry.at, entry.rows, dead, delivery.stream, payload)


def buried(entry: Incoming) -> Incoming:
    """``entry`` with nothing to count: as a whole among the dead letters, as ``internal_error``."""
    grave = DeadRow(
        entry.id,
        WHOLE_ENTRY,
        entry.stream,
        entry.at,
        INTERNAL_ERROR,
        INTERNAL_DETAIL,
        entry.payload or b"",
    )
    return Incoming(entry.id, entry.at, (), (grave,), entry.stream, entry.payload)


def _first(delivery: Delivery, field: bytes) -> bytes | None:
    return next((value for name, value in delivery.fields if name == field), None)
