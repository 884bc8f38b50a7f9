"""ops/kubernetes, held against Kubernetes' schemas, against the product, and against itself.

`kubectl kustomize`, where there is a kubectl, puts it together as a user does.
"""

import re
import shutil
import subprocess
import urllib.request
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from countersink.cli.private_server import free_port
from countersink.database.migrate import migrate
from countersink.producers.options import Options
from countersink.schedules.options import JobProcessOptions, SchedulerOptions
from countersink.worker.options import WorkerOptions
from tests.cli.command import call
from tests.cli.reference import commands, variables
from tests.support.processes import PROJECT, Children
from tests.support.waiting import eventually

FOLDER = PROJECT / "ops" / "kubernetes"
LAYERS = ("base", "scaling", "example")
VERSIONS = ("1.30", "1.33", "1.37")
ALL = pytest.mark.long("all processes, versions and layers")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SCALED_OBJECT = {
    "scaleTargetRef": {"name"},
    "pollingInterval": None,
    "minReplicaCount": None,
    "maxReplicaCount": None,
    "fallback": {"failureThreshold", "replicas"},
    "advanced": {"horizontalPodAutoscalerConfig"},
    "triggers": None,
}
"""What KEDA's ScaledObject has, of what is in use: the schemas know Kubernetes' own kinds alone."""
MEASURED_MEGABYTES = 130
"""What a process takes at most, by docs/operations.md."""
HALF_MINUTE = 30
"""Seconds in which web and statsd end, by docs/operations.md."""
OPTIONS: dict[str, Any] = {
    "worker": WorkerOptions,
    "scheduler": SchedulerOptions,
    "jobs": JobProcessOptions,
}
"""Of the commands that end in the time that an option names."""
Document = dict[str, Any]


@cache
def documents(layer: str) -> list[tuple[Path, Document]]:
    """All documents of a layer, with their files; not the kustomization itself."""
    found = []
    for file in sorted((FOLDER / layer).glob("*.yaml")):
        if file.name != "kustomization.yaml":
            for document in yaml.load_all(file.read_text(), LOADER):
                found.append((file, document))
    return found


def of_kind(*kinds: str) -> list[Document]:
    """All documents of these kinds in the base."""
    return [document for _, document in documents("base") if document["kind"] in kinds]


def pod_of(document: Document) -> Document:
    """The specification of a workload's pods."""
    found: Document = document["spec"]["template"]["spec"]
    return found


def containers() -> list[tuple[Document, Document]]:
    """Every workload of the base with its one container."""
    found = []
    for document in of_kind("Deployment", "StatefulSet", "Job"):
        [container] = pod_of(document)["containers"]
        found.append((document, container))
    return found


def common_settings() -> dict[str, str]:
    """The variables that the ConfigMap holds."""
    lines = (FOLDER / "base" / "settings.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def environment_of(container: Document) -> dict[str, str]:
    """All variables of a container, but those that a Secret holds."""
    common = common_settings() if "envFrom" in container else {}
    given = container.get("env", [])
    return common | {each["name"]: each["value"] for each in given if "value" in each}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "version", [VERSIONS[0], pytest.param(VERSIONS[1], marks=ALL), VERSIONS[2]]
)
def test_every_document_is_valid(layer: str, version: str) -> None:
    for file, document in documents(layer):
        if document["kind"] != "ScaledObject":
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise AssertionError(f"{file.name}: {error}") from error


def test_the_scaler_is_one_that_keda_knows() -> None:
    [(_, scaler)] = documents("scaling")
    assert scaler["apiVersion"] == "keda.sh/v1alpha1"
    spec = scaler["spec"]
    assert set(spec) <= set(SCALED_OBJECT)
    for name, allowed in SCALED_OBJECT.items():
        assert allowed is None or set(spec[name]) <= allowed
    [trigger] = spec["triggers"]
    assert trigger["type"] == "prometheus"
    assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold", "ignoreNullValues"}
    # Else the fallback would never apply: no answer would count as an age of 0.
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    [workload] = [each for each in of_kind("Deployment") if "worker" in each["metadata"]["name"]]
    assert spec["scaleTargetRef"]["name"] == workload["metadata"]["name"]
    assert spec["minReplicaCount"] >= workload["spec"]["replicas"]
    assert spec["maxReplicaCount"] <= 255  # slots of workers


