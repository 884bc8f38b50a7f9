"""The commands that count: ``increment``, ``tail``, ``statsd``, ``backfill``, ``backfills``,
``sequence``, ``track``, ``untrack``."""
