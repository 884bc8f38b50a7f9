"""The queue on Valkey: tests of Redis once more, on another server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from countersink.cli.servers import RedisServer
from tests.support.processes import PROJECT
from tests.support.valkey import valkey_server

SHORT = (
    "tests/stream/test_delivery.py",
    "tests/producers/test_flush.py::test_flush_is_true_when_redis_has_it",
    "tests/worker/test_loop.py::test_a_drain_counts_everything_and_leaves_nothing",
    "tests/stream/test_sentinel.py::test_commands_go_to_the_master_and_replies_are_the_protocols",
    "tests/cli/test_on_cluster.py::test_every_command_sees_all_masters",
)
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
def program(tmp_path: Path) -> Path:
    return valkey_server(tmp_path)


def play(program: Path, *tests: str) -> int:
    """Run tests, none of which is skipped, with Valkey for Redis; how many there were."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-n", "0"),
            *("-m", "not long and not clusters", "--ignore", "tests/stream/test_valkey.py"),
            *tests,
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
    return int(summary[1])


def test_the_program_is_valkey(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERSINK_REDIS_SERVER", str(program))
    with RedisServer(tmp_path / "server") as server:
        assert "Valkey" in server.log.read_text()


def test_stream_producer_worker_sentinel_and_cluster_work_on_valkey(program: Path) -> None:
    assert play(program, *SHORT) > len(SHORT)


@pytest.mark.clusters
@pytest.mark.timeout(300)
def test_what_is_tested_on_redis_holds_on_valkey(program: Path) -> None:
    assert play(program, *LONG) > 200
