"""The queue in Redis: the format of entries, the names of keys, partitions, connections, the
consumer group.

The package needs the library redis. :mod:`countersink.stream.decode` needs msgspec as well; only
programs that read streams import it.
"""
