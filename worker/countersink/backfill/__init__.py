"""Backfill: events that were missed, from logs and exports.

``options`` and ``recipe`` say what is asked for; ``sources`` and ``formats`` read; ``run`` adds and
``reconcile`` sets; ``undo`` takes back.
"""
