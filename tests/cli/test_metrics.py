"""`--metrics-port`: every process that runs for long tells how it is."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from countersink.cli.commands.processes import health
from countersink.metrics import Endpoint
from countersink.metrics import health as health_module
from countersink.metrics.table import METRICS
from countersink.producers import Producer
from countersink.schedules.job_process import run as run_jobs
from countersink.schedules.options import JobProcessOptions, SchedulerOptions
from countersink.schedules.report import ProcessVitals
from countersink.schedules.scheduler import run as run_scheduler
from countersink.worker import Stop, Vitals, WorkerOptions, run
from tests.cli.command import Servers, Start
from tests.support.factories import RedisFactory
from tests.support.processes import Child
from tests.support.waiting import eventually

LOG_LINE = '203.0.113.9 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 12 "-" "-"\n'
SCHEDULE = {
    "COUNTERSINK_SCHEDULER_VERIFY_CRON": "off",
    "COUNTERSINK_SCHEDULER_TIME_ZONE": "Asia/Kathmandu",
}
SOMETIMES = {
    "countersink_worker_slot",
    "countersink_worker_last_batch_timestamp_seconds",
    "countersink_worker_last_error_timestamp_seconds",
    "countersink_scheduler_last_look_timestamp_seconds",
    "countersink_producer_spool_bytes",
}
"""What there is no sample of before there is something to say."""


def url_of(child: Child) -> str:
    """Where a process said that it serves metrics."""

    def said() -> str:
        assert child.running, child.output()
        found = re.search(r"(http://127\.0\.0\.1:\d+)/metrics", child.output())
        return found[1] if found else ""

    return eventually(said, 60)


def status(url: str) -> int:
    return requests.get(url, timeout=60).status_code


def scraped(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """What /metrics shows, by name and labels."""
    answer = requests.get(f"{url}/metrics", timeout=60)
    assert answer.status_code == 200
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            of_it = found.setdefault(sample.name, {})
            of_it[tuple(sample.labels.values())] = sample.value
    return found


def assert_as_documented(url: str, *where: str) -> None:
    """What is shown is what the table says, no more and no less."""
    shown = {re.sub(r"_(sum|count)$", "", name) for name in scraped(url)}
    ours = {name for name in shown if name.startswith("countersink_")}
    documented = {m.name for m in METRICS.values() if m.where in (*where, "every process")}
    assert ours <= documented
    assert documented - ours <= SOMETIMES


def test_every_process_shows_what_is_documented(servers: Servers, log: Path, start: Start) -> None:
    log.write_text(LOG_LINE * 3 + "nonsense\n")
    commands = {
        "worker": [],
        "scheduler": ["--alarms-cron", "* * * * * *"],
        "jobs": [],
        "tail": [str(log), "--counter", "lines", "--follow"],
        "statsd": ["--port", "0"],
    }
    children_by_name = {
        name: start(name, *options, "--metrics-port", "0", **SCHEDULE)
        for name, options in commands.items()
    }
    urls = {name: url_of(child) for name, child in children_by_name.items()}
    for url in urls.values():
        assert status(f"{url}/livez") == 200
        eventually(lambda at=url: status(f"{at}/readyz") == 200)  # type: ignore[misc]
    for name, url in urls.items():
        where = ("statsd", "producer") if name == "statsd" else (name,)
        assert_as_documented(url, *where)
        shown = scraped(url)
        assert any(name in labels for labels in shown["countersink_build_info"])
        assert shown["countersink_server_up"][("redis",)] == 1

    lines = {("counted",): 3, ("rejected",): 1}
    eventually(lambda: scraped(urls["tail"])["countersink_tail_lines_total"] == lines)

    def applied() -> bool:
        found = scraped(urls["worker"])
        assert found["countersink_worker_rows_total"][("applied",)] == 1
        assert found["countersink_worker_entries_total"][("applied",)] == 1
        assert found["countersink_worker_batch_duration_seconds_count"][()] == 1
        assert 0 < found["countersink_worker_batch_duration_seconds_sum"][()] < 60
        return True

    eventually(applied)
    eventually(lambda: scraped(urls["scheduler"])["countersink_scheduler_state"][("planning",)])
    eventually(lambda: scraped(urls["jobs"])["countersink_jobs_runs_started_total"][()] >= 1)
    enqueued = scraped(urls["scheduler"])["countersink_scheduler_runs_enqueued_total"][()]
    assert enqueued >= 1

    runs_are_shown(servers, children_by_name["scheduler"])
    for child in children_by_name.values():
        child.terminate()
    for name, child in children_by_name.items():
        assert child.wait() == (3 if name == "tail" else 0), child.output()
        assert "Traceback" not in child.output()
    for url in urls.values():
        assert not _listens(url)


def runs_are_shown(servers: Servers, scheduler: Child) -> None:
    """Check that runs are shown, done and planned, and that somebody plans them."""

    def ran() -> bool:
        # Each second one is planned: on a busy machine the last ones are all to be done yet.
        runs = servers.json("runs", "--job", "alarms", "--limit", "1000")["runs"]
        return any(run["state"] in ("done", "failed") for run in runs)

    eventually(ran, 100, message=scheduler.output)
    upcoming = servers.json("runs")["next"]
    by_job = {run["job"]: run for run in upcoming}
    assert set(by_job) == {"compact", "retention", "prune", "alarms"}
    assert by_job["retention"]["cron"] == "20 3 * * *"
    assert by_job["retention"]["time_zone"] == "Asia/Kathmandu"
    assert by_job["retention"]["at"][10:] == "T21:35:00Z"  # 5:45 ahead of UTC
    assert servers.json("info")["schedules"]["planning"] is True


def _listens(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


def test_json_logs_stay_json(servers: Servers) -> None:
    done = servers.call(
        "worker", "--drain", "--metrics-port", "0", COUNTERSINK_WORKER_LOG_FORMAT="json"
    )
    assert done.status == 0
    first = done.err.splitlines()[0]
    assert '"action": "metrics"' in first
    assert done.err.count('"action": "started"') == 1  # no line twice
    assert all(line.startswith("{") for line in done.err.splitlines())


class Watched:
    """A worker on a thread, with its endpoint."""

    def __init__(
        self,
        redis_url: str,
        mysql_url: str,
        reached: Callable[[str], object] = lambda point: None,
    ) -> None:
        options = WorkerOptions(redis_url=redis_url, mysql_url=mysql_url)
        self.vitals, self.stop = Vitals(), Stop()
        self.endpoint = Endpoint("127.0.0.1", 0, health(options, self.vitals))
        self.url = self.endpoint.url
        self._thread = threading.Thread(
            target=run,
            args=(options,),
            kwargs={"stop": self.stop, "vitals": self.vitals, "on_point": reached},
        )
        self._thread.start()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.request()
        self._thread.join(60)
        self.endpoint.close()
        assert not self._thread.is_alive()

    def ready(self) -> int:
        return status(f"{self.url}/readyz")

    def live(self) -> int:
        return status(f"{self.url}/livez")


def test_a_worker_in_front_of_a_frozen_redis_lives_and_is_not_ready(
    own_redis_server: RedisFactory, mysql_url: str
) -> None:
    server = own_redis_server()
    with Watched(server.url, mysql_url) as worker:
        eventually(lambda: worker.ready() == 200)
        server.freeze()
        eventually(lambda: worker.ready() == 503)
        said = requests.get(f"{worker.url}/readyz", timeout=60).text
        assert said == "not ready: redis did not answer\n"
        assert worker.live() == 200
        found = scraped(worker.url)
        assert found["countersink_server_up"] == {("redis",): 0, ("mysql",): 1}
        assert found["countersink_ready"] == {(): 0}
        server.thaw()
        eventually(lambda: worker.ready() == 200)


def test_a_worker_that_is_stuck_does_not_live(
    redis_url: str, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, released = threading.Event(), threading.Event()

    def reached(point: str) -> None:
        if point == "upserted" and not released.is_set():
            stuck.set()
            released.wait(60)

    with Watched(redis_url, mysql_url, reached) as worker, Producer(redis_url) as producer:
        eventually(lambda: worker.ready() == 200)
        monkeypatch.setattr(health_module, "STUCK_AFTER_S", 1.0)
        eventually(lambda: worker.live() == 200)
        producer.increment("c")
        assert stuck.wait(60)
        eventually(lambda: worker.live() == 503)
        assert requests.get(f"{worker.url}/readyz", timeout=60).text == "not ready: stuck\n"
        released.set()
        eventually(lambda: worker.live() == 200)
        eventually(lambda: worker.vitals.figures.entries == 1)


CLOSED = "redis://127.0.0.1:1/0", "mysql://nobody@127.0.0.1:1/nothing"


def test_waiting_for_servers_is_living() -> None:
    """A scheduler and a job process without servers go on moving, and say that they wait."""
    redis_url, mysql_url = CLOSED
    of_scheduler, of_jobs, stop = ProcessVitals(), ProcessVitals(), Stop()
    runs = [
        partial(
            run_scheduler,
            SchedulerOptions(mysql_url=mysql_url, redis_url=redis_url, jobs={}, look_every_s=0.1),
            stop=stop,
            vitals=of_scheduler,
        ),
        partial(
            run_jobs,
            JobProcessOptions(mysql_url=mysql_url, redis_url=redis_url, jobs_redis_url=redis_url),
            stop=stop,
            vitals=of_jobs,
        ),
    ]
    threads = [threading.Thread(target=each) for each in runs]
    for thread in threads:
        thread.start()
    try:
        for vitals in (of_scheduler, of_jobs):
            eventually(lambda v=vitals: v.state == "waiting")  # type: ignore[misc]
            before = vitals.moved
            eventually(lambda v=vitals, b=before: v.moved > b)  # type: ignore[misc]
    finally:
        stop.request()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
