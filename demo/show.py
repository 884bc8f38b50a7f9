"""The two demos, with their steps and sizes: traffic of two applications, or an access log; a
worker is killed meanwhile.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import redis

from countersink.runtime.texts import plural
from countersink.store import Store
from demo.app import COUNTER
from demo.killing import STREAM, kill_in_mid_batch
from demo.report import Report
from demo.stage import Stage, stop_worker

APPS = 2
INCREMENTS_PER_APP = 300_000
KILL_AT_ENTRY = 250
"""Entries that are sent before the kill, of about 600."""
LONGEST_SECONDS = 100
"""Seconds after which a step has failed."""

NEXT = [
    "make up                              Redis, MariaDB, a worker, jobs; the data stays",
    "                                     and then, in another shell:",
    ". ./countersink-data/environment.sh  where they are",
    "export PATH=$PWD/.venv/bin:$PATH",
    "countersink increment page_views /home",
    "countersink totals page_views --last 24h",
    "countersink info --watch",
    "README.md says how to count from your own application.",
]


class Failed(Exception):
    """A step of the demo failed; the message says why."""


def show_traffic(directory: Path, report: Report, _: Path | None) -> int:
    """Run two applications and two workers, kill one worker, and return the exit status."""
    report.title(
        "countersink: two applications count, a worker is killed, nothing is lost or doubled"
    )
    with Stage(directory) as stage, Store(stage.mysql_url) as store:
        _prepare(stage, store, report)
        workers = [stage.worker(number) for number in (1, 2)]
        today = datetime.now(UTC).date().isoformat()
        apps = [
            stage.run(*("demo.app", str(n), str(INCREMENTS_PER_APP), today), output=subprocess.PIPE)
            for n in range(APPS)
        ]
        report.step(f"two applications count {APPS * INCREMENTS_PER_APP:,} page views of 7 days")
        _kill_and_replace(stage, workers, report, after=KILL_AT_ENTRY, many=4)
        results = [_result(app) for app in apps]
        report.step("both applications are done, and MariaDB has all that they sent")
        _stop(stage, workers, report)
        sent: Counter[date] = Counter()
        for each in results:
            sent.update({date.fromisoformat(day): n for day, n in each["by_day"].items()})
        accepted = sum(each["accepted"] for each in results)
        figures = [("accepted by the two producers", accepted)]
        return _show_result(stage, store, report, figures, accepted, dict(sent))


def show_log(directory: Path, report: Report, log: Path | None) -> int:
    """Count an access log by `countersink tail`, kill a worker, and return the exit status."""
    assert log is not None
    report.title(
        f"countersink: {log.name} is counted, a worker is killed, nothing is lost or doubled"
    )
    with Stage(directory) as stage, Store(stage.mysql_url) as store:
        _prepare(stage, store, report)
        # A log of this size is counted at once: the only worker is frozen until the log is sent,
        # and takes one entry at a time, so that it surely dies with pending entries.
        workers = [stage.worker(1, batch_entries=1)]
        _wait_until_ready(stage, workers[0])
        workers[0].send_signal(signal.SIGSTOP)
        tail = stage.run(
            *("countersink.cli.entry", "tail", str(log), "--counter", COUNTER, "--format", "json"),
            output=subprocess.PIPE,
            errors="tail.log",  # the result has the rejected lines, too
        )
        report.step(f"countersink tail {log} --counter {COUNTER}")
        _kill_and_replace(stage, workers, report, after=1, many=1)
        workers.append(stage.worker(2))
        result = _result(tail, statuses=(0, 3))  # 3: some lines were rejected
        report.step("the log is read")
        _wait_until_empty(stage, workers)
        report.step("MariaDB has all its lines")
        _stop(stage, workers, report)
        if result["rejected"]:
            report.lines(
                f"rejected lines: {result['rejected']}",
                [f"line {each['line']}: {each['reason']}" for each in result["rejected_lines"]],
            )
        lines = result["counted"] + result["rejected"]
        figures = [("lines in the log", lines), ("rejected", result["rejected"])]
        figures.append(("accepted", result["counted"]))
        return _show_result(stage, store, report, figures, result["counted"], None)


def _prepare(stage: Stage, store: Store, report: Report) -> None:
    report.step(
        "a private Redis and a private MariaDB run, on free ports, in a temporary directory"
    )
    applied = store.migrate()
    report.step(f"countersink migrate: {', '.join(applied)}")


def _kill_and_replace(
    stage: Stage, workers: list[subprocess.Popen[str]], report: Report, after: int, many: int
) -> None:
    """Kill the first worker in mid-batch after ``after`` entries were sent, and start another."""
    with redis.Redis.from_url(stage.redis.url) as client:
        _wait_for_entries(client, workers[0], after)
        victim = workers.pop(0)
        held = kill_in_mid_batch(client, victim, many)
    if held is None:
        raise Failed("the worker never had pending entries")
    report.step(
        f"[red]SIGKILL[/red] for worker 1 (process {victim.pid}), in the middle of a batch: "
        f"it held {plural(held, 'unacknowledged entry', 'unacknowledged entries')}"
    )
    workers.append(stage.worker(3))
    report.step(f"worker 3 (process {workers[-1].pid}) replaces it, and takes over these entries")


def _wait_until_ready(stage: Stage, worker: subprocess.Popen[str]) -> None:
    """Wait until the first worker logs that it is ready."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while " ready " not in stage.worker_log(1):
        if worker.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"worker 1 did not start:\n{stage.worker_log(1)}")
        time.sleep(0.01)


