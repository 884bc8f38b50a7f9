"""The queue on Valkey: tests of Redis once more, on another server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from countersink.stream.connection import connect
from countersink.stream.group import Group
from countersink.stream.names import stream_key
from tests.producers import test_flush
from tests.producers.helpers import Queue
from tests.stream import test_cluster, test_delivery, test_sentinel
from tests.support.processes import PROJECT
from tests.support.redis_cluster import RedisCluster
from tests.support.sentinels import Watched
from tests.support.servers import RedisServer
from tests.support.valkey import valkey_server
from tests.worker import test_loop
from tests.worker.running import Place

LONG = (
    "tests/stream",
    "tests/producers/test_flush.py",
    "tests/producers/test_outage.py",
    "tests/producers/test_recovery.py",
    "tests/worker/test_loop.py",
    "tests/worker/test_recovery.py",
    "tests/cli/test_info.py",
    "tests/cli/test_partitions.py",
    "tests/cli/test_on_cluster.py",
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What servers of Redis run meanwhile."""
    made = valkey_server(tmp_path)
    monkeypatch.setenv("COUNTERSINK_REDIS_SERVER", str(made))
    return made


@pytest.mark.usefixtures("program")
def test_stream_producer_and_worker_work_on_valkey(servers_directory: Path, mysql_url: str) -> None:
    with RedisServer(servers_directory / "valkey") as server, connect(server.url) as client:
        assert "Valkey" in server.log.read_text()
        place = Place(server.url, client, mysql_url)
        test_loop.test_a_drain_counts_everything_and_leaves_nothing(place, partitions=1)
        test_flush.test_flush_is_true_when_redis_has_it(Queue(server.url, client))
        client.flushall()  # of a server that is this test's own
        group = Group(client, [stream_key(0), stream_key(1)], "w")
        group.ensure()
        test_delivery.test_entries_of_legal_size_are_read_and_claimed_a_few_at_a_time(client, group)
        for case in "rows", "another field":
            test_delivery.test_an_oversized_entry_comes_cut_with_its_own_id_and_fate(
                client, group, case
            )


@pytest.mark.usefixtures("program")
def test_sentinel_and_cluster_work_on_valkey(servers_directory: Path) -> None:
    with Watched(servers_directory, sentinels=1) as servers:
        test_sentinel.test_commands_go_to_the_master_and_replies_are_the_protocols(servers)
    with (
        RedisCluster(servers_directory, masters=2, replicas=0) as cluster,
        test_cluster.connected(cluster.url) as client,
    ):
        test_cluster.test_each_command_goes_to_the_master_of_its_key(cluster, client)


@pytest.mark.clusters
@pytest.mark.timeout(300)
def test_what_is_tested_on_redis_holds_on_valkey(program: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-n", "0"),
            *("-m", "not long and not clusters", "--ignore", "tests/stream/test_valkey.py"),
            *LONG,
        ],
        cwd=PROJECT,
        env={**os.environ, "COUNTERSINK_REDIS_SERVER": str(program)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    summary = re.fullmatch(
        r"(\d+) passed(?:, \d+ (?:deselected|warnings?))* in .*",
        done.stdout.strip().splitlines()[-1],
    )
    assert summary is not None, done.stdout
    assert int(summary[1]) > 180, "none was skipped"
