"""The row of a run in ``job_run`` and its states (running, done, failed, skipped): begin, finish,
put back, skip where the run before goes on (after ``wait_s`` of ``schedules/options.py``) or a
waiting one is stale (``STALE_S``); the lease of a run, and the texts stored with it.

A run holds the lease ``job:<job>``, renewed by a thread of its own, from its start to its end. So a
second start of an attempt does nothing, a run whose process died is taken over once its lease has
run out, and one that lost its lease can no longer say how it ended.
"""

import ctypes
import mmap
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from math import inf
from typing import Final, Self

from countersink.schedules.history import TEXT
from countersink.schedules.options import JobsOptions
from countersink.store import lease
from countersink.store.connection import Session, rerun
from countersink.store.errors import StoreError
from countersink.store.sessions import lease_session
from countersink.store.sql import NOW_MS

TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
"""Of a planned time in RQ's queue."""
MAX_ROWS: Final = 2**63 - 1
STALE_S: Final = 3600
"""Seconds after which a run that never began makes way for later ones of its job."""
STALE: Final = "it waited for more than an hour, and later runs of this job are planned"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a run, and who makes it.

    Attributes:
        job: its name.
        planned_at: naive UTC.
        number: from 1; it starts only where so many less one were started before.
        holder: of the lease ``job:<job>``: a text that no other attempt uses.
    """

    job: str
    planned_at: datetime
    number: int
    holder: str

    @property
    def lease(self) -> str:
        """The lease's name."""
        return f"job:{self.job}"


class Begun(Enum):
    """What became of the attempt to begin."""

    STARTED = "started"
    """It runs, and holds the lease."""
    NOTHING = "nothing"
    """There is no such run, it is over, or this attempt, or a later one, was started before."""
    BUSY = "busy"
    """Another run of the job is at it."""
    STALE = "stale"
    """It waited for more than an hour, and later runs are planned: it was skipped."""


def begin(session: Session, attempt: Attempt, lease_s: float) -> Begun:
    """Start the attempt, if it is its turn.

    Raises:
        StoreError: unknown whether it was started. Trying again finds it started, and does nothing:
            it is taken over when its lease has run out.
    """
    if not _is_due(session, attempt):
        return Begun.NOTHING
    token = lease.acquire(session, attempt.lease, attempt.holder, lease_s)
    if token is None:
        return Begun.BUSY
    begun = rerun(partial(_begin, session, attempt))
    if begun is not Begun.STARTED:
        lease.release(session, attempt.lease, attempt.holder)
    return begun


def finish(
    session: Session,
    attempt: Attempt,
    *,
    rows: int | None = None,
    detail: str | None = None,
    error: str | None = None,
) -> bool:
    """Write how the attempt ended, failed if there is an ``error``, and give the lease back.

    Returns:
        False if it was taken over, or ended, by another: nothing was written.

    Raises:
        Conflict: another was in the way. Call again.
        StoreError: unknown. Call again.
    """
    with session.transaction():
        if not _holds(session, attempt):
            return False
        # The error of an earlier attempt stays where this one went well: it is part of the story.
        changed = session.execute(
            "UPDATE job_run SET state = %s, ended_at = UTC_TIMESTAMP(3), row_count = %s,"
            " detail = %s, error = COALESCE(%s, error)"
            " WHERE job = %s AND planned_at = %s AND state = 'running' AND holder = %s",
            (
                "done" if error is None else "failed",
                None if rows is None else max(-MAX_ROWS, min(rows, MAX_ROWS)),
                _stored(detail),
                _stored(error),
                attempt.job,
                attempt.planned_at,
                attempt.holder,
            ),
        )
        lease.release(session, attempt.lease, attempt.holder)
    return changed == 1


def put_back(session: Session, attempt: Attempt, detail: str | None = None) -> bool:
    """Undo the start of an attempt that was told to end before its work was done: the same attempt
    can start again, elsewhere, as if this one had not been made.

    Also where its lease was lost, as long as nobody has taken the run over.

    Args:
        session: see :func:`begin`.
        attempt: that was started.
        detail: what it did so far; shown until it starts again.

    Returns:
        False if it was taken over, or ended, by another: nothing was written.

    Raises:
        Conflict: another was in the way. Call again.
        StoreError: unknown. Call again.
    """
    with session.transaction():
        lease.release(session, attempt.lease, attempt.holder)
        changed = session.execute(
            "UPDATE job_run SET state = 'planned', attempts = %s, holder = NULL,"
            " started_at = NULL, detail = %s"
            " WHERE job = %s AND planned_at = %s AND state = 'running' AND holder = %s",
            (
                attempt.number - 1,
                _stored(detail),
                attempt.job,
                attempt.planned_at,
                attempt.holder,
            ),
        )
    return changed == 1


