"""Marks on buckets that a backfill has set to what its sources say.

What was accepted before a reconcile began is in its sources, whether or not it had arrived. So what
of it arrives afterwards (out of the spool of a host that was dead) is not counted on top. A mark
says of a bucket which entries these are; marks are part of the policies, by whose version workers
see that there are new ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from countersink.store.buckets import label_of, label_time
from countersink.store.connection import Session

KEPT_UNSENT_MS: Final = 90 * 86_400_000
"""How long, in ms, an entry may have waited to be sent for its id to tell when it was made."""

_ROWS_PER_STATEMENT: Final = 1000


@dataclass(frozen=True, slots=True)
class Mark:
    """What a bucket was set to is the truth about entries accepted before a time.

    Attributes:
        sent_before: Unix ms.
        run: the backfill that set it.
    """

    sent_before: int
    run: int


Marks = Mapping[str, Mapping[int, Mark]]
"""By counter and label of the bucket."""


def accepted(entry_id: bytes, at: int) -> int:
    """Unix ms before which all of an entry was accepted by its producer, as far as can be told.

    A spooled entry is stamped ``at`` when it is first sent, but its id is as old as the record. An
    id that an app has named, or that another producer made in its own way, begins with anything: it
    is taken for a time only if that lies within 90 days before ``at``.
    """
    made = int.from_bytes(entry_id[:6], "big")
    return made if at - KEPT_UNSENT_MS <= made < at else at


def load(session: Session, *, watermark: int | None = None) -> dict[str, dict[int, Mark]]:
    """The marks, of several on a bucket the latest.

    Args:
        session: in the transaction or snapshot that the caller began.
        watermark: leave out those that no entry sent at this time or later can meet.
    """
    where, args = "", tuple[object, ...]()
    if watermark is not None:
        where, args = " WHERE sent_before > %s", (watermark - KEPT_UNSENT_MS,)
    found: dict[str, dict[int, Mark]] = {}
    for counter, bucket, run, sent_before in session.query(
        f"SELECT counter, bucket, run, sent_before FROM reconciled_bucket{where}"
        " ORDER BY sent_before, run",
        args,
    ):
        found.setdefault(counter, {})[label_of(bucket)] = Mark(int(sent_before), int(run))
    return found


def marked(session: Session, counter: str, run: int) -> set[int]:
    """The labels of the buckets that a run has marked."""
    found = session.query(
        "SELECT bucket FROM reconciled_bucket WHERE counter = %s AND run = %s", (counter, run)
    )
    return {label_of(bucket) for (bucket,) in found}


def set_by(
    session: Session, counter: str, labels: Iterable[int], *, later_than: int = 0
) -> dict[int, int]:
    """Those of some buckets that were reconciled, whenever it was, each with the last run that did.

    Args:
        session: where it must stay so, in a transaction that holds the share lock of control.
        labels: of the buckets.
        later_than: look at runs after this one only.
    """
    found: dict[int, int] = {}
    times = [label_time(label) for label in labels]
    for start in range(0, len(times), _ROWS_PER_STATEMENT):
        part = times[start : start + _ROWS_PER_STATEMENT]
        rows = session.query(
            "SELECT bucket, MAX(run) FROM reconciled_bucket WHERE counter = %s"
            f" AND bucket IN ({', '.join(['%s'] * len(part))}) AND run > %s GROUP BY bucket",
            (counter, *part, later_than),
        )
        found |= {label_of(bucket): int(run) for bucket, run in rows}
    return found


def mark(session: Session, counter: str, run: int, sent_before: int, labels: Iterable[int]) -> None:
    """Mark buckets, in a transaction that holds control alone and bumps the version."""
    rows = [(counter, label_time(label), run, sent_before) for label in sorted(labels)]
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        part = rows[start : start + _ROWS_PER_STATEMENT]
        values = ", ".join(["(%s, %s, %s, %s)"] * len(part))
        session.execute(
            "INSERT INTO reconciled_bucket (counter, bucket, run, sent_before)"
            f" VALUES {values} ON DUPLICATE KEY UPDATE run = reconciled_bucket.run",
            [value for row in part for value in row],
        )


def unmark(session: Session, counter: str, run: int) -> int:
    """Take a run's marks away, in such a transaction; how many there were."""
    return session.execute(
        "DELETE FROM reconciled_bucket WHERE counter = %s AND run = %s", (counter, run)
    )
