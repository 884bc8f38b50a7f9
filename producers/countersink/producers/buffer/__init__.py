"""Memory of a producer: events that callers append (``events.py``), and rows that they are folded
into (``rows.py``)."""