def test_the_scaler_asks_for_a_metric_that_there_is() -> None:
    [(_, scaler)] = documents("scaling")
    asked = re.findall(r"countersink_\w+", scaler["spec"]["triggers"][0]["metadata"]["query"])
    text = (PROJECT / "docs" / "metrics.md").read_text()
    assert asked
    assert all(f"`{name}`" in text for name in asked)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl here to run kustomize by")
@pytest.mark.parametrize("layer", [pytest.param("base", marks=ALL), "example"])
def test_kustomize_puts_it_together(layer: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / layer)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made: list[Document] = list(yaml.load_all(done.stdout, LOADER))
    assert {each["kind"] for each in made} >= {"Deployment", "StatefulSet", "Job", "ConfigMap"}
    for document in made:
        if document["kind"] != "ScaledObject":
            kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
        if document["kind"] in {"Deployment", "StatefulSet", "Job"}:
            labels = document["spec"]["template"]["metadata"]["labels"]
            assert labels["app.kubernetes.io/part-of"] == "countersink"
    workers = [each for each in made if each["kind"] == "Deployment" and "worker" in str(each)]
    if layer == "example":
        assert "replicas" not in workers[-1]["spec"]  # the scaler's to say


def test_every_variable_is_a_setting() -> None:
    known = variables()
    used = set(common_settings())
    for _, container in containers():
        used |= {each["name"] for each in container["env"]}
    assert {name.removesuffix("_FILE") for name in used} <= known


def test_every_command_is_one() -> None:
    names = {path[1] for path, _ in commands() if len(path) == 2}
    ran = {container["args"][0] for _, container in containers()}
    assert ran == {"worker", "scheduler", "jobs", "web", "statsd", "migrate"}
    assert ran <= names


def secrets() -> dict[str, dict[str, str]]:
    """The keys of each Secret of the example."""
    return {
        document["metadata"]["name"]: document["stringData"]
        for _, document in documents("example")
        if document["kind"] == "Secret"
    }


def test_urls_are_read_from_files_of_a_secret() -> None:
    for workload, container in containers():
        volumes = {each["name"]: each for each in pod_of(workload)["volumes"]}
        keys = secrets()[volumes["urls"]["secret"]["secretName"]]
        [mounted] = [each for each in container["volumeMounts"] if each["name"] == "urls"]
        for name, value in environment_of(container).items():
            assert "://" not in value
            if name.endswith("_FILE"):
                folder, _, key = value.rpartition("/")
                assert folder == mounted["mountPath"]
                assert key in keys


