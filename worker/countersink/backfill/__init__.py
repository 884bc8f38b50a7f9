"""Backfill: counts events from logs and exports that never went through the queue. See
``cli/commands/log_options.py`` for the flags of the command.

``options`` has the options and ``run`` executes them. ``content`` reads files, ``spans`` cuts them
into records, ``formats`` turns records into amounts, ``count`` adds the amounts chunk by chunk,
``reconcile`` sets totals to the sums of the sources, ``undo`` takes a run back, ``history`` reads
past runs.
"""
