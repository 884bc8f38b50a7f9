"""Prometheus metrics and health checks of all processes.

One table (:mod:`~countersink.metrics.table`) defines all metrics of ours; ``process_…`` and
``python_info`` come from prometheus_client. A process collects the values only when its metrics are
requested. So metrics cost nearly nothing while increments are counted.
"""
