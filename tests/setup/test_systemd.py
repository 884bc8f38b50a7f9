"""ops/systemd, held against systemd and against the product."""

import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from countersink.schedules.options import JobProcessOptions, SchedulerOptions
from countersink.worker.options import WorkerOptions
from tests.cli.reference import commands, variables
from tests.support.processes import PROJECT

FOLDER = PROJECT / "ops" / "systemd"
UNITS = {re.sub("countersink-|@", "", file.stem): file for file in FOLDER.glob("*.service")}
"""The file of each command's unit."""
TABLES = set(UNITS) - {"statsd", "migrate"}
"""The commands that need the tables."""
STOPPING: dict[str, Any] = {
    "worker": WorkerOptions,
    "scheduler": SchedulerOptions,
    "jobs": JobProcessOptions,
}
"""Options of the commands that end in the time that one of them names."""


def directives(command: str) -> dict[str, list[str]]:
    """All values of each directive in a unit's file, in their order."""
    found = defaultdict(list)
    for line in UNITS[command].read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


def test_systemd_takes_every_unit(tmp_path: Path) -> None:
    """In a root of its own, with the targets of this machine and a command to run."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian's package systemd has it)")
    targets = Path("/usr/lib/systemd/system")
    shutil.copytree(targets, tmp_path / targets.relative_to("/"), symlinks=True)
    units = tmp_path / "etc/systemd/system"
    shutil.copytree(FOLDER, units)
    command = tmp_path / "opt/countersink/bin/countersink"
    command.parent.mkdir(parents=True)
    command.touch(0o755)
    names = [file.name.replace("@", "@1") for file in UNITS.values()]
    done = subprocess.run(
        [analyze, "verify", "--man=no", f"--root={tmp_path}", *names],
        cwd=units,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # It only warns of a misspelt setting. Other lines are about units of this machine.
    assert [line for line in done.stderr.splitlines() if "countersink-" in line] == []


def test_every_process_has_a_unit_that_runs_it_and_reads_its_settings() -> None:
    assert set(UNITS) == {"worker", "scheduler", "jobs", "web", "statsd", "migrate"}
    assert set(UNITS) <= {path[1] for path, _ in commands() if len(path) == 2}
    for command in UNITS:
        found = directives(command)
        assert found["ExecStart"] == [f"/opt/countersink/bin/countersink {command}"]
        # What is read later goes before.
        files = ["/etc/countersink/countersink.env", f"-/etc/countersink/{command}.env"]
        assert found["EnvironmentFile"] == files
        assert (FOLDER / f"{command}.env").exists()


def test_every_variable_is_a_setting() -> None:
    used = {
        match
        for file in (*FOLDER.glob("*.env"), *UNITS.values())
        for match in re.findall(r"(COUNTERSINK_\w+)=", file.read_text())
    }
    assert len(used) > 10
    assert used <= variables()


def test_urls_have_the_users_and_passwords_of_the_servers_files() -> None:
    files = ("redis/users.acl", "mysql/users.sql")
    made = "\n".join((PROJECT / "ops" / file).read_text() for file in files)
    for env in FOLDER.glob("*.env"):
        for scheme, user, password in re.findall(r"(\w+)://(\w+):([\w-]+)@", env.read_text()):
            line = f"user {user} on >{password} "
            if scheme == "mysql":
                line = f"'{user}'@'%' IDENTIFIED BY '{password}'"
            assert line in made


def test_a_process_may_write_its_spool_in_either_place() -> None:
    spools = {
        command: found[1]
        for command in UNITS
        if (found := re.search(r"_SPOOL=(.*)", (FOLDER / f"{command}.env").read_text()))
    }
    assert set(spools) == {"web", "statsd"}
    for command, spool in spools.items():
        written = directives(command)
        assert spool == f"/var/lib/{written['StateDirectory'][0]}/{command}"
        assert written["ReadWritePaths"] == ["-/var/spool/countersink"]


def test_a_start_migrates_the_tables_and_does_not_wait_for_it() -> None:
    for command in set(UNITS) - {"migrate"}:
        found = directives(command)
        assert found["Wants"] == ["countersink-migrate.service"] * (command in TABLES)
        # systemd would start nothing, and not end its start, as long as migrate is tried again.
        assert not {"Requires", "After"} & set(found)
        assert found["Restart"] == ["always"]
    assert directives("migrate")["Type"] == ["oneshot"]


def test_each_of_99_instances_has_a_metrics_port_of_its_own() -> None:
    ports = [8321]  # of web, which has its metrics there
    for command, file in UNITS.items():
        for line in directives(command)["Environment"]:
            name, _, port = line.partition("=")
            assert name == f"COUNTERSINK_{command.upper()}_METRICS_PORT"
            instances = range(1, 100) if "@" in file.name else [0]
            ports += [int(port.replace("%i", str(instance))) for instance in instances]
    assert len(ports) == len(set(ports)) == 3 + 2 * 99
    assert all(1024 <= port < 32768 for port in ports)  # not privileged, not ephemeral


@pytest.mark.parametrize("command", STOPPING)
def test_processes_have_the_time_that_they_take_to_end(command: str) -> None:
    defaults: dict[str, Any] = {each.name: each.default for each in fields(STOPPING[command])}
    assert int(directives(command)["TimeoutStopSec"][0]) >= defaults["stop_within_s"] + 2
