"""Memory of a producer: the events that callers append (``events.py``), and the rows into which
these are folded, that is, added up (``rows.py``).
"""
