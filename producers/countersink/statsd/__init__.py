"""The StatsD listener: counters from StatsD clients go to a producer.

StatsD has no acknowledgement: a datagram that the kernel or the network drops is lost, unknown to
its sender. The producer treats received counters like an application's own increments.
"""

from countersink.statsd.errors import CannotListen, MapError, NotLoopback
from countersink.statsd.options import StatsdOptions
from countersink.statsd.server import Server
from countersink.statsd.tally import Figures

__all__ = ["CannotListen", "Figures", "MapError", "NotLoopback", "Server", "StatsdOptions"]
