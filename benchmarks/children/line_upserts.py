"""The process of `benchmarks.peers.line_upserts`."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

from benchmarks.database import connect
from benchmarks.processes import answer, first_message
from benchmarks.workload import COUNTER

LINE: Final = re.compile(r'\S+ \S+ \S+ \[([^:]+):[^]]+\] "\S+ ([^ ?]+)')
UPSERT: Final = (
    "INSERT INTO hits (counter, day, name, cnt) VALUES (%s, %s, %s, 1)"
    " ON DUPLICATE KEY UPDATE cnt = cnt + 1"
)
PER_COMMIT: Final = 1_000
"""Lines; a commit after each line takes three times as long."""


def main() -> None:
    arguments = first_message()
    connection = connect(arguments["url"])
    days: dict[str, str] = {}
    lines = counted = 0
    with open(arguments["path"], encoding="utf-8") as log, connection.cursor() as cursor:
        begun = time.monotonic()
        deadline = begun + arguments["seconds"]
        for line in log:
            lines += 1
            found = LINE.match(line)
            if found is not None:
                day, path = found.groups()
                if day not in days:
                    days[day] = datetime.strptime(day, "%d/%b/%Y").strftime("%Y-%m-%d")  # noqa: DTZ007
                cursor.execute(UPSERT, (COUNTER, days[day], path))
                counted += 1
            if lines % PER_COMMIT == 0:
                connection.commit()
                if time.monotonic() >= deadline:
                    break
        connection.commit()
        ended = time.monotonic()
    answer({"lines": lines, "counted": counted, "seconds": ended - begun})


if __name__ == "__main__":
    main()
