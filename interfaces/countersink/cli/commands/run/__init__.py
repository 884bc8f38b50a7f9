"""The commands that run until stopped, and ``migrate``: ``up``, ``worker``, ``scheduler``,
``jobs``, ``web``."""
