"""Logs of the recorded installation: the same bytes whenever they are made."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from fcntl import LOCK_EX, flock
from pathlib import Path
from shutil import rmtree
from typing import Final

DAY: Final = date(2026, 11, 20)
"""Of all events."""
LOG_LINES: Final = 40
DIRECTORY: Final = Path("/tmp/countersink-upgrade")
"""Where the logs lie: paths are in the tables, and positions are those of paths."""
BIG_LINES: Final = 17_000
"""Of 4 kB each: more than what a backfill counts alone."""
_PATHS: Final = ("/", "/a", "/b")


def line(number: int, agent: str = "x") -> str:
    """A line of an access log."""
    minute, second = divmod(number % 3600, 60)
    return (
        f"10.0.{number % 200}.{number // 200} - - [20/Nov/2026:10:{minute:02d}:{second:02d} +0000]"
        f' "GET {_PATHS[number % 3]} HTTP/1.1" 200 5 "-" "{agent}"\n'
    )


def access_log(lines: int) -> str:
    """The first lines of a small log."""
    return "".join(line(number) for number in range(lines))


def write_big(path: Path) -> None:
    """Write the big log."""
    with path.open("w") as log:
        log.writelines(line(number, f"{number:06d}" + "x" * 4_000) for number in range(BIG_LINES))


@contextmanager
def directory() -> Iterator[Path]:
    """The directory, empty, for one process at a time; removed afterwards."""
    with DIRECTORY.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        rmtree(DIRECTORY, ignore_errors=True)
        DIRECTORY.mkdir(mode=0o700)
        try:
            yield DIRECTORY
        finally:
            rmtree(DIRECTORY)
