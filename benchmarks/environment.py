"""Where a run took place: what one has to know before comparing two of them."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from benchmarks import workload
from benchmarks.site import APPENDFSYNC, MYSQL_OPTIONS, Site

LIBRARIES: Final = (
    "countersink",
    "redis",
    "hiredis",
    "PyMySQL",
    "msgspec",
    "rq",
    "celery",
    "celery-batches",
    "dramatiq",
    "taskiq-redis",
    "arq",
    "bytewax",
    "statsd",
)


def describe(site: Site, *, server: str, rounds: int, seconds: float) -> dict[str, Any]:
    """The `environment` of results.json. ``seconds`` is how long each measurement is at least."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gigabytes": _memory_gigabytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "redis": site.redis_version(),
        "server": server,
        server: site.mysql_version(),
        "redis_settings": {"appendonly": "yes", "appendfsync": APPENDFSYNC},
        "mysql_settings": [option.removeprefix("--") for option in MYSQL_OPTIONS],
        "libraries": {name: _version(name) for name in LIBRARIES},
        "workload": {
            "keys": workload.NAMES,
            "zipf_exponent": workload.EXPONENT,
            "sequence": workload.SEQUENCE,
        },
        "rounds": rounds,
        "seconds_per_measurement": seconds,
        # More than about 0.3 here, and something else was running: take the ratios, if anything.
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not on Linux: what the platform says will do
    return platform.processor() or platform.machine()


def _memory_gigabytes() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
