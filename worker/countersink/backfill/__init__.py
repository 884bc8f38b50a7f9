"""Backfill: counts events that were missed, from logs and exports.

``options`` says what is asked for and ``run`` does it. ``input`` turns files into spans of lines,
``formats`` turns lines into amounts, ``count`` adds them chunk by chunk, ``reconcile`` sets totals
to what sources say, ``undo`` takes a run back, ``history`` lists what was done.
"""
