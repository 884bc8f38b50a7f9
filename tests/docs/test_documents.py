"""What the documents say is run here: examples, their output, and every command they name."""

import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.cli import reference
from tests.cli.command import Servers
from tests.clients.programs import output, redis_cli
from tests.docs.console import Step, blocks, comparable, parts
from tests.support.processes import PROJECT
from tests.worker.running import Running

DOCUMENTS = sorted(
    path.relative_to(PROJECT)
    for pattern in ("*.md", "*/README.md", "docs/*.md")
    for path in PROJECT.glob(pattern)
    if path.parts[len(PROJECT.parts)] not in {".venv", "build", "dist"}
)
LOG_LINE = '203.0.113.9 - - [{day}/May/2015:10:05:03 +0000] "GET {path} HTTP/1.1" 200 12 "-" "-"\n'


def commands(document: Path | str) -> list[str]:
    """The command lines of the console blocks, comments cut off."""
    lines = "\n".join(blocks(document, "console")).splitlines()
    return [line[2:].partition("  #")[0].strip() for line in lines if line.startswith("$ ")]


def printed(line: str, servers: Servers) -> str:
    """The output of a command line of a document."""
    program, *arguments = shlex.split(line)
    assert program == "countersink"
    done = servers.call(*arguments)
    assert done.status == 0, f"{line}\n{done.err}"
    return done.out


def test_the_readmes_first_example_prints_what_it_says(servers: Servers) -> None:
    example, *_ = blocks("README.md", "python")
    with Running(servers.redis_url, servers.mysql_url):
        output([sys.executable, "-c", example], environment=servers.variables())
    step = next(part for part in parts(Path("README.md")) if isinstance(part, Step))
    assert comparable(printed(step.command, servers)) == comparable(step.shown)
    assert len(example.splitlines()) <= 10


def test_the_producers_example_runs(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, *_ = blocks("producers/README.md", "python")
    names = (
        "from datetime import UTC, datetime\n"
        "some_aware_datetime = datetime.now(UTC)\n"
        "order_id = '7'\n"
    )
    example = example.replace("redis://localhost:6379/0", servers.redis_url)
    example = example.replace("/var/spool/countersink", str(tmp_path))
    for name, url in servers.variables().items():
        monkeypatch.setenv(name, url)
    exec(names + example + "producer.close(30)", {})
    servers.apply()
    counted = printed("countersink totals stock --by total --format csv", servers)
    assert counted.split()[-1].endswith("-12")


def test_the_redis_cli_recipes_count(servers: Servers) -> None:
    lines = [line for line in commands("producers/README.md") if line.startswith("redis-cli")]
    assert len(lines) == 2
    redis_at, login = redis_cli(servers.redis_url)
    for line in [*lines, lines[-1]]:  # the one with an id is sent twice, as it says
        output([*redis_at, *shlex.split(line)[1:]], environment=login)
    servers.apply()
    counted = servers.call("totals", "page_views", "--by", "total", "--format", "json").json
    assert counted["rows"] == [{"total": 2}]


def test_the_readmes_tour_of_a_log_runs(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(LOG_LINE.format(day=day, path="/a") for day in (17, 18, 18)))
    tour = [line for line in commands("README.md") if line.startswith("countersink")]
    tour = [line.replace("/var/log/nginx/access.log", str(log)) for line in tour]
    tail = next(line for line in tour if " tail " in line)
    after = tour[tour.index(tail) + 1 :]
    assert len(after) >= 3
    printed(tail, servers)
    servers.apply()
    for line in after:
        assert printed(line, servers).strip(), line


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_countersink_command_in_a_document_exists(document: Path) -> None:
    lines = [line for line in commands(document) if line.startswith("countersink")]
    text = (PROJECT / document).read_text("utf-8")
    lines += re.findall(r"`(countersink [a-z][^`\n]*)`", text)
    for line in lines:
        words = shlex.split(line.replace("[", "").replace("]", "").replace("|", " "))[1:]
        path = [word for word in words[:2] if re.fullmatch(r"[a-z]+", word)]
        help_text = _help(path[:1])
        if path[1:] and re.search(rf"^  {path[1]} ", help_text, re.MULTILINE):
            help_text = _help(path)
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert option in help_text, f"{document}: {line}"


def _help(path: list[str]) -> str:
    assert tuple(path) in _helps(), f"there is no `countersink {' '.join(path)}`"
    return _helps()[tuple(path)]


@cache
def _helps() -> dict[tuple[str, ...], str]:
    """What ``--help`` prints for every command, by the words after ``countersink``."""
    return {path[1:]: reference.help_of(path, found) for path, found in reference.commands()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_make_target_in_a_document_exists(document: Path) -> None:
    makefile = (PROJECT / "Makefile").read_text("utf-8")
    text = (PROJECT / document).read_text("utf-8")
    for target in re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{document}: make {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    text = (PROJECT / document).read_text("utf-8")
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (PROJECT / document).parent.joinpath(target).exists(), f"{document}: {target}"
