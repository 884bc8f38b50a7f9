"""Every metric of ours: its name, what it means, and which process shows it.

Names follow Prometheus' conventions (base units, ``_total`` for what only grows, ``_seconds``).
No label is a counter's name or a key: their number has no bound, and they are the application's.
"""

from collections.abc import Mapping
from typing import Final

from countersink.metrics.metric import Metric

_METRICS: Final = (
    Metric(
        "countersink_build_info",
        "gauge",
        "every process",
        "Always 1; the version, and which command it is.",
        ("version", "process"),
    ),
    Metric(
        "countersink_ready",
        "gauge",
        "every process",
        "1 if /readyz says yes, else 0.",
    ),
    Metric(
        "countersink_server_up",
        "gauge",
        "every process",
        "1 if the server (redis, mysql) answered this process within a second, else 0.",
        ("server",),
    ),
    Metric(
        "countersink_worker_state",
        "gauge",
        "worker",
        "1 for the state that the worker is in, else 0; waiting: for a server that is away.",
        ("state",),
    ),
    Metric("countersink_worker_slot", "gauge", "worker", "The slot it has leased."),
    Metric(
        "countersink_worker_entries_total",
        "counter",
        "worker",
        "Entries by what became of them: applied, duplicate (it had been applied before), too_old"
        " (to the dead letters), lost (trimmed from a stream before anybody applied it).",
        ("outcome",),
    ),
    Metric(
        "countersink_worker_rows_total",
        "counter",
        "worker",
        "Rows of entries by what became of them: applied, dead (to the dead letters).",
        ("outcome",),
    ),
    Metric(
        "countersink_worker_rows_overflown_total",
        "counter",
        "worker",
        "Rows, of those applied, that went to the key __overflow__: of new keys beyond max_keys.",
    ),
    Metric(
        "countersink_worker_cells_total",
        "counter",
        "worker",
        "Rows of counter_slot that were written: one per counter, bucket and key of a batch.",
    ),
    Metric(
        "countersink_worker_batch_duration_seconds",
        "summary",
        "worker",
        "Time from a batch's reading to its acknowledgement, waiting for servers included.",
    ),
    Metric(
        "countersink_worker_last_batch_timestamp_seconds",
        "gauge",
        "worker",
        "Unix time at which a batch was last acknowledged.",
    ),
    Metric(
        "countersink_worker_last_error_timestamp_seconds",
        "gauge",
        "worker",
        "Unix time at which a server last had to be waited for.",
    ),
    Metric(
        "countersink_scheduler_state",
        "gauge",
        "scheduler",
        "1 for the state that the scheduler is in, else 0; leading: it is in charge.",
        ("state",),
    ),
    Metric(
        "countersink_scheduler_last_look_timestamp_seconds",
        "gauge",
        "scheduler",
        "Unix time at which the scheduler in charge last looked after all runs.",
    ),
    Metric(
        "countersink_scheduler_runs_enqueued_total",
        "counter",
        "scheduler",
        "Runs that it handed to RQ, those that RQ had lost included.",
    ),
    Metric(
        "countersink_jobs_state",
        "gauge",
        "jobs",
        "1 for the state that the job process is in, else 0.",
        ("state",),
    ),
    Metric(
        "countersink_jobs_runs_started_total",
        "counter",
        "jobs",
        "Jobs that it took from RQ's queue: runs and pieces of backfills.",
    ),
    Metric(
        "countersink_tail_lines_total",
        "counter",
        "tail",
        "Lines by what became of them: counted (and stored in Redis), rejected.",
        ("outcome",),
    ),
    Metric("countersink_tail_entries_total", "counter", "tail", "Entries that it stored in Redis."),
    Metric(
        "countersink_producer_increments_accepted_total",
        "counter",
        "producer",
        "Increments that were taken and not dropped.",
    ),
    Metric(
        "countersink_producer_increments_stored_total",
        "counter",
        "producer",
        "Increments that Redis has acknowledged, straight from memory.",
    ),
    Metric(
        "countersink_producer_increments_resent_total",
        "counter",
        "producer",
        "Increments sent again because the answer was lost; they count once.",
    ),
    Metric(
        "countersink_producer_increments_spooled_total",
        "counter",
        "producer",
        "Increments written to the spool on disk.",
    ),
    Metric(
        "countersink_producer_increments_replayed_total",
        "counter",
        "producer",
        "Increments sent from the spool, also from what dead processes left there.",
    ),
    Metric(
        "countersink_producer_increments_dropped_total",
        "counter",
        "producer",
        "Increments that fitted neither into memory nor into the spool: they are lost.",
    ),
    Metric(
        "countersink_producer_pending_rows",
        "gauge",
        "producer",
        "Distinct rows in memory that are not stored yet.",
    ),
    Metric(
        "countersink_producer_connected",
        "gauge",
        "producer",
        "1 if Redis took entries the last time it was asked, else 0.",
    ),
    Metric(
        "countersink_producer_spool_bytes",
        "gauge",
        "producer",
        "Bytes of all segments in the spool's directory; only where there is a spool.",
    ),
    Metric(
        "countersink_statsd_packets_total",
        "counter",
        "statsd",
        "Datagrams received, by UDP and unix socket.",
    ),
    Metric(
        "countersink_statsd_packets_lost_total",
        "counter",
        "statsd",
        "Datagrams that the kernel dropped because its receive buffer was full.",
    ),
    Metric(
        "countersink_statsd_lines_total",
        "counter",
        "statsd",
        "Lines by what became of them: counted, ignored (another type), discarded (by a rule of the"
        " map), malformed.",
        ("outcome",),
    ),
    Metric(
        "countersink_statsd_lines_overflown_total",
        "counter",
        "statsd",
        "Counted lines that went to the counter __overflow__, since there were too many names.",
    ),
    Metric("countersink_statsd_connections", "gauge", "statsd", "Stream connections now."),
    Metric(
        "countersink_statsd_connections_refused_total",
        "counter",
        "statsd",
        "Stream connections that were closed since there were too many.",
    ),
    Metric(
        "countersink_web_requests_total",
        "counter",
        "web",
        "Requests that were answered, by status.",
        ("status",),
    ),
    Metric("countersink_queue_entries", "gauge", "whole", "Entries that wait in the streams."),
    Metric(
        "countersink_queue_pending_entries",
        "gauge",
        "whole",
        "Entries of these that a worker has and has not acknowledged.",
    ),
    Metric(
        "countersink_queue_oldest_age_seconds",
        "gauge",
        "whole",
        "For how long the oldest entry has waited; 0 when nothing waits.",
    ),
    Metric("countersink_queue_bytes", "gauge", "whole", "Memory that the streams take in Redis."),
    Metric(
        "countersink_workers",
        "gauge",
        "whole",
        "Workers that told of themselves in the last minute, by state.",
        ("state",),
    ),
    Metric(
        "countersink_dead_rows",
        "gauge",
        "whole",
        "Rows among the dead letters, by reason.",
        ("reason",),
    ),
    Metric(
        "countersink_overflown_rows",
        "gauge",
        "whole",
        "Rows of yesterday and today (UTC) that went to the key __overflow__, since their counters"
        " had max_keys keys.",
    ),
    Metric(
        "countersink_overflown_counters",
        "gauge",
        "whole",
        "Counters that these rows belong to.",
    ),
    Metric(
        "countersink_schedulers_in_charge",
        "gauge",
        "whole",
        "1 if a scheduler is in charge, else 0.",
    ),
    Metric(
        "countersink_job_last_success_timestamp_seconds",
        "gauge",
        "whole",
        "Unix time at which the last run of the job ended well; of jobs that ever did.",
        ("job_name",),
    ),
    Metric(
        "countersink_job_runs",
        "gauge",
        "whole",
        "Runs of the job that were planned in the last 24 hours, by state.",
        ("job_name", "state"),
    ),
    Metric(
        "countersink_job_overdue_runs",
        "gauge",
        "whole",
        "Runs that were planned more than 5 minutes ago and have not begun.",
    ),
    Metric(
        "countersink_job_failures_in_a_row",
        "gauge",
        "whole",
        "Attempts in a row that failed, of jobs with three or more.",
        ("job_name",),
    ),
    Metric(
        "countersink_looked_timestamp_seconds",
        "gauge",
        "whole",
        "Unix time at which the installation was looked at, for what stands here of it.",
    ),
)

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _METRICS}
"""All of them by name, in the order of the documentation."""
