"""Helpers for frameworks, each in a module that imports its framework and nothing else of the kind:
``django``, ``flask``, ``celery``, ``rq``. None is needed by the base install.
"""