def test_ports_match() -> None:
    pods = {}
    for workload, container in containers():
        environment = environment_of(container)
        command = container["args"][0].upper()
        ports = {each["name"]: each["containerPort"] for each in container.get("ports", [])}
        set_to = {
            "metrics": environment.get(f"COUNTERSINK_{command}_METRICS_PORT"),
            "http": environment.get(f"COUNTERSINK_{command}_PORT"),
            "statsd": environment.get(f"COUNTERSINK_{command}_PORT"),
        }
        assert {name: set_to[name] for name in ports} == {
            name: str(port) for name, port in ports.items()
        }
        for probe in ("livenessProbe", "readinessProbe"):
            if ports:
                assert container[probe]["httpGet"]["port"] in ports
        pods[workload["metadata"]["name"]] = ports
    for service in of_kind("Service"):
        selected = pods[service["spec"]["selector"]["app.kubernetes.io/name"]]
        assert all(each["targetPort"] in selected for each in service["spec"]["ports"])
    every = {name for ports in pods.values() for name in ports}
    for policy in of_kind("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            assert {each["port"] for each in rule["ports"]} <= every


def test_names_that_policies_and_budgets_select_exist() -> None:
    names = {workload["metadata"]["name"] for workload, _ in containers()}
    for document in of_kind("NetworkPolicy", "PodDisruptionBudget"):
        text = yaml.safe_dump(document["spec"])
        selected = set(re.findall(r"app.kubernetes.io/name: (\S+)", text))
        selected |= set(re.findall(r"^ *- (countersink-\S+)$", text, re.MULTILINE))
        assert selected <= names
    budgets = {each["metadata"]["name"] for each in of_kind("PodDisruptionBudget")}
    assert budgets == {
        document["metadata"]["name"] for document in of_kind("Deployment", "StatefulSet")
    }


def test_processes_have_the_time_that_they_take_to_end() -> None:
    for workload, container in containers():
        if workload["kind"] == "Job":
            continue
        command = container["args"][0]
        grace = pod_of(workload)["terminationGracePeriodSeconds"]
        before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
        options = OPTIONS.get(command)
        takes: Any = HALF_MINUTE
        if options is not None:
            takes = {each.name: each.default for each in fields(options)}["stop_within_s"]
        assert grace >= takes + before.get("seconds", 0) + 2


def test_every_container_is_unprivileged_and_writes_only_where_it_must() -> None:
    for workload, container in containers():
        assert pod_of(workload)["securityContext"]["runAsNonRoot"] is True
        user = pod_of(workload)["securityContext"]["runAsUser"]
        assert f"USER {user}:" in (PROJECT / "Dockerfile").read_text()
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        spool = environment_of(container).get("COUNTERSINK_PRODUCER_SPOOL")
        if spool:
            places = [each["mountPath"] for each in container["volumeMounts"]]
            assert any(Path(spool).is_relative_to(place) for place in places)
        assert pod_of(workload)["automountServiceAccountToken"] is False


def test_memory_is_more_than_was_measured() -> None:
    for workload, container in containers():
        limit = int(container["resources"]["limits"]["memory"].removesuffix("Mi"))
        assert limit * 1.048 >= MEASURED_MEGABYTES * 1.5
        if "COUNTERSINK_PRODUCER_SPOOL" in environment_of(container):  # has a producer in it
            buffer = Options().max_bytes_in_memory / (1 << 20)
            assert limit >= buffer + MEASURED_MEGABYTES
            [claim] = workload["spec"]["volumeClaimTemplates"]
            assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
            assert Options().spool_max_bytes < 2 << 30


@pytest.mark.parametrize(
    "names",
    ["migrate worker web", pytest.param("migrate worker scheduler jobs web statsd", marks=ALL)],
)
def test_every_process_starts_as_it_is_told_to_and_is_ready(
    redis_url: str, mysql_url: str, tmp_path: Path, names: str
) -> None:
    """Command, variables and probes of each container, but on free ports."""
    migrate(mysql_url)
    urls = {"redis-url": redis_url, "jobs-redis-url": redis_url, "mysql-url": mysql_url}
    for name, url in urls.items():
        (tmp_path / name).write_text(url + "\n")
    made = call("key", "create", "me", "--scope", "admin", COUNTERSINK_MYSQL_URL=mysql_url)
    assert made.status == 0, made.err
    probes = []
    with Children() as children:
        for container in (each for _, each in containers() if each["args"][0] in names.split()):
            environment = {}
            ports = {str(each["containerPort"]): each for each in container.get("ports", [])}
            chosen = {number: free_port() for number in ports}
            for name, value in environment_of(container).items():
                if name.endswith("_FILE"):
                    value = str(tmp_path / value.rpartition("/")[2])
                elif name.endswith("_SPOOL"):
                    value = str(tmp_path / f"spool-{container['name']}")
                environment[name] = str(chosen.get(value, value))
            child = children.countersink(*container["args"], environment=environment)
            for probe in ("livenessProbe", "readinessProbe"):
                if probe in container:
                    asked = container[probe]["httpGet"]
                    [number] = [n for n, each in ports.items() if each["name"] == asked["port"]]
                    probes.append((child, f"http://127.0.0.1:{chosen[number]}{asked['path']}"))
        assert len(probes) == 2 * len(names.split()[1:])
        for child, url in probes:
            eventually(partial(_answers, url), 30, message=child.output)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # not listening yet, or 503
        return False
