"""The commands that look after an installation: ``counter``, ``compact``, ``key``, ``link``,
``runs``, ``info``."""
