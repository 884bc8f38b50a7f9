"""Compaction or retention in a process of its own, to be killed:

`python -m tests.support.run_moves '{"what": "compact", "mysql_url": …, "rows": 40}'`. One pass, or
with `"passes": 0` one after another until it is killed.
"""

import json
import sys
from datetime import date
from functools import partial
from itertools import count

from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import PassDone, open_tables
from countersink.schedules.jobs.retention import roll_up


def move(what: str, mysql_url: str, rows: int = 2000) -> PassDone:
    """One pass."""
    connect = partial(open_tables, mysql_url)
    if what == "compact":
        return compact(connect, CompactOptions(before=date.max, rows=rows))
    return roll_up(connect, rows=rows)


def main() -> int:
    """The passes asked for; 0 when each was finished."""
    plan = json.loads(sys.argv[1])
    passes = plan.pop("passes")
    for _ in range(passes) if passes else count():
        move(**plan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
