"""The writer node of a Galera cluster is killed, frozen, cut off and made to donate its data while
everything is counted. What the cluster has committed is not lost: so not one increment may be
missing or count twice, whatever part of the program it came by.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.grounds import GaleraGround
from tests.support.galera import installed
from tests.support.processes import Children

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not installed(), reason="galera-4 or rsync is not installed"),
]


@pytest.fixture(scope="module")
def ground(servers_directory: Path) -> Iterator[GaleraGround]:
    """Three nodes."""
    with GaleraGround(servers_directory) as started:
        yield started


@pytest.mark.parametrize("fault", ["killed", "frozen", "cut off", "donates"])
def test_the_writer_fails_and_comes_back(
    ground: GaleraGround, children: Children, tmp_path: Path, fault: str
) -> None:
    with ground.load(children, ground.fresh(), tmp_path) as load:
        for _ in range(2):
            ground.faults()[fault](Random(0), load.wait_for_more)
        load.finish()
