"""The queue in Redis: entry format, names of streams, partitions, connections, and the consumer
group.

Needs redis alone; :mod:`countersink.stream.decode`, which only readers of the stream import, needs
msgspec too.
"""
