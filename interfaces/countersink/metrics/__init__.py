"""Prometheus metrics and health checks of all processes.

One table (:mod:`~countersink.metrics.table`) defines all metrics. A process collects its values
only when its metrics are requested. So metrics cost nothing while increments are counted.
"""
