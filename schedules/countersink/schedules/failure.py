"""How a job says that it failed, in its own words."""


class Failed(Exception):
    """A job found a reason to fail: what it looked at is wrong, or it could not do its work.

    The message is a sentence for people, without a secret in it: ``runs`` and the logs show it as
    it is. Any other exception is a mistake in the program.
    """
