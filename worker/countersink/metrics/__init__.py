"""What operators watch: Prometheus metrics, and whether a process lives and is ready.

One table (:mod:`~countersink.metrics.table`) says which metrics there are. Processes hand over
their own figures when they are asked, so watching costs nothing where increments pass.
"""
