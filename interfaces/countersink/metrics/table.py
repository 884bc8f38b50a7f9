"""All metrics: name, type, help text, labels, and which process shows them; also the values of the
label ``state``.

Names follow Prometheus' conventions (base units, ``_total`` for what only grows, ``_seconds``).
No label is a counter's name or a key: their number has no bound, and they are the application's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "summary"]
Where = Literal[
    "every process", "worker", "scheduler", "jobs", "tail", "producer", "statsd", "web", "whole"
]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: in full, as queries name it; of a summary without ``_sum`` and ``_count``.
        kind: its type.
        help: a sentence, with the unit.
        labels: names of its labels.
        where: what shows it; ``producer``: web and statsd, ``whole``: web, of all processes
            together.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    where: Where = "every process"


def _metric(name: str, help: str, *labels: str, kind: Kind | None = None) -> MetricSpec:
    """A counter where its name says so, else a gauge, unless ``kind`` is another."""
    return MetricSpec(
        name, kind or ("counter" if name.endswith("_total") else "gauge"), help, labels
    )


_TABLE: Final[Mapping[Where, Sequence[MetricSpec]]] = {
    "every process": [
        _metric(
            "countersink_build_info",
            "Always 1; the version, and which command it is.",
            "version",
            "process",
        ),
        _metric("countersink_ready", "1 if /readyz says yes, else 0."),
        _metric(
            "countersink_server_up",
            "1 if the server (redis, mysql) answered this process within a second, else 0.",
            "server",
        ),
    ],
    "worker": [
        _metric(
            "countersink_worker_state",
            "1 for the state that the worker is in, else 0; waiting: for a server that is away.",
            "state",
        ),
        _metric("countersink_worker_slot", "The slot it has leased."),
        _metric(
            "countersink_worker_entries_total",
            "Entries by what became of them: applied, duplicate (it had been applied before),"
            " too_old (to the dead letters), lost (trimmed from a stream before anybody applied"
            " it).",
            "outcome",
        ),
        _metric(
            "countersink_worker_rows_total",
            "Rows of entries by what became of them: applied, dead (to the dead letters).",
            "outcome",
        ),
        _metric(
            "countersink_worker_keys_overflown_total",
            "New keys of batches that were counted as __overflow__, beyond max_keys.",
        ),
        _metric(
            "countersink_worker_cells_total",
            "Rows of counter_slot that were written: one per counter, bucket and key of a batch.",
        ),
        _metric(
            "countersink_worker_batch_duration_seconds",
            "Time from a batch's reading to its acknowledgement, waiting for servers included.",
            kind="summary",
        ),
        _metric(
            "countersink_worker_last_batch_timestamp_seconds",
            "Unix time at which a batch was last acknowledged.",
        ),
        _metric(
            "countersink_worker_last_error_timestamp_seconds",
            "Unix time at which a server last had to be waited for.",
        ),
        _metric(
            "countersink_worker_partitions_away",
            "Partitions of a Redis Cluster that the worker cannot read now; it reads the others.",
        ),
    ],
    "scheduler": [
        _metric(
            "countersink_scheduler_state",
            "1 for the state that the scheduler is in, else 0.",
            "state",
        ),
        _metric(
            "countersink_scheduler_last_look_timestamp_seconds",
            "Unix time at which the scheduler last looked after all jobs and runs.",
        ),
        _metric(
            "countersink_scheduler_runs_enqueued_total",
            "Runs that it handed to RQ, those that RQ had lost included.",
        ),
    ],
    "jobs": [
        _metric(
            "countersink_jobs_state", "1 for the state that the job process is in, else 0.", "state"
        ),
        _metric("countersink_jobs_runs_started_total", "Runs that it took from RQ's queue."),
    ],
    "tail": [
        _metric(
            "countersink_tail_lines_total",
            "Lines by what became of them: counted (and stored in Redis), rejected.",
            "outcome",
        ),
        _metric("countersink_tail_entries_total", "Entries that it stored in Redis."),
    ],
    "producer": [
        _metric(
            "countersink_producer_increments_accepted_total",
            "Increments that were taken and not dropped.",
        ),
        _metric(
            "countersink_producer_increments_stored_total",
            "Increments that Redis has acknowledged, straight from memory.",
        ),
        _metric(
            "countersink_producer_increments_resent_total",
            "Increments sent again because the answer was lost; they count once.",
        ),
        _metric(
            "countersink_producer_increments_spooled_total",
            "Increments written to the spool on disk.",
        ),
        _metric(
            "countersink_producer_increments_replayed_total",
            "Increments sent from the spool, also from what dead processes left there.",
        ),
        _metric(
            "countersink_producer_increments_dropped_total",
            "Increments that fitted neither into memory nor into the spool: they are lost.",
        ),
        _metric(
            "countersink_producer_pending_rows", "Distinct rows in memory that are not stored yet."
        ),
        _metric(
            "countersink_producer_connected",
            "1 if Redis took entries the last time it was asked, else 0.",
        ),
        _metric(
            "countersink_producer_spool_bytes",
            "Bytes of all segments in the spool's directory; only where there is a spool.",
        ),
    ],
    "statsd": [
        _metric("countersink_statsd_packets_total", "Datagrams received, by UDP and unix socket."),
        _metric(
            "countersink_statsd_packets_lost_total",
            "Datagrams that the kernel dropped because its receive buffer was full.",
        ),
        _metric(
            "countersink_statsd_lines_total",
            "Lines by what became of them: counted, ignored (another type), discarded (by a rule"
            " of the map), malformed.",
            "outcome",
        ),
        _metric(
            "countersink_statsd_lines_overflown_total",
            "Counted lines that went to the counter __overflow__, since there were too many names.",
        ),
        _metric("countersink_statsd_connections", "Stream connections now."),
        _metric(
            "countersink_statsd_connections_refused_total",
            "Stream connections that were closed since there were too many.",
        ),
    ],
    "web": [
        _metric(
            "countersink_web_requests_total", "Requests that were answered, by status.", "status"
        )
    ],
    "whole": [
        _metric("countersink_queue_entries", "Entries that wait in the streams."),
        _metric(
            "countersink_queue_pending_entries",
            "Entries of these that a worker has and has not acknowledged.",
        ),
        _metric(
            "countersink_queue_oldest_age_seconds",
            "For how long the oldest entry has waited; 0 when nothing waits.",
        ),
        _metric("countersink_queue_bytes", "Memory that the streams take in Redis."),
        _metric(
            "countersink_queue_nodes_away",
            "Masters of a Redis Cluster that do not answer: what they hold is in none of the"
            " numbers of the queue.",
        ),
        _metric(
            "countersink_workers",
            "Workers that told of themselves in the last minute, by state.",
            "state",
        ),
        _metric("countersink_dead_rows", "Rows among the dead letters, by reason.", "reason"),
        _metric(
            "countersink_dead_rows_not_kept",
            "More rows that could not be counted, of which there is only this number, by reason.",
            "reason",
        ),
        _metric(
            "countersink_overflown",
            "What of yesterday and today (UTC) went to the key __overflow__, since its counters had"
            " max_keys keys.",
        ),
        _metric("countersink_overflown_counters", "Counters of which something went there."),
        _metric(
            "countersink_entries_lost_total",
            "Entries, at least, that Redis has lost before anybody applied them: it was emptied or"
            " trimmed, or is an older copy.",
        ),
        _metric(
            "countersink_schedulers_planning", "1 if schedulers plan the jobs in time, else 0."
        ),
        _metric(
            "countersink_job_last_success_timestamp_seconds",
            "Unix time at which the last run of the job ended well; of jobs that ever did.",
            "job_name",
        ),
        _metric(
            "countersink_job_runs",
            "Runs of the job that were planned in the last 24 hours, by state.",
            "job_name",
            "state",
        ),
        _metric(
            "countersink_job_overdue_runs",
            "Runs that were planned more than 5 minutes ago and have not begun.",
        ),
        _metric(
            "countersink_job_failures_in_a_row",
            "Attempts in a row that failed, of jobs with three or more.",
            "job_name",
        ),
        _metric(
            "countersink_looked_timestamp_seconds",
            "Unix time at which the installation was looked at, for what stands here of it.",
        ),
    ],
}
METRICS: Final[Mapping[str, MetricSpec]] = {
    metric.name: replace(metric, where=where)
    for where, metrics in _TABLE.items()
    for metric in metrics
}
"""All of them by name, in the order of the documentation."""


class Sample(NamedTuple):
    """A metric's value now; of a summary its sum, and ``observations``."""

    name: str
    value: float
    labels: Mapping[str, str] = {}
    observations: int = 0


Samples = Iterable[Sample]
WORKER_STATES: Final = ("starting", "idle", "applying", "waiting", "stopping")
SCHEDULER_STATES: Final = ("starting", "planning", "waiting")
JOBS_STATES: Final = ("starting", "idle", "running", "waiting")
RUN_STATES: Final = ("planned", "running", "done", "failed", "skipped")


def one_of(name: str, states: Iterable[str], state: str) -> Samples:
    """The samples of a metric with the label ``state``: 1 for the one that it is in, else 0."""
    for each in states:
        yield Sample(name, float(each == state), {"state": each})
