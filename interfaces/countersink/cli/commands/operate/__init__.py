"""The commands that look after an installation: ``counter``, ``partitions``, ``compact``, ``key``,
``link``, ``runs``, ``info``."""
