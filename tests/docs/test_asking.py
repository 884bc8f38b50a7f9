"""docs/asking.md is played: its commands, its Python and its SQL have the numbers that it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.cli.command import Servers
from tests.docs.console import blocks, check_served
from tests.support.oracle import connect
from tests.support.processes import PROJECT

PAGE = PROJECT / "docs/asking.md"


def test_each_question_has_one_answer_by_every_way(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_served(PAGE.read_text("utf-8"), servers, tmp_path) >= 15
    for name, url in servers.variables().items():
        monkeypatch.setenv(name, url)
    for block in blocks(PAGE, "python"):
        shown = [
            said.strip() for said in re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
        ]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(block, {})
        assert printed.getvalue().splitlines() == shown, block
        assert shown
    with connect(servers.mysql_url) as connection, connection.cursor() as cursor:
        for block in blocks(PAGE, "sql"):
            (said,) = re.findall(r"-- (\d+)$", block, re.MULTILINE)
            cursor.execute(block)
            ((found,),) = cursor.fetchall()
            assert int(found) == int(said), block


def test_each_question_of_the_page_has_its_command_its_python_its_http_and_its_sql() -> None:
    questions = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert len(questions) >= 5
    for question in questions:
        for needed in ("\n$ countersink ", "\n$ curl ", "\n```python\n", "\n```sql\n"):
            assert needed in question, question.partition("\n")[0]
