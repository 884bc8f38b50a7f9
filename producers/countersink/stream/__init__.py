"""The queue in Redis: entry format, names of keys, partitions, connections, the consumer group.

Needs the library redis; :mod:`countersink.stream.decode`, which only readers of a stream import,
also needs msgspec.
"""