def _wait_for_entries(client: redis.Redis, worker: subprocess.Popen[str], wanted: int) -> None:
    """Wait until ``wanted`` entries were sent to the stream; XREAD blocks, without polling."""
    seen, last = 0, "0-0"
    deadline = time.monotonic() + LONGEST_SECONDS
    while seen < wanted:
        replies: Any = client.xread({STREAM: last}, block=1000, count=wanted)
        for _, entries in replies:
            seen, last = seen + len(entries), entries[-1][0]
        if worker.poll() is not None:
            raise Failed(f"worker 1 ended with status {worker.returncode}")
        if time.monotonic() > deadline:
            raise Failed("too few entries were sent in time")


def _wait_until_empty(stage: Stage, workers: list[subprocess.Popen[str]]) -> None:
    """Wait until the stream is empty: entries are deleted when they are acknowledged."""
    deadline = time.monotonic() + LONGEST_SECONDS
    with redis.Redis.from_url(stage.redis.url) as client:
        while client.xlen(STREAM):
            if any(worker.poll() is not None for worker in workers):
                raise Failed(f"a worker ended by itself:\n{stage.worker_log(3)}")
            if time.monotonic() > deadline:
                raise Failed("the entries did not reach MariaDB in time")
            client.xread({STREAM: "$"}, block=50)


def _result(process: subprocess.Popen[str], statuses: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """The JSON document that a process prints before it ends."""
    try:
        output, _ = process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        raise Failed("a process did not end in time") from None
    if process.returncode not in statuses:
        raise Failed(f"process {process.pid} ended with status {process.returncode}")
    document: dict[str, Any] = json.loads(output)
    return document


def _stop(stage: Stage, workers: list[subprocess.Popen[str]], report: Report) -> None:
    statuses = [stop_worker(worker) for worker in workers]
    if any(statuses):
        raise Failed(f"the workers ended with {statuses}:\n{stage.worker_log(3)}")
    report.step("both workers stopped on SIGTERM, with nothing left pending")


def _show_result(
    stage: Stage,
    store: Store,
    report: Report,
    figures: list[tuple[str, int]],
    accepted: int,
    sent: dict[date, int] | None,
) -> int:
    """Read and print the totals; return the exit status, 0 if nothing differs."""
    span = store.totals.span(COUNTER)
    if span is None:
        raise Failed("nothing was counted")
    counted = store.totals.total(COUNTER)
    daily = store.totals.daily(COUNTER, start=span[0], end=span[1])
    difference = counted - accepted
    report.figures([*figures, ("counted in MariaDB", counted)], difference)
    report.days(COUNTER, daily)
    report.top(COUNTER, store.totals.top(COUNTER, start=span[0], end=span[1], n=10))
    unchanged = _compact(stage, store, report, span)
    if sent is not None and {day: n for day, n in daily if n} != sent:
        report.error("a day's total differs from the increments that the applications sent")
        return 1
    if difference:
        report.error("accepted and counted differ")
        return 1
    if not unchanged:
        report.error("compaction has changed a total")
        return 1
    report.lines("How to go on", NEXT)
    return 0


def _compact(stage: Stage, store: Store, report: Report, span: tuple[date, date]) -> bool:
    """Compact all days, also today, and print the result; return whether all totals stayed."""

    def totals() -> tuple[list[tuple[date, int]], list[tuple[str, int]]]:
        start, end = span
        return (
            store.totals.daily(COUNTER, start=start, end=end),
            store.totals.by_key(COUNTER, start=start, end=end),
        )

    before = totals()
    day_after = (span[1] + timedelta(days=1)).isoformat()
    command = ("compact", "--counter", COUNTER, "--before", day_after, "--format", "json")
    done = _result(
        stage.run("countersink.cli.entry", *command, output=subprocess.PIPE, errors="compact.log")
    )
    unchanged = totals() == before
    report.lines(
        f"countersink compact: the rows of each day and key become one ({done['seconds']:.1f} s)",
        [
            f"rows before     {done['rows_before']:>9,}",
            f"rows after      {done['rows_after']:>9,}",
            f"totals by day and by key: {'unchanged' if unchanged else 'CHANGED'}",
        ],
    )
    return unchanged
