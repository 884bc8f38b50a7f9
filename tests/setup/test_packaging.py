"""What is installed: one wheel from three roots, which by itself needs redis and nothing else."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

import pytest

from tests.clients.programs import output
from tests.support.processes import PROJECT, SOURCE_ROOTS

PATH = os.pathsep.join(str(PROJECT / root) for root in SOURCE_ROOTS)
SUBPACKAGES = {
    file.parent.name for root in SOURCE_ROOTS for file in PROJECT.glob(f"{root}/*/*/__init__.py")
}

HEAVY = {
    "pymysql",
    "msgspec",
    "click",
    "rich",
    "rq",
    "apscheduler",
    "cronsim",
    "prometheus_client",
    "cryptography",
}
"""What an application that only produces must not have to load."""

ADDED_BY_US = """
import json, sys
import redis
before = set(sys.modules)
from countersink.producers import Producer
print(json.dumps(sorted(name.partition(".")[0] for name in set(sys.modules) - before)))
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what git would check out: no stray files, no caches."""
    directory = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation")
    output([*build, "--outdir", str(directory), str(PROJECT)])
    [built] = directory.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def packed(wheel: Path) -> set[str]:
    """The files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(
    scope="session",
    params=["unpacked", pytest.param("installed", marks=pytest.mark.long("by pip"))],
)
def base_python(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """A Python with the wheel and with what it requires without extras, and nothing else.

    Made without a network: the required packages are linked from the tests' own environment.
    """
    python, site = made_venv(tmp_path_factory.mktemp("base"), wheel_requirements(wheel))
    if request.param == "installed":
        pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
        output([*pip, "--no-index", "--no-deps", str(wheel)])
    else:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return python


def made_venv(directory: Path, requirements: list[str]) -> tuple[Path, Path]:
    """A new Python that has what these requirements need, and its directory of packages."""
    venv.create(directory / "venv", with_pip=False, symlinks=True)
    [site] = directory.glob("venv/lib/python*/site-packages")
    for name in required_names(requirements):
        for source in top_level_paths(name):
            (site / source.name).symlink_to(source)
    return directory / "venv/bin/python", site


def wheel_requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        headers = HeaderParser().parsestr(archive.read(name).decode())
    return list(headers.get_all("Requires-Dist", []))


def required_names(requirements: list[str]) -> set[str]:
    """The distributions that those without an extra bring, and what these need in turn."""
    names: set[str] = set()
    for requirement in requirements:
        if "extra ==" in requirement:
            continue
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            needs = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            assert ";" in requirement  # for another Python than this one
            continue
        names |= {name} | required_names(needs)
    return names


def top_level_paths(name: str) -> set[Path]:
    distribution = metadata.distribution(name)
    files = [file for file in distribution.files or [] if ".." not in file.parts]
    return {Path(str(distribution.locate_file(file.parts[0]))) for file in files}


def run(
    python: Path | str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COUNTERSINK_"))}
    return subprocess.run(
        [str(python), *arguments],
        env={**clean, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_holds_all_subpackages_typed_and_nothing_else(packed: set[str]) -> None:
    names = {name for name in packed if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"countersink"}
    assert {name.split("/")[1] for name in names} == SUBPACKAGES  # so no countersink/__init__.py
    for subpackage in SUBPACKAGES:
        assert f"countersink/{subpackage}/py.typed" in names
        assert f"countersink/{subpackage}/__init__.py" in names


def test_the_wheel_holds_the_dashboard_its_licences_and_the_sql_and_lua_files(
    packed: set[str],
) -> None:
    def there(place: str, pattern: str) -> set[str]:
        return {
            str(file.relative_to(PROJECT / root))
            for root in SOURCE_ROOTS
            for file in (PROJECT / root / place).rglob(pattern)
            if file.is_file()
        }

    static = there("countersink/web/static", "*")
    assert any("LICENSE" in file for file in static)
    assert static <= packed
    for ending in (".sql", ".lua"):
        present = there("", f"*{ending}")
        assert present
        code = {name for name in packed if "/cli/ops/" not in name}
        assert {name for name in code if name.endswith(ending)} == present


def test_the_wheel_holds_all_files_of_ops(wheel: Path) -> None:
    ops = PROJECT / "ops"
    there = {f"countersink/cli/ops/{each.relative_to(ops)}": each for each in ops.rglob("*")}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if "/cli/ops/" in name}
    assert packed == {name: each.read_bytes() for name, each in there.items() if each.is_file()}


def test_the_base_install_requires_redis_alone(wheel: Path) -> None:
    base = [each for each in wheel_requirements(wheel) if "extra ==" not in each]
    assert [re.split(r"[^a-z]", each)[0] for each in base] == ["redis"]


def test_producing_works_with_the_base_install(base_python: Path) -> None:
    program = (
        "from countersink.producers import Producer\n"
        "producer = Producer('redis://127.0.0.1:1/0', handle_sigterm=False, exit_timeout=0.1)\n"
        "producer.increment('page_views', '/home')\n"
        "print(producer.stats().accepted)\n"
        "producer.close(timeout=0.1)\n"
    )
    done = run(base_python, "-c", program)
    assert done.stdout.strip() == "1", done.stderr


def test_every_command_but_web_can_be_loaded_with_the_server_extra(
    wheel: Path, tmp_path: Path
) -> None:
    extra = ("; extra == 'server'", '; extra == "server"')
    needed = [each.removesuffix(end) for each in wheel_requirements(wheel) for end in extra]
    python, site = made_venv(tmp_path, needed)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    program = (
        "import click\n"
        "from countersink.cli.app import app\n"
        "def load(group):\n"
        "    context = click.Context(group)\n"
        "    for name in set(group.list_commands(context)) - {'web'}:\n"
        "        command = group.get_command(context, name)\n"
        "        if isinstance(command, click.Group):\n"
        "            load(command)\n"
        "load(app)\n"
    )
    done = run(python, "-c", program)
    assert done.returncode == 0, done.stderr


def test_pytest_finds_the_fixtures_of_the_base_install(base_python: Path, tmp_path: Path) -> None:
    for name in required_names(["pytest"]) | {"pytest"}:
        for source in top_level_paths(name):
            (tmp_path / source.name).symlink_to(source)
    (tmp_path / "test_app.py").write_text(
        "import sys\n"
        "assert not {'redis', 'pymysql'} & set(sys.modules)\n"
        "def test_producer(countersink_producer):\n"
        "    countersink_producer.assert_nothing_counted()\n"
        "def test_store(countersink_store):\n"
        "    assert False, 'needs PyMySQL'\n"
    )
    options = ("-rs", "-pno:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path / "test_app.py"))
    done = run(base_python, "-m", "pytest", *options, PYTHONPATH=str(tmp_path))
    assert "1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "countersink_store: countersink.store needs PyMySQL: pip install" in done.stdout


def test_the_command_without_the_server_extra_says_what_to_install(base_python: Path) -> None:
    [site] = base_python.parents[1].glob("lib/python*/site-packages")
    [installed] = metadata.distributions(name="countersink", path=[str(site)])
    [script] = installed.entry_points.select(group="console_scripts", name="countersink")
    program = f"import sys; from {script.module} import {script.attr} as main; sys.exit(main())"
    console = base_python.parent / "countersink"
    command = [str(console)] if console.exists() else [str(base_python), "-c", program]
    done = run(*command, "totals", "page_views")
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "pip install 'countersink[server]'" in line


def test_importing_the_producer_loads_nothing_heavy() -> None:
    done = run(sys.executable, "-c", ADDED_BY_US, PYTHONPATH=PATH)
    assert done.returncode == 0, done.stderr
    added = set(json.loads(done.stdout))
    assert not added & HEAVY
    assert added - {"countersink"} <= set(sys.stdlib_module_names)
    assert not added & {"asyncio", "multiprocessing", "email", "http", "xml", "unittest"}


def test_constraints_pin_whatever_pyproject_asks_for() -> None:
    pinned = {
        re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()
        for line in (PROJECT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    asked = {
        re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement)[0]).lower()
        for requirement in metadata.distribution("countersink").requires or []
    }
    assert asked - {"countersink"} <= pinned
