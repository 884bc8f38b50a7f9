"""Growth is measured with tables of some thousand rows, and what is measured is kept and shown."""

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth
from benchmarks.growth_measures import TABLE_BYTES, Figures, of_table
from benchmarks.growth_table import SlotTable, counter_view
from benchmarks.measuring import Wrong
from benchmarks.site import Site
from countersink.store.verify import open_session, verify
from tests.support.servers import Kind

SERVER: Kind = "mysql" if os.environ.get("COUNTERSINK_TEST_SERVER") == "mysql" else "mariadb"
LAST = date(2026, 11, 20)
NO_FIGURES = dict.fromkeys(growth.TABLES["workers"].values(), 0)


def output(path: Path) -> list[str]:
    """The arguments that keep measurements in a file."""
    return ["--output", str(path)]


def test_the_rows_of_a_table_are_those_of_its_totals_and_of_the_ledger(mysql_url: str) -> None:
    table = SlotTable(3, 50, LAST, days=20, fresh_days=2)
    table.fill(mysql_url)
    with open_session(mysql_url) as session:
        done = verify(session)
        held = session.query("SELECT counter, SUM(amount) FROM counter_slot GROUP BY counter")
        [(of_key,)] = session.query(
            "SELECT SUM(amount) FROM counter_slot WHERE counter = %s AND counter_key = %s",
            (table.counter(1), table.key(7)),
        )
    assert (done.rows, done.counters, done.differences) == (table.rows, 3, [])
    assert dict(held) == {table.counter(n): table.total(n) for n in range(3)}
    assert of_key == table.total_of_key(1, 7)


def test_an_answer_that_is_off_by_one_is_wrong() -> None:
    table = SlotTable(1, 50, LAST, days=20)
    requests = {each.name: each for each in counter_view(table, 0, 7).requests}
    total = table.total(0)
    assert requests["in all"].right({"rows": [{"total": total}]})
    assert not requests["in all"].right({"rows": [{"total": total + 1}]})


def test_a_table_for_which_there_is_no_room_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": TABLE_BYTES - 1})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    site = type("Somewhere", (), {"directory": tmp_path})
    with pytest.raises(Wrong, match=r"40\.0 GB must be free"):
        of_table(site, 1.0)  # type: ignore[arg-type]


@pytest.mark.timeout(120)
def test_a_run_goes_on_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "growth.json"
    monkeypatch.setattr(growth, "OUTPUT", path)
    measured: list[str] = []
    whole = growth.MEASURES["workers_1"]

    def of_workers(site: Site, scale: float) -> Figures:
        measured.append("workers_1")
        return whole(site, scale)

    def failing(site: Site, scale: float) -> Figures:
        raise Wrong("lost count")

    for second, status in ((failing, 1), (lambda *_: {"workers": 2, **NO_FIGURES}, 0)):
        with monkeypatch.context() as patch:
            patch.setattr(growth, "MEASURES", {"workers_1": of_workers, "workers_2": second})
            assert growth.main(["--scale", "0.0001", "--server", SERVER, *output(path)]) == status
    found: Any = json.loads(path.read_text())
    assert [row["name"] for row in found["rows"]] == [f"workers_{n}_{SERVER}" for n in (1, 2)]
    assert found["rows"][0]["rows"] == 1_000
    assert measured == ["workers_1"]
    page = growth.page(f"Above.\n{growth.BEGIN}\n{growth.END}\nBelow.\n")
    assert page.startswith("Above.")
    assert page.endswith("Below.\n")
    assert "| 2 | 0 | 0 | 0 | 0 |" in page


@pytest.mark.long("measures, with servers of its own")
@pytest.mark.timeout(300)
def test_all_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "growth.json"
    monkeypatch.setattr(growth, "OUTPUT", path)
    assert growth.main(["--scale", "0.0001", "--server", SERVER, *output(path)]) == 0
    found: Any = json.loads(path.read_text())
    assert [row["name"] for row in found["rows"]] == [
        f"{each}_{SERVER}" for each in growth.MEASURES
    ]
    page = growth.page(f"{growth.BEGIN}\n{growth.END}\n")
    assert all(f"| {shown} |" in page for shown in growth.VIEWS.values())
