"""Examples run as they stand: the programs in docs/examples, and the sessions in the pages of docs.

A session is a block marked `pycon`; all of a page's are one, from top to bottom, with an empty
database, `connection` (a PyMySQL connection of an application's) and the tables below.
"""

import doctest
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from countersink.database.connection import connect
from countersink.sequences import Sequences
from countersink.store import Refused, Store
from tests.docs.rights import users_with
from tests.support.app_connection import open_app
from tests.support.processes import PROJECT, child_environment

PAGES = sorted(
    path.relative_to(PROJECT)
    for path in (PROJECT / "docs").glob("*.md")
    if "```pycon\n" in path.read_text("utf-8")
)
TABLES = {
    "docs/sequences.md": [
        "CREATE TABLE invoice (number BIGINT PRIMARY KEY, customer VARCHAR(50)) ENGINE = InnoDB"
    ]
}
"""What an application would have."""
SEQUENCES = "docs/sequences.md"


def session(page: Path | str) -> str:
    """The page with all blank but its sessions, so that the numbers of the lines are the page's."""
    lines, inside = [], False
    for line in (PROJECT / page).read_text("utf-8").splitlines():
        if line.startswith("```"):
            inside = line == "```pycon"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_sessions_of_a_page_go_as_they_say(
    page: Path, mysql_url: str, app_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERSINK_MYSQL_URL", mysql_url)
    with connect(app_database_url) as tables:
        for statement in TABLES.get(str(page), []):
            tables.execute(statement)
    found: dict[str, Any] = {"connection": open_app(app_database_url)}
    test = doctest.DocTestParser().get_doctest(session(page), found, str(page), str(page), 0)
    assert len(test.examples) > 5
    said: list[str] = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL, verbose=False
    )
    try:
        runner.run(test, out=said.append, clear_globs=False)
    finally:
        for name in ("store", "connection"):
            if name in test.globs:
                test.globs[name].close()
    assert not said, "".join(said)


@pytest.mark.parametrize(
    "name", [name for name, _ in inspect.getmembers(Sequences, callable) if name[0] != "_"]
)
def test_every_call_of_sequences_is_documented_and_has_an_example(name: str) -> None:
    text = (PROJECT / SEQUENCES).read_text("utf-8")
    call = re.search(rf"^\| `({name}\(.*?\))` \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE)
    assert call, f"{name} is not in the table"
    parameters = list(inspect.signature(getattr(Sequences, name)).parameters)[1:]
    written = [word for word in re.findall(r"(\w+)[,=)]", call[1]) if word not in {"None"}]
    assert written == parameters
    assert inspect.getdoc(getattr(Sequences, name))
    assert re.search(rf"\.{name}(\(|, )", session(SEQUENCES)), f"{name} has no example"


@pytest.fixture
def limited_url(mysql_url: str) -> Iterator[str]:
    """The database for a user that has the rights of the page's first line of rights, no more."""
    text = " ".join((PROJECT / SEQUENCES).read_text("utf-8").split())
    line = re.search(r"\*\*Rights\.\*\* (.*?) do for", text)
    assert line
    granted = re.findall(r"`([A-Z, ]+)` on (?:the table )?`(\w+)`", line[1])
    assert len(granted) == 2, line[1]
    with users_with(mysql_url, [(*right, "limited") for right in granted]) as urls:
        yield urls["limited"]


def test_the_rights_that_the_page_names_are_enough(mysql_url: str, limited_url: str) -> None:
    with Store(mysql_url) as store:
        store.sequences.configure("sales", period="month")
        store.sequences.configure("lottery", start=1, minimum=1, maximum=2, cycle=True)
    with Store(limited_url) as store, open_app(limited_url) as connection:
        sequences = store.sequences
        assert [sequences.next("tickets"), sequences.next("sales")] == [1, 1]
        assert list(sequences.next_block("tickets", 3)) == [2, 3, 4]
        assert [sequences.next("lottery") for _ in range(3)] == [1, 2, 1]
        assert sequences.next_in(connection, "tickets") == 5
        assert sequences.next_in(connection, "invoices") == 1
        connection.commit()
        sequences.set("tickets", 100)
        assert sequences.peek("tickets") == 100
        assert [one.name for one in sequences.list()] == ["invoices", "lottery", "sales", "tickets"]
        assert [sequences.total("sales"), len(sequences.periods("sales"))] == [1, 1]
        assert sequences.configure("tickets", step=2).value == sequences.reset("tickets") == 100
        with pytest.raises(Refused):
            sequences.delete("tickets")


def test_the_book_sales_show_duplicates_by_hand_and_none_by_sequence(mysql_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "book_sales.py"],
        env={**child_environment(), "COUNTERSINK_MYSQL_URL": mysql_url},
        cwd=PROJECT / "docs/examples",
        capture_output=True,
        timeout=100,
        check=False,
    )
    shown = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    assert "Germinal: you bought copy 1\n" in shown
    assert "Germinal: a dozen, copies 2 to 13\n" in shown
    assert "in its lifetime: 253 copies\n" in shown
    by_hand, by_sequence = re.findall(
        r"^  (.+): (\d+) sold, (\d+) different numbers, (\d+) duplicates$", shown, re.MULTILINE
    )
    assert by_hand[0] == "UPDATE, then SELECT"
    assert int(by_hand[3]) > 0
    assert by_sequence == ("store.sequences.next", "1600", "1600", "0")
    with Store(mysql_url) as store:
        assert store.sequences.list() == []
    with connect(mysql_url) as tables:
        assert tables.query("SHOW TABLES LIKE 'book%%'") == []
