"""Errors of scheduled jobs and of their runs.

::

    JobFailed        a job found a reason to fail, and names it
    ├── RunStopped   the job was stopped, and its work so far is lost
    ├── TablesDiffer the tables differ from the ledger, or from the tracked tables
    └── Alarm        a person should look
    RunFailed        a run failed, could not begin, or is taken over; RQ gets this error
    NotOurs          an RQ job is not countersink's
    Outdated         a counter was changed or deleted after retention had read the counters
"""


class JobFailed(Exception):
    """A job found a reason to fail: the data is wrong, or the work could not be done.

    The message is a sentence for people, which ``runs`` and the logs show unchanged, so it contains
    no secret. If a job raises any other exception that is not StoreError or StreamError, that is a
    bug. A run that failed with this error is not tried again, because its reason does not go away
    within seconds; the next planned run checks again. Only after :class:`RunStopped`, the same run
    may begin again.
    """


class RunStopped(JobFailed):
    """A job was stopped, and its work so far is lost. If the run's time limit has stopped it, the
    run has failed. Otherwise the run begins again in another process."""


class TablesDiffer(JobFailed):
    """The tables differ from the ledger, or from the tracked tables; the message says where."""


class Alarm(JobFailed):
    """A person should look; the message says at what, and with which command."""


class RunFailed(Exception):
    """An attempt of a run failed or could not begin, or another process has taken the run over or
    will do so. The message is a text for people."""


class NotOurs(Exception):
    """An RQ job in the queue is not countersink's, because it calls another function. The job
    process does not execute it."""


class Outdated(Exception):
    """A counter was changed or deleted after a pass of retention had read the counters. So the
    wider bucket that the pass has chosen may be wrong. The error is raised even if only
    another counter was changed. The transaction that noticed the change has moved no row; the pass
    reads the counters again and goes on.
    """
