"""docker-compose.yml and the Dockerfile, held against what they promise. No engine is needed."""

import fnmatch
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from countersink.cli.commands.up import COMMANDS

ROOT = Path(__file__).resolve().parents[2]

TOP_LEVEL = {"name", "services", "volumes", "networks", "secrets", "configs"}
SERVICE = {
    *("build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "image", "init"),
    *("ports", "read_only", "restart", "scale", "security_opt", "stop_grace_period", "tmpfs"),
    *("user", "volumes"),
}
"""The keys of the compose specification that are in use here: a misspelt one is none of them."""
HEALTHCHECK = {"test", "interval", "timeout", "start_period", "retries"}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
DURATION = re.compile(r"(\d+(h|m|s|ms|us))+")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_only_keys_of_the_compose_specification_are_used() -> None:
    assert {key for key in COMPOSE if not key.startswith("x-")} <= TOP_LEVEL
    for service in SERVICES.values():
        assert set(service) <= SERVICE
        check = service.get("healthcheck", {})
        assert set(check) <= HEALTHCHECK
        durations = [check[k] for k in ("interval", "timeout", "start_period") if k in check]
        durations += [service[k] for k in ("stop_grace_period",) if k in service]
        assert all(DURATION.fullmatch(duration) for duration in durations)
        if check:
            assert check["test"][0] in {"CMD", "CMD-SHELL"}
        volumes = [volume.split(":")[0] for volume in service.get("volumes", [])]
        assert set(volumes) <= set(COMPOSE["volumes"])
        for name, dependency in service.get("depends_on", {}).items():
            assert name in SERVICES
            assert dependency["condition"] in CONDITIONS
            if dependency["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[name]


def test_every_image_has_its_full_version() -> None:
    images = [service["image"] for service in SERVICES.values()]
    for file in ("Dockerfile", "ops/Dockerfile"):
        images += re.findall(r"(?m)^FROM (\S+)", (ROOT / file).read_text("utf-8"))
    for manifest in (ROOT / "ops" / "kubernetes" / "base").glob("*.yaml"):
        images += re.findall(r"image: (\S+)", manifest.read_text("utf-8"))
    assert len(images) > 12
    for image in images:
        # `countersink ops` replaces that of ours by its version
        assert image == "countersink:0.dev0" or re.search(r":\d+\.\d+\.\d+[a-z-]*$", image), image


def test_the_servers_have_versions_that_tests_are_run_with() -> None:
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    for service, row in (("mysql", "MySQL | "), ("redis", "Redis, Valkey | Redis ")):
        [version] = re.findall(r":(\d+\.\d+)\.\d+$", SERVICES[service]["image"])
        [tested] = re.findall(rf"^\| {re.escape(row)}([\d., ]+)", page, re.MULTILINE)
        assert version in tested.strip().split(", ")


def test_redis_writes_an_append_only_file_and_never_evicts() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command


def test_every_container_is_unprivileged_and_writes_only_where_it_must() -> None:
    for service in SERVICES.values():
        assert service["user"] not in {"root", "0", "0:0"}
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_everything_that_up_runs_is_a_service() -> None:
    assert set(COMMANDS) | {"migrate", "redis", "mysql"} == set(SERVICES)
    for name in COMMANDS:
        assert SERVICES[name]["command"][0] == name


def test_ports_are_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_whatever_runs_for_long_has_a_health_check_and_comes_back() -> None:
    for name, service in SERVICES.items():
        if name != "migrate":
            assert "healthcheck" in service
            assert service["restart"] == "unless-stopped"


def test_a_health_check_asks_the_port_at_which_health_is_served() -> None:
    for name in COMMANDS:
        port = re.search(r"127.0.0.1:(\d+)/readyz", SERVICES[name]["healthcheck"]["test"][-1])
        assert port
        if name == "web":
            assert SERVICES[name]["ports"][0].endswith(f":{port[1]}")
        else:
            assert SERVICES[name]["command"][-2:] == ["--metrics-port", port[1]]


def test_passwords_come_from_the_environment_and_have_no_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    uses = re.findall(r"\$\{(\w*PASSWORD)([^}]*)\}", text)
    assert {name for name, _ in uses} == {"REDIS_PASSWORD", "MYSQL_PASSWORD"}
    assert all(rest.startswith(":?") for _, rest in uses)
    example = (ROOT / ".env.example").read_text()
    variables = set(re.findall(r"\$\{(\w+)", text))
    assert variables == set(re.findall(r"^(\w+)=", example, re.MULTILINE))
    assert re.search(r"^\w*PASSWORD=.+", example, re.MULTILINE) is None


def test_the_passwords_file_is_ignored_by_git_and_docker() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.parametrize("file", ["Dockerfile", "ops/Dockerfile"])
def test_an_image_runs_the_command_as_the_same_user(file: str) -> None:
    final = (ROOT / file).read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
    assert 'ENTRYPOINT ["countersink"]' in final


def test_the_image_is_built_from_what_the_build_may_see() -> None:
    text = (ROOT / "Dockerfile").read_text()
    allowed = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed)
    assert "pip" not in text.rpartition("\nFROM ")[2]
