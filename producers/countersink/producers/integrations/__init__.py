"""Counting in Django, Flask, Celery and RQ, one module for each; bounds on the number of keys are
in ``middleware/count.py``. None is needed by the base install."""
