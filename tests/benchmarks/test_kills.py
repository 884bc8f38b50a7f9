"""Kills of workers lose and double nothing, and what the others lose is counted as it is."""

import os
from pathlib import Path

import pytest

from benchmarks.kills import QUICK_KILLS, WAYS, Kills
from benchmarks.site import open_site
from tests.support.servers import Kind

SERVER: Kind = "mysql" if os.environ.get("COUNTERSINK_TEST_SERVER") == "mysql" else "mariadb"


@pytest.mark.long("servers of its own, and what a dead worker has read is taken after a minute")
@pytest.mark.timeout(300)
def test_what_is_lost_and_doubled_is_what_the_tables_are_off_by(tmp_path: Path) -> None:
    with open_site(tmp_path, SERVER) as site:
        rows = Kills(site).measure(0.2)
    assert [row["name"] for row in rows] == [f"kills_{way}" for way in WAYS]
    for row in rows:
        assert row["kills"] == QUICK_KILLS
        assert row["stored"] == row["sent"] - row["lost"] + row["doubled"]
    ours, by_dict, *_ = rows
    assert (ours["lost"], ours["doubled"]) == (0, 0)
    assert by_dict["lost"] > 0  # what it had counted since it last wrote
