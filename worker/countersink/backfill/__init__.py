"""Backfill counts events of logs and exports that never went through the queue. See
``cli/commands/log_options.py`` for the flags of the command.

``options`` holds the options, and ``run`` executes one run with them. ``content`` opens files,
``spans`` cuts their bytes into records, ``formats`` makes readers that turn records into amounts,
and ``count`` adds the amounts to the counter, chunk by chunk. ``reconcile`` sets totals to the sums
of the sources, ``undo`` takes a run back, and ``history`` reads past runs.
"""
