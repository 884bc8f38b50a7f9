"""`/livez`, `/readyz` and `/metrics` of the HTTP interface."""

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from countersink.database.connection import connect
from countersink.metrics import installation_samples
from countersink.metrics.table import METRICS, Sample
from countersink.stream.connection import connect as connect_redis
from countersink.web.endpoints import system
from tests.metrics.test_exposition import Values, values
from tests.support.factories import RedisFactory
from tests.support.waiting import eventually
from tests.web.serving import Web, serving

NOBODY_RUNS = {
    "countersink_job_failed",
    "countersink_job_last_success_timestamp_seconds",
    "countersink_job_runs",
    "countersink_job_failures_in_a_row",
    "countersink_dead_rows",
    "countersink_dead_rows_not_kept",
    "countersink_producer_spool_bytes",
}
"""What there is no sample of in a new installation."""


def get(web: Web, path: str, **options: Any) -> requests.Response:
    return requests.get(f"{web.url}{path}", timeout=60, **options)


def scraped(web: Web, **options: Any) -> Values:
    answer = get(web, "/metrics", **options)
    assert answer.status_code == 200, answer.text
    return values(answer.content)


def test_a_new_server_shows_what_is_documented(web: Web) -> None:
    assert (get(web, "/livez").text, get(web, "/readyz").text) == ("ok\n", "ok\n")
    ours = {name for name in scraped(web) if name.startswith("countersink_")}
    shown_here = ("every process", "producer", "web", "installation")
    documented = {metric.name for metric in METRICS.values() if metric.where in shown_here}
    assert ours <= documented
    assert documented - ours <= NOBODY_RUNS


def test_figures_of_the_process_and_of_the_installation(web: Web) -> None:
    secret = "a-key-that-no-label-may-show"
    web.producer.increment("no_label_either", secret)
    web.producer.increment("no_label_either", secret + "2")
    assert web.producer.flush(20)
    with connect_redis(web.options.redis_url) as client:
        # A row that cannot be counted, for the dead letters.
        row = json.dumps([["no_label_either", "k", 29_000_000, 2**80]])
        client.xadd("{countersink:0}:events", {"v": "1", "rows": row})
    before = scraped(web)
    assert before["countersink_queue_entries"] == {(): 2}
    assert before["countersink_queue_oldest_age_seconds"][()] >= 0
    assert before["countersink_queue_bytes"][()] > 0
    assert before["countersink_producer_increments_accepted_total"] == {(): 2}
    assert before["countersink_producer_increments_stored_total"] == {(): 2}
    assert before["countersink_producer_increments_dropped_total"] == {(): 0}
    assert before["countersink_producer_connected"] == {(): 1}
    web.apply()
    # What is shown of the installation is looked at again when it is 5 s old; here at once.
    after = {
        (sample.name, *sample.labels.values()): sample.value
        for sample in installation_samples(web.services.system())
    }
    assert after["countersink_queue_entries",] == 0
    assert sum(v for k, v in after.items() if k[0] == "countersink_dead_rows") == 1
    text = get(web, "/metrics").text
    assert secret not in text
    assert "no_label_either" not in text


def test_answers_are_counted_by_status(web: Web) -> None:
    for _ in range(3):
        assert get(web, "/nothing/here").status_code == 404
    assert get(web, "/livez").status_code == 200
    first = scraped(web)["countersink_web_requests_total"]
    assert first == {("200",): 1, ("404",): 3}
    assert scraped(web)["countersink_web_requests_total"] == {("200",): 2, ("404",): 3}


@pytest.mark.parametrize("spooled", [False, True])
def test_a_frozen_redis(
    own_redis_server: RedisFactory,
    mysql_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spooled: bool,
) -> None:
    monkeypatch.setattr(system, "SYSTEM_WITHIN_S", 0.2)
    server = own_redis_server()
    spool: dict[str, Any] = {"spool": str(tmp_path / "spool")} if spooled else {}
    with serving(server.url, mysql_url, producer={"socket_timeout": 0.3, **spool}) as web:
        assert get(web, "/readyz").status_code == 200
        server.freeze()
        try:
            if spooled:
                web.producer.increment("c")
                assert web.producer.flush(60)  # on the disk
                assert scraped(web)["countersink_producer_spool_bytes"][()] > 0
                # It can take increments without Redis.
                assert get(web, "/readyz").status_code == 200
            else:
                eventually(lambda: get(web, "/readyz").status_code == 503)
                assert get(web, "/readyz").text == "not ready\n"
            assert get(web, "/livez").status_code == 200
            found = scraped(web)
            assert found["countersink_server_up"] == {("redis",): 0, ("mysql",): 1}
            # Not known is not 0.
            assert spooled or "countersink_queue_entries" not in found
        finally:
            server.thaw()
        if spooled:
            # What the alert looks at goes back to 0 by itself.
            eventually(lambda: scraped(web)["countersink_producer_spool_bytes"] == {(): 0})


