"""Counting in Django, Flask, Celery and RQ, with one module for each. Countersink does not need any
of these frameworks to be installed.

See ``middleware/count.py`` for limits on the number of keys.
"""
