"""Memory of a producer: events appended by callers (``events.py``), and rows that they are folded
into (``rows.py``)."""
