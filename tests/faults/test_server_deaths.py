"""Servers that are killed, freeze, or are replaced by their replica."""

from collections.abc import Callable

import pytest

from tests.faults.scenarios import server_deaths as scenarios
from tests.faults.stage import Stage
from tests.support.factories import RedisFactory


def test_both_servers_are_killed_and_restarted(own_stage: Callable[[], Stage]) -> None:
    scenarios.both_servers_killed(own_stage())


@pytest.mark.long("frozen for longer than a time-out")
def test_a_server_freezes_for_longer_than_the_time_out(own_stage: Callable[[], Stage]) -> None:
    scenarios.servers_frozen(own_stage())


@pytest.mark.long("a replica of Redis")
def test_a_promoted_replica_repeats_stream_ids(
    own_stage: Callable[[], Stage], own_redis_server: RedisFactory
) -> None:
    scenarios.replica_promoted(own_stage(), own_redis_server(appendfsync="always"))
