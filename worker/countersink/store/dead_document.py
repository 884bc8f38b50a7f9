"""A dead row as programs get it: by ``countersink dead list --format json`` and by HTTP."""

from datetime import UTC, datetime

from countersink.store.dead import DeadRow


def document(row: DeadRow) -> dict[str, object]:
    """Its members, in order; times are ISO 8601 in UTC, the payload is text.

    Bytes of the payload that are no UTF-8 are shown as ``\\xNN``.
    """
    return {
        "ref": row.ref,
        "reason": row.reason,
        "detail": row.detail,
        "stream": row.stream,
        "at": _moment(row.at),
        "created": f"{row.created.isoformat(timespec='milliseconds')}Z" if row.created else None,
        "payload": row.payload.decode("utf-8", "backslashreplace"),
        "truncated": row.truncated,
    }


def _moment(ms: int) -> str:
    """Unix ms as ISO 8601; a number that is no time we can write stays a number."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
