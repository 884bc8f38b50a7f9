"""Backfill: counts events from logs and exports that never went through the queue; flags of the
command are in ``cli/commands/log_options.py``.

``options`` says what is asked for and ``run`` does it. ``input`` turns files into spans of lines,
``formats`` turns lines into amounts, ``count`` adds them chunk by chunk, ``reconcile`` sets totals
to what sources say, ``undo`` takes a run back, ``history`` lists what was done.
"""
