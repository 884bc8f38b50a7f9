"""A StatsD listener: counters from any client that speaks StatsD go to a producer.

StatsD has no acknowledgement: a datagram that the kernel or the network drops is lost, and nobody
knows. What was received is accepted by the producer like an app's own increments.
"""

from countersink.statsd.errors import CannotListen, MapError, NotLoopback
from countersink.statsd.options import StatsdOptions
from countersink.statsd.server import Server
from countersink.statsd.tally import Figures

__all__ = ["CannotListen", "Figures", "MapError", "NotLoopback", "Server", "StatsdOptions"]
