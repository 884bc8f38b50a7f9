"""What ``countersink scheduler`` and ``countersink jobs`` show at ``--metrics-port``."""

from collections.abc import Callable

from countersink.metrics.health import Health
from countersink.metrics.metric import JOBS_STATES, SCHEDULER_STATES, Sample, Samples, one_of
from countersink.metrics.servers import probes
from countersink.schedules.options import JobsOptions, SchedulerOptions
from countersink.schedules.vitals import Vitals


def scheduler_health(options: SchedulerOptions, vitals: Vitals) -> Health:
    """The health of a scheduler that runs with these. One that stands by is ready: to take over."""
    return _health("scheduler", scheduler_samples, vitals, options.redis_url, options.mysql_url)


def jobs_health(options: JobsOptions, vitals: Vitals) -> Health:
    """The health of a job process that runs with these."""
    return _health("jobs", jobs_samples, vitals, options.jobs_redis_url, options.mysql_url)


def scheduler_samples(vitals: Vitals) -> Samples:
    """A scheduler's own figures."""
    yield from one_of("countersink_scheduler_state", SCHEDULER_STATES, vitals.state)
    if vitals.looked is not None:
        yield Sample("countersink_scheduler_last_look_timestamp_seconds", vitals.looked)
    yield Sample("countersink_scheduler_runs_enqueued_total", vitals.runs)


def jobs_samples(vitals: Vitals) -> Samples:
    """A job process's own figures."""
    yield from one_of("countersink_jobs_state", JOBS_STATES, vitals.state)
    yield Sample("countersink_jobs_runs_started_total", vitals.runs)


def _health(
    process: str, samples: Callable[[Vitals], Samples], vitals: Vitals, redis: str, mysql: str
) -> Health:
    return Health(
        process=process,
        samples=lambda: samples(vitals),
        probes=probes(redis=redis, mysql=mysql),
        moved=lambda: vitals.moved,
        busy=lambda: _busy(vitals.state),
    )


def _busy(state: str) -> str:
    return state if state in ("starting", "waiting") else ""
