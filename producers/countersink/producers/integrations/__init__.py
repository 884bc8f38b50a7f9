"""Counting in Django, Flask, Celery and RQ, one module each; the base install needs none of them.

See ``middleware/count.py`` for limits on the number of keys.
"""
