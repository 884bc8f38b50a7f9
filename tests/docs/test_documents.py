"""What the documents say is run here: examples, their output, and every command they name."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from countersink.worker import Stop, WorkerOptions
from countersink.worker import run as work
from tests.cli import reference
from tests.cli.command import call
from tests.support.processes import PROJECT, child_environment

DOCUMENTS = sorted(
    path.relative_to(PROJECT)
    for pattern in ("*.md", "*/README.md", "docs/*.md")
    for path in PROJECT.glob(pattern)
    if path.parts[len(PROJECT.parts)] not in {".venv", "build", "dist"}
)
LOG_LINE = '203.0.113.9 - - [{day}/May/2015:10:05:03 +0000] "GET {path} HTTP/1.1" 200 12 "-" "-"\n'


def blocks(document: Path | str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    text = (PROJECT / document).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(document: Path | str) -> list[str]:
    """The command lines of the console blocks, comments cut off."""
    lines = "\n".join(blocks(document, "console")).splitlines()
    return [line[2:].partition("  #")[0].strip() for line in lines if line.startswith("$ ")]


@pytest.fixture
def environment(redis_url: str, mysql_url: str) -> dict[str, str]:
    return {"COUNTERSINK_REDIS_URL": redis_url, "COUNTERSINK_MYSQL_URL": mysql_url}


def run(arguments: list[str], environment: dict[str, str], **options: str) -> str:
    done = subprocess.run(
        arguments,
        env={**child_environment(), **environment, "COLUMNS": "100"},
        cwd=PROJECT,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def countersink(line: str, environment: dict[str, str]) -> str:
    program, *arguments = shlex.split(line)
    assert program == "countersink"
    done = call(*arguments, **environment)
    assert done.status == 0, done.err
    return done.out


def test_the_readmes_first_example_prints_what_it_says(environment: dict[str, str]) -> None:
    example, *_ = blocks("README.md", "python")
    stop = Stop()
    options = WorkerOptions(
        redis_url=environment["COUNTERSINK_REDIS_URL"],
        mysql_url=environment["COUNTERSINK_MYSQL_URL"],
    )
    with ThreadPoolExecutor() as threads:
        working = threads.submit(work, options, stop=stop)
        try:
            run([sys.executable, "-c", example], environment)
        finally:
            stop.request()
        assert working.result() == 0
    shown, *_ = blocks("README.md", "console")
    command, _, output = shown.partition("\n")
    printed = countersink(command.removeprefix("$ "), environment)
    printed = re.sub(r"2\d{3}-\d\d-\d\dT\S+Z", "2026-11-21T09:30:00.000Z", printed)
    assert [line.rstrip() for line in printed.splitlines()] == output.splitlines()
    assert len(example.splitlines()) <= 10


def test_the_producers_example_runs(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, *_ = blocks("producers/README.md", "python")
    names = (
        "from datetime import UTC, datetime\n"
        "some_aware_datetime = datetime.now(UTC)\n"
        "order_id = '7'\n"
    )
    example = example.replace("redis://localhost:6379/0", environment["COUNTERSINK_REDIS_URL"])
    example = example.replace("/var/spool/countersink", str(tmp_path))
    for name, url in environment.items():
        monkeypatch.setenv(name, url)
    exec(names + example + "producer.close(30)", {})
    countersink("countersink worker --drain", environment)
    assert (
        countersink("countersink totals stock --by total --format csv", environment)
        .split()[-1]
        .endswith("-12")
    )


def test_the_redis_cli_recipes_count(environment: dict[str, str]) -> None:
    redis_cli = shutil.which("redis-cli")
    if redis_cli is None:
        pytest.skip("redis-cli is not installed")
    lines = [line for line in commands("producers/README.md") if line.startswith("redis-cli")]
    assert len(lines) == 2
    at = urlsplit(environment["COUNTERSINK_REDIS_URL"])
    where = [redis_cli, "-e", "-h", str(at.hostname), "-p", str(at.port)]
    for line in [*lines, lines[-1]]:  # the one with an id is sent twice, as it says
        run([*where, *shlex.split(line)[1:]], {"REDISCLI_AUTH": str(at.password)})
    countersink("countersink worker --drain", environment)
    counted = countersink("countersink totals page_views --by total --format json", environment)
    assert json.loads(counted)["rows"] == [{"total": 2}]


def test_the_readmes_tour_of_a_log_runs(environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(LOG_LINE.format(day=day, path="/a") for day in (17, 18, 18)))
    tour = [line for line in commands("README.md") if line.startswith("countersink")]
    tour = [line.replace("/var/log/nginx/access.log", str(log)) for line in tour]
    tail = next(line for line in tour if " tail " in line)
    after = tour[tour.index(tail) + 1 :]
    assert len(after) >= 3
    for line in (tail, "countersink worker --drain", *after):
        done = call(*shlex.split(line)[1:], **environment)  # in this process: there are many
        assert done.status == 0, f"{line}\n{done.err}"
        assert line not in after or done.out.strip(), line


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