def skip(session: Session, attempt: Attempt, waited_s: float) -> str | None:
    """End a run that found another one of its job going; the reason, None if it is not its turn.

    A run whose process died, and that could not be taken over for the same reason, ends as failed.

    Raises:
        Conflict: another was in the way. Call again.
        StoreError: unknown. Call again.
    """
    with session.transaction():
        rows = session.query(
            "SELECT state FROM job_run WHERE job = %s AND planned_at = %s"
            " AND attempts = %s FOR UPDATE",
            (attempt.job, attempt.planned_at, attempt.number - 1),
        )
        if not rows or rows[0][0] not in ("planned", "running"):
            return None
        going = session.query(
            "SELECT planned_at FROM job_run WHERE job = %s AND state = 'running'"
            " AND planned_at <> %s ORDER BY planned_at DESC LIMIT 1",
            (attempt.job, attempt.planned_at),
        )
        which = f"the run planned at {going[0][0]} UTC" if going else "another run of this job"
        if rows[0][0] == "running":
            reason = f"its process ended in the midst of it, and {which} was going instead"
            _end(session, attempt, "failed", reason)
        else:
            reason = f"{which} was still going after {waited_s:g} s"
            _end(session, attempt, "skipped", reason)
    return reason


def _is_due(session: Session, attempt: Attempt, lock: str = "") -> bool:
    """Whether the row is as this attempt has to find it."""
    rows = session.query(
        f"SELECT state, attempts FROM job_run WHERE job = %s AND planned_at = %s {lock}",
        (attempt.job, attempt.planned_at),
    )
    return bool(rows) and (
        rows[0][0] in ("planned", "failed", "running") and rows[0][1] == attempt.number - 1
    )


def _holds(session: Session, attempt: Attempt) -> bool:
    rows = session.query(
        f"SELECT 1 FROM lease WHERE name = %s AND holder = %s AND expires_at > {NOW_MS} FOR UPDATE",
        (attempt.lease, attempt.holder),
    )
    return bool(rows)


def _begin(session: Session, attempt: Attempt) -> Begun:
    with session.transaction():
        # The lease first, then the run: everywhere in this order. It may have run out since it was
        # taken, if this process was frozen in between.
        if not _holds(session, attempt):
            return Begun.BUSY
        if not _is_due(session, attempt, "FOR UPDATE"):
            return Begun.NOTHING
        if attempt.number == 1 and _is_stale(session, attempt):
            _end(session, attempt, "skipped", STALE)
            return Begun.STALE
        session.execute(
            "UPDATE job_run SET state = 'running', attempts = %s, holder = %s,"
            " started_at = UTC_TIMESTAMP(3), ended_at = NULL, row_count = NULL, detail = NULL"
            " WHERE job = %s AND planned_at = %s",
            (attempt.number, attempt.holder, attempt.job, attempt.planned_at),
        )
    return Begun.STARTED


def _is_stale(session: Session, attempt: Attempt) -> bool:
    rows = session.query(
        "SELECT 1 FROM job_run WHERE job = %s AND planned_at > %s"
        " AND %s < UTC_TIMESTAMP() - INTERVAL %s SECOND LIMIT 1",
        (attempt.job, attempt.planned_at, attempt.planned_at, STALE_S),
    )
    return bool(rows)


def _end(session: Session, attempt: Attempt, state: str, detail: str) -> None:
    column = "error" if state == "failed" else "detail"
    session.execute(
        f"UPDATE job_run SET state = %s, ended_at = UTC_TIMESTAMP(3), {column} = %s"
        " WHERE job = %s AND planned_at = %s",
        (state, detail[:TEXT], attempt.job, attempt.planned_at),
    )


def _stored(text: str | None) -> str | None:
    """``text`` as its column takes it: cut, and without what is no UTF-8."""
    if text is None:
        return None
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    return clean if len(clean) <= TEXT else f"{clean[: TEXT - 1]}…"


def shared_moment() -> ctypes.c_double:
    """A moment, at first infinite, that this process and those that it forks afterwards share."""
    moment = ctypes.c_double.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_double)))
    moment.value = inf
    return moment


@dataclass(repr=False, eq=False)
class LeaseRenewal:
    """Keeps the lease of an attempt that has begun, inside a ``with`` block.

    Args:
        held_until: where it tells the process that watches over the run until when the lease is
            surely held, on :func:`time.monotonic`, which is one clock for all processes of a host;
            infinite while no run holds a lease.
        options: where, on a connection of its own, how long, and how often.
        attempt: whose lease.
    """

    _held_until: ctypes.c_double
    _options: JobsOptions
    _attempt: Attempt

    def __post_init__(self) -> None:
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether the lease was lost, or has surely run out: another may be at it."""
        return self._lost or time.monotonic() >= self._held_until.value

    def __enter__(self) -> Self:
        self._held_until.value = time.monotonic() + self._options.lease_s
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End; the lease is as it was left."""
        self._ended.set()
        # Joined for good order; a renewal that hangs ends with its short time-out.
        self._thread.join(2 * self._options.renew_every_s)
        self._held_until.value = inf

    def _run(self) -> None:
        kept, attempt = lease_session(self._options.mysql_url), self._attempt
        lease_s = self._options.lease_s
        while not self._ended.wait(self._options.renew_every_s):
            begun = time.monotonic()
            with suppress(StoreError):  # again soon; `lost` says when it is too late
                if not lease.renew(kept(), attempt.lease, attempt.holder, lease_s):
                    self._lost = True
                    break
                self._held_until.value = begun + lease_s
        kept.close()


def planned_time(text: str) -> datetime:
    """The planned time in an RQ job's arguments: naive UTC, as the tables have it.

    Raises:
        ValueError: it is none.
    """
    return datetime.strptime(text, TIME_FORMAT)  # noqa: DTZ007 (the text ends in Z)
