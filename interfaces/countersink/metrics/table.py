"""The table of all metrics of ours: name, type, help text, labels and exposing process of each; and
the values of the label ``state``.

Names follow Prometheus' conventions (base units, ``_total`` for counters, ``_seconds``). No label
has a counter's name or a key as its value: there may be any number of them, and they are the
application's data.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "summary"]
Where = Literal[
    "every process",
    "worker",
    "scheduler",
    "jobs",
    "tail",
    "producer",
    "statsd",
    "web",
    "installation",
]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """The description of one metric.

    Attributes:
        name: the full name; for a summary without the endings ``_sum`` and ``_count``.
        kind: the type in Prometheus.
        help: a sentence about the metric, with the unit.
        labels: names of its labels.
        where: the process that exposes the metric. ``producer`` means the processes web and statsd.
            ``installation`` means web, for metrics of all processes together.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    where: Where = "every process"


def _metric(name: str, help: str, *labels: str, kind: Kind | None = None) -> MetricSpec:
    """Return the description of a metric. Without ``kind`` it is a counter if its name ends in
    ``_total``, else a gauge. :data:`METRICS` adds the exposing process."""
    return MetricSpec(
        name, kind or ("counter" if name.endswith("_total") else "gauge"), help, labels
    )


_TABLE: Final[Mapping[Where, Sequence[MetricSpec]]] = {
    "every process": [
        _metric(
            "countersink_build_info",
            "Always 1; labels: the version, and the command that the process runs.",
            "version",
            "process",
        ),
        _metric("countersink_ready", "1 if /readyz answers 200, else 0."),
        _metric(
            "countersink_server_up",
            "1 if the server (redis, mysql) answered this process within a second, else 0. Where"
            " the process stores increments, also 0 if Redis is full.",
            "server",
        ),
    ],
    "worker": [
        _metric(
            "countersink_worker_state",
            "1 for the current state of the worker, else 0; waiting: for a server that is away.",
            "state",
        ),
        _metric("countersink_worker_slot", "The number of the slot that the worker leases."),
        _metric(
            "countersink_worker_entries_total",
            "Entries by outcome: applied, duplicate (applied before), too_old (became dead"
            " letters), lost (trimmed from a stream before a worker applied them).",
            "outcome",
        ),
        _metric(
            "countersink_worker_rows_total",
            "Rows of entries by outcome: applied, dead (became dead letters).",
            "outcome",
        ),
        _metric(
            "countersink_worker_keys_overflown_total",
            "New keys of batches that were counted as __overflow__, beyond max_keys.",
        ),
        _metric(
            "countersink_worker_cells_total",
            "Rows of counter_slot written: one per counter, bucket and key of a batch.",
        ),
        _metric(
            "countersink_worker_batch_duration_seconds",
            "Seconds from reading a batch to its acknowledgement, waiting for servers included.",
            kind="summary",
        ),
        _metric(
            "countersink_worker_last_batch_timestamp_seconds",
            "Unix time of the last acknowledgement of a batch.",
        ),
        _metric(
            "countersink_worker_last_error_timestamp_seconds",
            "Unix time at which the worker last began to wait for a server.",
        ),
        _metric(
            "countersink_worker_partitions_away",
            "Partitions of a Redis Cluster that the worker cannot read; it reads the others.",
        ),
    ],
    "scheduler": [
        _metric(
            "countersink_scheduler_state",
            "1 for the current state of the scheduler, else 0.",
            "state",
        ),
        _metric(
            "countersink_scheduler_last_look_timestamp_seconds",
            "Unix time at which the scheduler last checked all jobs and runs.",
        ),
        _metric(
            "countersink_scheduler_runs_enqueued_total",
            "Runs enqueued in RQ, including runs enqueued again because RQ lost them.",
        ),
    ],
    "jobs": [
        _metric(
            "countersink_jobs_state", "1 for the current state of the job process, else 0.", "state"
        ),
        _metric("countersink_jobs_runs_started_total", "Runs taken from RQ's queue."),
    ],
    "tail": [
        _metric(
            "countersink_tail_lines_total",
            "Lines by outcome: counted (and stored in Redis), rejected.",
            "outcome",
        ),
        _metric("countersink_tail_entries_total", "Entries stored in Redis."),
    ],
    "producer": [
        _metric(
            "countersink_producer_increments_accepted_total",
            "Increments accepted by the producer and not dropped.",
        ),
        _metric(
            "countersink_producer_increments_stored_total",
            "Increments sent from memory and acknowledged by Redis.",
        ),
        _metric(
            "countersink_producer_increments_resent_total",
            "Increments sent again because Redis's reply was lost; they count once.",
        ),
        _metric(
            "countersink_producer_increments_spooled_total",
            "Increments written to the spool on disk.",
        ),
        _metric(
            "countersink_producer_increments_replayed_total",
            "Increments sent from the spool, including segments that dead processes left.",
        ),
        _metric(
            "countersink_producer_increments_dropped_total",
            "Increments lost because neither memory nor the spool had space for them.",
        ),
        _metric(
            "countersink_producer_pending_rows", "Distinct rows in memory that are not stored yet."
        ),
        _metric(
            "countersink_producer_connected",
            "1 if Redis accepted the last attempt to store entries, else 0.",
        ),
        _metric(
            "countersink_producer_spool_bytes",
            "Bytes of all segments in the spool's directory; only with a spool.",
        ),
    ],
    "statsd": [
        _metric("countersink_statsd_packets_total", "Datagrams received by UDP and unix sockets."),
        _metric(
            "countersink_statsd_packets_lost_total",
            "Datagrams that the kernel dropped because its receive buffer was full.",
        ),
        _metric(
            "countersink_statsd_lines_total",
            "Lines by outcome: counted, ignored (another type), discarded (by a rule of the map),"
            " malformed.",
            "outcome",
        ),
        _metric(
            "countersink_statsd_lines_overflown_total",
            "Lines counted in the counter __overflow__ because there were too many names.",
        ),
        _metric("countersink_statsd_connections", "Open stream connections."),
        _metric(
            "countersink_statsd_connections_refused_total",
            "Stream connections closed because too many were open.",
        ),
    ],
    "web": [_metric("countersink_web_requests_total", "Requests answered, by status.", "status")],
    "installation": [
        _metric("countersink_queue_entries", "Entries that wait in the streams."),
        _metric(
            "countersink_queue_pending_entries",
            "Entries of these that a worker has read and not acknowledged.",
        ),
        _metric(
            "countersink_queue_oldest_age_seconds",
            "Seconds that the oldest entry has waited; 0 when nothing waits.",
        ),
        _metric("countersink_queue_bytes", "Bytes of the streams in Redis's memory."),
        _metric(
            "countersink_redis_memory_used_bytes",
            "Bytes of memory that Redis uses; in a Redis Cluster, the fullest master.",
        ),
        _metric(
            "countersink_redis_memory_max_bytes", "Its maxmemory; 0 if Redis has no such limit."
        ),
        _metric(
            "countersink_queue_nodes_away",
            "Masters of a Redis Cluster that do not answer; the other metrics of the queue lack"
            " their entries.",
        ),
        _metric(
            "countersink_workers",
            "Workers that reported in the last 5 seconds, by state.",
            "state",
        ),
        _metric("countersink_dead_rows", "Rows among the dead letters, by reason.", "reason"),
        _metric(
            "countersink_dead_rows_not_kept",
            "Further rows that could not be counted and were not kept, by reason.",
            "reason",
        ),
        _metric(
            "countersink_overflown",
            "Amount of yesterday and today (UTC) in the key __overflow__, of counters that had"
            " max_keys keys.",
        ),
        _metric("countersink_overflown_counters", "Counters with such an amount."),
        _metric(
            "countersink_entries_lost_total",
            "Entries, at least, that Redis lost before a worker applied them: it was emptied or"
            " trimmed, or an older copy took its place.",
        ),
        _metric(
            "countersink_schedulers_planning", "1 if schedulers plan the jobs in time, else 0."
        ),
        _metric(
            "countersink_job_last_success_timestamp_seconds",
            "Unix time at which the job last succeeded; only for jobs that have.",
            "job_name",
        ),
        _metric(
            "countersink_job_runs",
            "Runs of the job planned in the last 24 hours, by state.",
            "job_name",
            "state",
        ),
        _metric(
            "countersink_job_failed",
            "1 if the last run of the job that has ended failed, else 0.",
            "job_name",
        ),
        _metric(
            "countersink_job_overdue_runs",
            "Runs planned for more than 5 minutes ago that have not begun.",
        ),
        _metric(
            "countersink_job_failures_in_a_row",
            "Failed attempts in a row; only for jobs with three or more.",
            "job_name",
        ),
        _metric(
            "countersink_looked_timestamp_seconds",
            "Unix time at which the metrics of the installation were collected.",
        ),
    ],
}
METRICS: Final[Mapping[str, MetricSpec]] = {
    metric.name: replace(metric, where=where)
    for where, metrics in _TABLE.items()
    for metric in metrics
}
"""All metrics of ours by name, in the order in which the documentation lists them."""


class Sample(NamedTuple):
    """The current value of a metric for some values of its labels (``labels``: value by name). For
    a summary, ``value`` is the sum of its observations, and ``observations`` is their number."""

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
    """Yield samples of a metric with the label ``state``, one for each of ``states``: 1 for the
    current state ``state``, 0 for the others."""
    for each in states:
        yield Sample(name, float(each == state), {"state": each})
