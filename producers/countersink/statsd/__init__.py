"""The StatsD listener: it receives counters from StatsD clients and passes them to a producer.

StatsD has no acknowledgement: if the kernel or the network drops a datagram, it is lost, and its
sender does not know. The producer treats the counters that arrive like increments of an
application.
"""

from countersink.statsd.errors import CannotListen, MapError, NotLoopback
from countersink.statsd.options import StatsdOptions
from countersink.statsd.server import Server
from countersink.statsd.tally import Figures

__all__ = ["CannotListen", "Figures", "MapError", "NotLoopback", "Server", "StatsdOptions"]
