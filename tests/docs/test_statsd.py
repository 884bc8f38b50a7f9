"""docs/statsd.md is true: its examples run, its tables are what happens."""

import re
import shlex
import subprocess
from pathlib import Path

from countersink.statsd.options import Rules, StatsdOptions, load
from countersink.statsd.tally import StatsdTally
from tests.cli.command import Servers
from tests.cli.listener import listener
from tests.docs.console import Step, blocks, comparable, parts
from tests.support.processes import PROJECT
from tests.support.producing import recorder

PAGE = "docs/statsd.md"


def counted(line: str, rules: Rules, times: int = 1) -> dict[tuple[str, str], int]:
    producer = recorder()
    tally = StatsdTally(producer, rules, StatsdOptions(max_counters=10))
    for _ in range(times):
        tally.lines([line.encode()])
    return producer.totals()


def table(head: str) -> list[list[str]]:
    """The rows of the table that begins so; cells in code keep their bars."""
    lines = (PROJECT / PAGE).read_text("utf-8").partition(f"\n{head}\n")[2].splitlines()[1:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells = re.findall(r"\| ?((?:`[^`]*`|[^|`])*)(?= ?\|)", line)
        rows.append([cell.strip(" ") for cell in cells])
    return rows


def code(cell: str) -> str:
    return cell[1:-1] if cell.startswith("`") else ""


def test_lines_count_what_the_table_says() -> None:
    rows = table("| line | |")
    assert len(rows) == 12
    for line, says in rows:
        number = re.match(r"(−?)(\d+)", says)
        expected = 1 if number is None else int(number[2]) * (-1 if number[1] else 1)
        assert counted(code(line), Rules()) == {("downloads", ""): expected}, line
    assert counted("downloads:1|c|@0.3", Rules(), 2) == {("downloads", ""): 7}
    assert counted("downloads:1|c|@0.3", Rules(), 3) == {("downloads", ""): 10}


def test_the_map_does_what_the_table_says(tmp_path: Path) -> None:
    files = dict(part for part in parts(Path(PAGE)) if not isinstance(part, Step))
    file = tmp_path / "map.toml"
    file.write_text(files["map.toml"])
    rules = load(file)
    rows = table("| line | counter | key |")
    assert len(rows) == 7
    for line, counter, key in rows:
        expected = {(code(counter), code(key)): 1} if code(counter) else {}
        assert counted(code(line), rules) == expected, line


def test_the_first_examples_run(servers: Servers) -> None:
    [shell], [python] = blocks(PAGE, "sh"), blocks(PAGE, "python")
    _, totals = (part for part in parts(Path(PAGE)) if isinstance(part, Step))
    with listener(servers.redis_url) as running:
        port = str(running.port)
        subprocess.run(["bash", "-c", shell.replace("8125", port)], check=True)
        exec(python.replace("8125", port), {})
        running.end()
    servers.apply()
    printed = servers.call(*shlex.split(totals.command)[1:]).out
    assert comparable(printed) == comparable(totals.shown)
