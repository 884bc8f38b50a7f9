"""Proxies that know the protocol they carry, and can fail it at a named point."""

from tests.support.proxies.mysql_proxy import MySQLProxy
from tests.support.proxies.redis_proxy import RedisProxy
from tests.support.proxies.rules import Deed, Phase, Request, Rule
from tests.support.proxies.tcp import Proxy

__all__ = ["Deed", "MySQLProxy", "Phase", "Proxy", "RedisProxy", "Request", "Rule"]
