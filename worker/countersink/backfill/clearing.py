"""Runs whose processes are gone, and what is of no use to anybody any more.

A process that is killed leaves its run ``running``. Who adds goes on with its chunks. But what the
sources of a reconcile said serves that run alone, and may be much; and a dry run leaves nothing at
all, had it come to its end.
"""

import os
from functools import partial
from typing import Final

from countersink.backfill import runs, sources, truth
from countersink.store.connection import Session
from countersink.store.rerun import rerun

_UNSEEN: Final = "seen < UTC_TIMESTAMP(3) - INTERVAL 1 HOUR"
"""Each chunk that is read, and each range that is corrected, is a sign of life."""


def clear(session: Session, counter: str) -> None:
    """Clear up what reconciles of a counter, and dry runs of some, left behind. May be run again,
    and beside others.

    Raises:
        StoreError: as any query.
    """
    for run in _gone(session, counter):
        # First: from then on nothing of it is committed, should it be there after all.
        if rerun(partial(_end, session, run)):
            rerun(partial(_forget_sources, session, run))
    truth.discard_ended(session, counter)
    for (run,) in session.query(
        "SELECT id FROM backfill_run WHERE counter = %s AND mode = %s AND state <> 'running'",
        (counter, runs.DRY_RUN),
    ):
        forget(session, int(run))


def forget(session: Session, run: int) -> None:
    """Leave nothing of a dry run. May be run again.

    Raises:
        StoreError: as any query.
    """
    truth.discard(session, run)
    rerun(partial(_forget_sources, session, run))
    runs.forget(session, run)


def _gone(session: Session, counter: str) -> list[int]:
    """Running reconciles, and dry runs of some, whose process is gone."""
    found = session.query(
        f"SELECT id, mode, holder, {_UNSEEN} FROM backfill_run"
        " WHERE counter = %s AND state = 'running' AND mode <> 'add'",
        (counter,),
    )
    return [
        int(run)
        for run, mode, holder, unseen in found
        if unseen or (mode == runs.DRY_RUN and _is_dead(holder))
    ]


def _is_dead(holder: str) -> bool:
    """Whether a process was one of this host's, and is there no more."""
    host, _, rest = holder.rpartition(":")
    pid = rest.partition("-")[0]
    if host != runs.host() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # somebody else's
    return False


def _end(session: Session, run: int) -> bool:
    """Let nothing more of a run be committed; not if it is seen again."""
    with session.transaction():
        alive = session.query(
            f"SELECT 1 FROM backfill_run WHERE id = %s AND mode <> %s AND NOT {_UNSEEN} FOR UPDATE",
            (run, runs.DRY_RUN),
        )
        if not alive:
            runs.end(session, run, "failed", "its process is gone")
    return not alive


def _forget_sources(session: Session, run: int) -> None:
    with session.transaction():
        sources.forget_truth(session, run)
