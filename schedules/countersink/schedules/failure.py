"""How a job says that it failed, in its own words."""


class Failed(Exception):
    """A job found a reason to fail: what it looked at is wrong, or it could not do its work.

    The message is a sentence for people, without a secret in it: ``runs`` and the logs show it as
    it is. Any other exception is a mistake in the program. The run is not tried again: what was
    found does not pass within seconds; the next planned run looks again.
    """


class Stopped(Failed):
    """A job was to stop, and what it has done so far is for nothing: it begins again elsewhere,
    or, if its time was over, has failed.
    """
