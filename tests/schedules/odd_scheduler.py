"""A scheduler whose host plays it a trick: `python -m tests.schedules.odd_scheduler TRICK JSON`.

`freeze` stops it (SIGSTOP) in a transaction that plans a run, and holds the row of the lease;
`clock:N` sets the clock that its modules look at ahead by N seconds at that moment, back if N is
negative.
"""

import datetime
import json
import os
import signal
import sys
from itertools import count
from typing import Any

import apscheduler.schedulers.base

from countersink.runtime.log import set_up
from countersink.schedules.scheduler import planner, process
from countersink.store.connection import Session
from tests.support.scheduled import scheduler_options

IN_TRANSACTION = 6
"""Three to take over with one job, then one for each run."""


def play(trick: str) -> None:
    """Get ready for the trick."""
    entered, in_charge = count(1), planner.in_charge

    def tricked(session: Session, holder: str, token: int) -> None:
        in_charge(session, holder, token)
        if next(entered) != IN_TRANSACTION:
            return
        if trick == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            ahead[0] = datetime.timedelta(seconds=int(trick.partition(":")[2]))

    ahead = [datetime.timedelta(0)]

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.now(tz) + ahead[0]

    planner.in_charge = tricked
    for module in (apscheduler.schedulers.base, planner):
        vars(module)["datetime"] = Clock


def main() -> int:
    """Run the process until it is signalled."""
    play(sys.argv[1])
    set_up("json")
    return process.run(scheduler_options(json.loads(sys.argv[2])))


if __name__ == "__main__":
    sys.exit(main())