def test_without_redis_a_spool_that_cannot_be_written_makes_no_process_ready(
    own_redis_server: RedisFactory, mysql_url: str, tmp_path: Path
) -> None:
    server = own_redis_server()
    (tmp_path / "file").touch()
    spool = str(tmp_path / "file" / "spool")
    with serving(server.url, mysql_url, producer={"socket_timeout": 0.3, "spool": spool}) as web:
        assert get(web, "/readyz").status_code == 200
        server.freeze()
        try:
            eventually(lambda: get(web, "/readyz").status_code == 503)
            (tmp_path / "file").unlink()
            web.producer.increment("c")
            assert web.producer.flush(60)  # on the disk, which was mended
            assert get(web, "/readyz").status_code == 200
        finally:
            server.thaw()


def test_what_is_not_known_has_no_sample(shared: Web) -> None:
    known = dict(shared.services.system()) | {"workers": []}

    def shown(**unknown: Any) -> set[str]:
        return {sample.name for sample in installation_samples({**known, **unknown})}

    unknown = {
        "countersink_dead_rows",
        "countersink_dead_rows_not_kept",
        "countersink_overflown",
        "countersink_schedulers_in_charge",
        "countersink_job_runs",
    }
    assert "countersink_dead_rows_not_kept" in shown(dead_not_kept={"bad_key": 3})
    found = shown(
        dead_by_reason=None,
        dead_not_kept=None,
        overflown=None,
        schedules={"unknown": "no MySQL"},
    )
    assert found >= {"countersink_queue_entries", "countersink_workers"}
    assert not found & unknown
    # A node that is away may hold the figures of workers.
    away = [{"node": "h3:6379", "error": "no answer"}]
    assert "countersink_workers" not in shown(away=away)


def test_runs_by_job_and_state(web: Web) -> None:
    rows = [
        ("compact", "-30 HOUR", "done"),  # too long ago to be counted, and a success all the same
        ("verify", "-2 HOUR", "done"),
        ("verify", "-1 HOUR", "failed"),
        ("alarms", "-10 MINUTE", "planned"),
        ("alarms", "10 MINUTE", "planned"),  # not yet
    ]
    with connect(web.options.mysql_url) as session:
        for job, ago, state in rows:
            session.execute(
                "INSERT INTO job_run (job, planned_at, due_at, state, attempts, ended_at)"
                f" VALUES (%s, UTC_TIMESTAMP() + INTERVAL {ago}, UTC_TIMESTAMP(3), %s, 1,"
                f" UTC_TIMESTAMP(3) + INTERVAL {ago})",
                (job, state),
            )
    found: dict[tuple[str, ...], float] = {}
    for sample in installation_samples(web.services.system()):
        assert isinstance(sample, Sample)
        found[(sample.name, *sample.labels.values())] = sample.value
    runs = {key[1:]: n for key, n in found.items() if key[0] == "countersink_job_runs" and n}
    assert runs == {("verify", "done"): 1, ("verify", "failed"): 1, ("alarms", "planned"): 1}
    done = {key[1] for key in found if key[0].startswith("countersink_job_last_success")}
    assert done == {"compact", "verify"}
    assert found["countersink_job_overdue_runs",] == 1


def test_jobs_are_paused_resumed_and_run_by_an_admin_alone(web: Web) -> None:
    admin, reader = web.key("admin"), web.key("read")
    bound = web.key("admin", counters=["views"])
    with connect(web.options.mysql_url) as session:
        session.execute(
            "INSERT INTO job (name, cron, time_zone, next_at)"
            " VALUES ('compact', '0 8 * * *', 'UTC', UTC_TIMESTAMP())"
        )

    def done(what: str, key: str = admin, job: str = "compact", status: int = 200) -> Any:
        answer = web.ask("POST", f"/v1/schedules/{job}/{what}", key)
        assert answer.status_code == status, answer.text
        return answer.json()

    assert done("pause")["paused"] is True
    assert done("resume")["paused"] is False
    assert done("run")["planned"]
    (job,) = web.ask("GET", "/v1/system", reader).json()["schedules"]["next"]
    assert (job["job"], job["paused"], job["last"]) == ("compact", False, None)
    done("pause", job="nope", status=404)
    done("stop", status=404)
    for key in (reader, bound):
        done("run", key, status=403)
    with connect(web.options.mysql_url) as session:
        assert session.query("SELECT COUNT(*) FROM job_run") == [(1,)]
