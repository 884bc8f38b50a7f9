"""Prometheus metrics and health checks of all processes.

One table (:mod:`~countersink.metrics.table`) says which metrics there are. Processes hand over
their own figures when they are asked, so watching costs nothing where increments pass.
"""
