"""Errors of scheduled jobs: a job failed, was stopped, raised an alarm; a run failed.

::

    JobFailed        a job found a reason to fail, and names it
    ├── RunStopped   the job was stopped, and its work so far is lost
    ├── TablesDiffer the tables differ from the ledger, or from the tracked tables
    └── Alarm        a person should look
    RunFailed        a run failed, or could not begin; for RQ
    NotOurs          an RQ job that is not countersink's
    Outdated         the counter was changed after the pass read it
"""


class JobFailed(Exception):
    """A job found a reason to fail: the data is wrong, or the work could not be done.

    The message is a sentence for people, without a secret in it: ``runs`` and the logs show it
    unchanged. Any other exception is a bug. The run is not tried again: the reason does not go away
    within seconds; the next planned run checks again.
    """


class RunStopped(JobFailed):
    """A job was stopped, and its work so far is lost: the run begins again in another process, or,
    if its time was over, has failed.
    """


class TablesDiffer(JobFailed):
    """The tables differ from the ledger, or from the tracked tables; the message says where."""


class Alarm(JobFailed):
    """A person should look; the message says at what, and with which command."""


class RunFailed(Exception):
    """A run failed, or could not begin; the message is a sentence."""


class NotOurs(Exception):
    """An RQ job that calls a function that is not countersink's."""


class Outdated(Exception):
    """A counter was changed or deleted after the pass read it; nothing was moved."""
