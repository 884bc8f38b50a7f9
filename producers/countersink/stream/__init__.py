"""The queue's contract: entry format, stream names, partitions, connections, and the consumer
group.

Needs redis alone; :mod:`countersink.stream.decode`, which only readers of the stream import, needs
msgspec too.
"""
