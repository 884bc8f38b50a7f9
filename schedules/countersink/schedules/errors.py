"""Errors of scheduled jobs: a job failed, was stopped, raised an alarm; a run failed.

::

    JobFailed        a job found a reason to fail, and says it
    ├── RunStopped   it was to stop, and what it has done so far is for nothing
    ├── TablesDiffer what is in the tables is not what was counted
    └── Alarm        somebody should look
    RunFailed        a run failed, or could not begin; for RQ
    NotOurs          an RQ job that is none of countersink's
    Outdated         the counter is not what it was when the pass looked
"""


class JobFailed(Exception):
    """A job found a reason to fail: what it looked at is wrong, or it could not do its work.

    The message is a sentence for people, without a secret in it: ``runs`` and the logs show it as
    it is. Any other exception is a mistake in the program. The run is not tried again: what was
    found does not pass within seconds; the next planned run looks again.
    """


class RunStopped(JobFailed):
    """A job was to stop, and what it has done so far is for nothing: it begins again elsewhere,
    or, if its time was over, has failed.
    """


class TablesDiffer(JobFailed):
    """What is in the tables is not what was counted; the message says where."""


class Alarm(JobFailed):
    """Somebody should look; the message says at what, and with which command."""


class RunFailed(Exception):
    """A run failed, or could not begin; the message is one sentence."""


class NotOurs(Exception):
    """An RQ job that calls something else than what is countersink's."""


class Outdated(Exception):
    """The counter, or another, is not what it was when the pass looked; nothing was moved."""
