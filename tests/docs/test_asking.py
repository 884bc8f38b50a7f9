"""docs/asking.md is played: its commands, its Python and its SQL have the numbers that it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.docs.console import check_served
from tests.support.oracle import connect
from tests.support.processes import PROJECT

PAGE = PROJECT / "docs/asking.md"


def fenced(language: str) -> list[str]:
    """The fenced blocks of one language."""
    text = PAGE.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_each_question_has_one_answer_by_every_way(
    redis_url: str, mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_served(PAGE.read_text("utf-8"), redis_url, mysql_url, tmp_path) >= 15
    monkeypatch.setenv("COUNTERSINK_REDIS_URL", redis_url)
    monkeypatch.setenv("COUNTERSINK_MYSQL_URL", mysql_url)
    for block in fenced("python"):
        shown = [
            said.strip() for said in re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
        ]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(block, {})
        assert printed.getvalue().splitlines() == shown, block
        assert shown
    with connect(mysql_url) as connection, connection.cursor() as cursor:
        for block in fenced("sql"):
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
