"""The table of metrics: Prometheus' conventions, and the documents say what it says."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from countersink.metrics.table import METRICS, MetricSpec
from tests.metrics.reference import HEADINGS, PAGE, page
from tests.support.processes import PROJECT

ALERTS = PROJECT / "ops" / "prometheus" / "alerts.yml"
ALERTS_TEST = PROJECT / "ops" / "prometheus" / "alerts_test.yml"
DASHBOARD = PROJECT / "ops" / "grafana" / "countersink.json"
OURS = re.compile(r"\bcountersink_[a-z_]+\b(?!\.)")

BOUNDED = {
    "version",
    "process",
    "server",
    "state",
    "outcome",
    "status",
    "reason",
    "job_name",
}
"""Labels whose values are ours, and few: none is a counter or a key."""


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_names_and_labels_follow_the_conventions(metric: MetricSpec) -> None:
    assert re.fullmatch(r"countersink(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.help.endswith(".")
    assert set(metric.labels) <= BOUNDED
    # Prometheus adds these itself, and renames ours where they meet.
    assert not {"job", "instance"} & set(metric.labels)
    for word in ("ms", "milliseconds", "minutes", "kilobytes"):
        assert word not in metric.name.split("_")
    if "age" in metric.name.split("_") or "duration" in metric.name or "timestamp" in metric.name:
        assert metric.name.endswith("_seconds")


def test_the_documentation_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python -m tests.metrics.reference"
    assert {metric.where for metric in METRICS.values()} == set(HEADINGS)


@cache
def expressions() -> dict[str, str]:
    """Every PromQL expression of ours, by where it stands."""
    found: dict[str, str] = {}
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for number, rule in enumerate(group["rules"]):
            found[f"{rule['alert']} {number}"] = rule["expr"]
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", []):
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    return found


@pytest.mark.parametrize("where", expressions())
def test_every_metric_that_is_asked_for_exists(where: str) -> None:
    expression = expressions()[where]
    names = set(OURS.findall(expression))
    assert names or expression.startswith("up{"), expression
    for name in names:
        assert name in METRICS or re.sub(r"_(sum|count)$", "", name) in METRICS, name
    for name, labels in re.findall(r"(countersink_[a-z_]+)\{([^}]*)\}", expression):
        known = METRICS.get(name) or METRICS[re.sub(r"_(sum|count)$", "", name)]
        asked = set(re.findall(r"(\w+)\s*[=!]", labels))
        assert asked <= {*known.labels, "job", "instance"}, expression


def test_every_alert_says_what_to_do_and_is_documented_and_tested() -> None:
    documented, tested = PAGE.read_text("utf-8"), ALERTS_TEST.read_text("utf-8")
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            assert set(rule["annotations"]) == {"summary", "description"}
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert f"| `{rule['alert']}` |" in documented
            assert f'alertname="{rule["alert"]}"' in tested or (
                f"alertname: {rule['alert']}\n        exp_alerts" in tested
            )


def test_alerts_are_silent_in_a_test_that_has_all_of_their_metrics() -> None:
    well = yaml.safe_load(ALERTS_TEST.read_text("utf-8"))["tests"][0]
    assert well["promql_expr_test"][0]["exp_samples"] == []
    there = {each["series"].partition("{")[0] for each in well["input_series"]}
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            assert set(OURS.findall(rule["expr"])) <= there, rule["alert"]


def test_grafana_knows_all_that_the_dashboard_says() -> None:
    """By the types that Grafana makes of its schema: they drop what they do not know."""
    why = "grafana-foundation-sdk is not installed (of the extra dev)"
    sdk = "grafana_foundation_sdk"
    dashboard = pytest.importorskip(f"{sdk}.models.dashboard", reason=why).Dashboard
    pytest.importorskip(f"{sdk}.cog.plugins").register_default_plugins()
    encoder = pytest.importorskip(f"{sdk}.cog.encoder").JSONEncoder
    text = DASHBOARD.read_text("utf-8")
    known = json.loads(json.dumps(dashboard.from_json(json.loads(text)), cls=encoder))
    assert unknown(json.loads(text), known) == []


def unknown(said: object, known: object, where: str = "") -> list[str]:
    """The members of a document that a second one lacks, or has otherwise."""
    if isinstance(said, dict) and isinstance(known, dict):
        pairs = [(said[name], known.get(name), name) for name in said]
    elif isinstance(said, list) and isinstance(known, list) and len(said) == len(known):
        pairs = [(*pair, str(number)) for number, pair in enumerate(zip(said, known, strict=True))]
    else:
        return [] if said == known else [where]
    return [each for one, other, name in pairs for each in unknown(one, other, f"{where}/{name}")]


def test_the_commands_and_metrics_of_the_documents_exist() -> None:
    for document in ("docs/metrics.md", "README.md", "worker/README.md", "CHANGELOG.md"):
        text = Path(PROJECT, document).read_text("utf-8")
        for name in set(re.findall(r"`(countersink_[a-z_]+)", text)):
            assert name in METRICS, f"{document}: {name}"


def test_the_alerts_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    for what, file in (("check", ALERTS), ("test", ALERTS_TEST)):
        done = subprocess.run(
            [promtool, what, "rules", str(file)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
