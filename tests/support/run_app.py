"""An app that counts: a process of its own, which tests freeze out of Redis, and kill.

It calls `increment` at the asked rate, in chunks of 1,000 that share a key, and writes JSON lines:
`{"stored": n}` whenever a flush says that the first n chunks are stored, and the statistics at the
end. With `replay` it counts nothing and lives until what others left in the spool is sent.
"""

import contextlib
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from countersink.producers import Producer
from tests.support.traffic import FIRST_MINUTE

CHUNK = 1000
AT = datetime.fromtimestamp(FIRST_MINUTE * 60, UTC)
FINAL_FLUSH_SECONDS = 60.0


@dataclass
class Plan:
    """What to do."""

    redis_url: str
    counter: str = "app"
    chunks: int = 100
    per_second: int = 100_000
    replay: bool = False
    wait_for_word: bool = False
    """Before the last flush, wait for a line on stdin."""
    producer: dict[str, Any] = field(default_factory=dict)


def main(**fields: Any) -> int:
    """Run the plan."""
    plan = Plan(**fields)
    with Producer(plan.redis_url, **plan.producer) as producer:
        raised = 0
        if plan.replay:
            _until_spool_is_empty(producer, Path(plan.producer["spool"]))
        else:
            raised = _count(producer, plan)
        if plan.wait_for_word:
            _say(counted=plan.chunks)
            sys.stdin.readline()
        flushed = producer.flush(timeout=FINAL_FLUSH_SECONDS)
    # Not ru_maxrss: that is inherited from the process which started this one.
    status = Path("/proc/self/status").read_text("ascii", "replace")
    peak_kb = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
    _say(flushed=flushed, raised=raised, peak_mb=peak_kb // 1024, **asdict(producer.stats()))
    return 0


def _count(producer: Producer, plan: Plan) -> int:
    """Call `increment` chunk by chunk at the planned rate; how many calls raised."""
    done = [0]
    stopping = threading.Event()
    reporter = threading.Thread(target=_report, args=(producer, done, stopping), daemon=True)
    reporter.start()
    raised = 0
    begin = time.monotonic()
    for chunk in range(plan.chunks):
        key = f"chunk-{chunk}"
        for _ in range(CHUNK):
            try:
                producer.increment(plan.counter, key, at=AT)
            except Exception:
                raised += 1
        done[0] = chunk + 1
        ahead = begin + done[0] * CHUNK / plan.per_second - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
    stopping.set()
    reporter.join()
    return raised


def _report(producer: Producer, done: list[int], stopping: threading.Event) -> None:
    while not stopping.wait(0.1):
        chunks = done[0]
        if producer.flush(timeout=1.0):
            _say(stored=chunks)


def _until_spool_is_empty(producer: Producer, spool: Path) -> None:
    pause = threading.Event()
    while any(_size(path) for path in spool.iterdir() if path.is_file()):
        producer.flush(timeout=0.5)
        pause.wait(0.05)


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)
