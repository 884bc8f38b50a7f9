"""`countersink backfills`: what there was, and taking one back."""

from pathlib import Path

import pytest

from tests.cli.command import Servers, one_sentence
from tests.cli.test_backfill import COUNTER, RECONCILE, backfill, totals
from tests.logs.tailing import append, line, write


@pytest.fixture
def log(log: Path) -> Path:
    """A log of three hits."""
    write(log, "/a", "/b", "/b")
    return log


def test_runs_are_listed_the_last_one_first(servers: Servers, log: Path) -> None:
    assert servers.call("backfills", "list").out == "There are no backfills.\n"
    first = backfill(servers, str(log), "--strip-query", "--format", "json").json["run"]
    append(log, b"bad\n" + line("/a"))
    second = backfill(
        servers, str(log), "--strip-query", "--rejects", "/dev/null", "--format", "json"
    ).json["run"]
    assert second > first
    shown = servers.call("backfills", "list")
    assert (shown.status, shown.err) == (0, "")
    head, *rows = [each.split() for each in shown.out.splitlines()]
    assert head[:5] == ["run", "counter", "mode", "state", "started"]
    assert [row[:4] for row in rows] == [
        [str(second), COUNTER, "add", "done"],
        [str(first), COUNTER, "add", "done"],
    ]
    runs = servers.json("backfills", "list", "--counter", COUNTER)["runs"]
    assert [run["run"] for run in runs] == [second, first]
    assert runs[1] | {"started": "", "seen": "", "ended": "", "holder": ""} == {
        "run": first,
        "counter": COUNTER,
        "mode": "add",
        "state": "done",
        "started": "",
        "seen": "",
        "ended": "",
        "holder": "",
        "bytes": log.stat().st_size - len(b"bad\n" + line("/a")),
        "lines": 3,
        "counted": 3,
        "filtered": 0,
        "rejected": 0,
        "amount": 3,
        "corrections": 0,
        "error": None,
        "options": {"input_format": "auto", "strip_query": True},
        "sources": [str(log)],
    }
    assert servers.call("backfills", "list", "--counter", "other").out.startswith("There are no")


def test_a_run_is_shown_with_what_it_read(servers: Servers, log: Path) -> None:
    other = log.with_name("other [red].log")
    write(other, "/c")
    done = backfill(
        servers, str(log), str(other), "--source-name", "web-1", "--where", "status=200",
        "--format", "json",
    )  # fmt: skip
    run = str(done.json["run"])
    shown = servers.call("backfills", "show", run)
    assert (shown.status, shown.err) == (0, "")
    assert "--where status=200" in shown.out
    assert f"{log} (web-1)" in shown.out
    assert f"{other} (web-1)" in shown.out
    document = servers.json("backfills", "show", run)
    assert [(one["source"], one["lines"], one["amount"]) for one in document["read"]] == [
        (str(log), 3, 3),
        (str(other), 1, 1),
    ]
    assert servers.call("backfills", "show", run, "--rejects").out == "No line was rejected.\n"


def test_undo_takes_exactly_that_run_back(servers: Servers, log: Path) -> None:
    run = str(backfill(servers, str(log), "--format", "json").json["run"])
    servers.call("increment", COUNTER, "/a", "--amount", "10", "--at", "2026-11-20T22:00Z")
    servers.apply()
    servers.call("compact", "--before", "2030-01-01")
    done = servers.call("backfills", "undo", run)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"run {run} is undone: page_views changed by -3,")
    assert totals(servers) == {"/a": 10}
    assert servers.call("verify").status == 0
    assert "was undone already, at" in one_sentence(servers.call("backfills", "undo", run), 1)
    assert backfill(servers, str(log), "--format", "json").json["amount"] == 3
    assert totals(servers) == {"/a": 11, "/b": 2}


def test_undo_of_the_newest_run_undoes_no_other_one(servers: Servers, log: Path) -> None:
    newest = ("backfills", "undo", "--last")
    assert "there are no backfills" in one_sentence(servers.call(*newest), 1)
    first = backfill(servers, str(log), "--format", "json").json["run"]
    write(log, "/c")
    last = backfill(servers, str(log), "--format", "json").json["run"]
    assert servers.call(*newest).out.startswith(f"run {last} is undone: page_views changed by -1,")
    assert totals(servers) == {"/a": 1, "/b": 2}
    assert f"{last} was undone already" in one_sentence(servers.call(*newest), 1)
    assert "or --last" in one_sentence(servers.call(*newest, str(first)), 2)
    assert "or --last" in one_sentence(servers.call("backfills", "undo"), 2)
    assert totals(servers) == {"/a": 1, "/b": 2}


def test_undo_as_json_and_of_a_reconcile(servers: Servers, log: Path) -> None:
    servers.call("increment", COUNTER, "/a", "--amount", "4", "--at", "2026-11-20T22:00Z")
    servers.apply()
    run = backfill(servers, str(log), *RECONCILE, "--format", "json").json["run"]
    assert totals(servers) == {"/a": 1, "/b": 2}
    done = servers.call("backfills", "undo", str(run), "--format", "json")
    assert done.status == 0
    assert (done.json["runs"], done.json["mode"]) == ([run], "reconcile")
    assert done.json["state"] == "undone"
    assert done.json["amount"] == 3 - 2
    assert totals(servers) == {"/a": 4}
