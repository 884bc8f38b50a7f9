"""What the documents say is run here: examples, their output, and every command they name."""

import json
import os
import re
import shlex
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from benchmarks import figures
from tests.cli import reference
from tests.cli.command import Servers
from tests.clients.programs import output, redis_cli
from tests.clients.test_page import path_with_redis_cli
from tests.docs.console import Step, blocks, comparable, parts
from tests.support.processes import PROJECT
from tests.worker.running import Running

DOCUMENTS = sorted(
    path.relative_to(PROJECT)
    for pattern in ("*.md", "*/README.md", "docs/**/*.md", "ops/*/README.md")
    for path in PROJECT.glob(pattern)
    if path.parts[len(PROJECT.parts)] not in {".venv", "build", "dist"}
)
SOURCE = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
UNIX_TIME = re.compile(r"\b(?:1[4-9]\d{8}(?:\d{3})?|2[5-9]\d{6}|3[0-2]\d{6})\b(?! bytes)")
"""Seconds or milliseconds of the years 2014 to 2033, or minutes of them."""
EXAMPLES = sorted(path.relative_to(PROJECT) for path in (PROJECT / "docs/examples").glob("*.*"))
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


def test_the_redis_cli_recipes_count(servers: Servers, tmp_path: Path) -> None:
    recipes = [block for block in blocks("producers/README.md", "sh") if "redis-cli" in block]
    assert len(recipes) == 2
    again = recipes[-1].splitlines()[-1]  # the one with an id is sent twice, as it says
    _, login = redis_cli(servers.redis_url)
    environment = {**login, "PATH": path_with_redis_cli(servers.redis_url, tmp_path / "bin")}
    output(["bash", "-ec", "\n".join([*recipes, again])], environment=environment)
    servers.apply()
    counted = servers.call(
        *("totals", "page_views", "--last", "2d", "--by", "total", "--format", "json")
    ).json
    assert counted["rows"] == [{"total": 2}]
    assert servers.call("dead", "list", "--format", "json").json["rows"] == []


def test_the_tour_of_a_log_runs(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(LOG_LINE.format(day=day, path="/a") for day in (17, 18, 18)))
    tour = commands("docs/index.md")
    assert len(tour) >= 4
    for line in tour:
        line = line.replace("/var/log/nginx/access.log", str(log))
        assert printed(line, servers).strip(), line
        servers.apply()


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
def test_every_link_leads_somewhere(document: Path) -> None:
    text = (PROJECT / document).read_text("utf-8")
    top = os.path.relpath(".", document.parent)
    text = re.sub(rf"\]\({re.escape(SOURCE)}/(blob|raw)/main/", f"]({top}/", text)
    for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = (PROJECT / document).parent / path if path else PROJECT / document
        assert file.exists(), f"{document}: {target}"
        assert not anchor or anchor in anchors(file), f"{document}: {target}"


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_figures_of_the_readme_are_those_that_were_measured() -> None:
    results = json.loads((PROJECT / "benchmarks/results.json").read_text("utf-8"))
    measured = {row["name"]: row.get("per_second", 0) for row in results["rows"]}
    text = " ".join((PROJECT / "README.md").read_text("utf-8").split())
    for name, said in (
        ("end_to_end_zipf", "count {} increments per second of 5,000 keys"),
        ("end_to_end_distinct", "and {} where every key is another one"),
        ("peer_rq", "one RQ job per event reaches {}"),
    ):
        assert said.format(f"{float(f'{measured[name]:.3g}'):,.0f}") in text


def test_the_figures_of_all_documents_are_those_that_were_measured() -> None:
    for page, text, made in figures.pages():
        assert text == made, f"{page}: python -m benchmarks.figures"


def test_a_page_without_a_sentence_with_figures_is_refused() -> None:
    rows = {"one": {"per_second": 1_234_567}, "two": {"per_second": 500_000}}
    made = figures.filled("so 2 of\n3.5 times", "so {one} of {one/two} times", rows)
    assert made == "so 1,230,000 of\n2.47 times"
    assert figures.filled("so 2 events", "so {three} events", rows) == "so 2 events"
    with pytest.raises(ValueError, match="not in the page"):
        figures.filled("so two events", "so {one} events", rows)


def test_the_readme_links_to_the_project_from_anywhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", (PROJECT / "README.md").read_text("utf-8"))
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []


@pytest.mark.parametrize("path", [*DOCUMENTS, *EXAMPLES], ids=str)
def test_no_example_has_a_fixed_unix_time(path: Path) -> None:
    """An entry of a fixed time becomes too old for the queue. Logs and exports keep their times:
    a backfill counts those of any time.
    """
    text = (PROJECT / path).read_text("utf-8")
    text = re.sub(r"^`[\w.-]+`:\n\n```\w*\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert UNIX_TIME.findall(text) == []
