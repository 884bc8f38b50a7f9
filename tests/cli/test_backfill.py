"""`countersink backfill`: what it asks, shows and ends with."""

import gzip
import json
import re
from pathlib import Path

import pytest

from countersink.database.connection import connect
from countersink.database.url import Settings
from tests.cli.command import Result, Servers, Start, answered, one_sentence, piped, redirected
from tests.logs.tailing import append, line, write
from tests.support.waiting import eventually

COUNTER = "page_views"

RECONCILE = ("--mode", "reconcile", "--grace", "0", "--from", "2026-11-20", "--to", "2026-11-21")


@pytest.fixture
def log(log: Path) -> Path:
    """A log of three hits."""
    write(log, "/a", "/b?x=1", "/b?x=2")
    return log


def backfill(servers: Servers, *arguments: str, **variables: str) -> Result:
    return servers.call("backfill", *arguments, "--counter", COUNTER, **variables)


def totals(servers: Servers) -> dict[str, int]:
    servers.apply()
    shown = servers.call("totals", COUNTER, "--by", "key", "--format", "json")
    if shown.status == 1:
        assert "nothing was ever counted" in shown.err.lower(), shown.err
        return {}
    return {row["key"]: row["total"] for row in shown.json["rows"]}


@pytest.mark.parametrize(("answer", "amount"), [("y", 12), ("n", 2)])
def test_amounts_are_asked_about_at_a_terminal(
    servers: Servers, tmp_path: Path, answer: str, amount: int
) -> None:
    (tmp_path / "a.csv").write_text("t,k,hits\n2026-05-12,/a,5\n2026-05-12,/b,7\n")
    columns = ("--key-column", "k", "--time-column", "t")
    asked = ("backfill", str(tmp_path / "a.csv"), "--counter", COUNTER, *columns)
    refused = servers.call(*asked)
    assert (refused.status, "--amount-column hits, or" in refused.err) == (1, True)
    for decided in ("--count-lines", "--amount-column=hits"):
        assert answered("", *asked, decided, "--dry-run", **servers.variables()).status == 0
    done = answered(answer, *asked, **servers.variables())
    assert (done.status, f"added {amount}." in done.out) == (0, True), done.err
    assert "Add up column 'hits' of " in done.err
    assert totals(servers) == ({"/a": 5, "/b": 7} if answer == "y" else {"/a": 1, "/b": 1})


def test_a_log_is_added_once(servers: Servers, log: Path) -> None:
    done = backfill(servers, str(log))
    assert (done.status, done.err) == (0, "")
    head, row, blank, said = done.out.splitlines()
    assert head.split() == [
        *("source", "outcome", "lines", "counted", "filtered", "rejected", "amount", "detail")
    ]
    assert row.split()[:7] == [str(log), "counted", "3", "3", "0", "0", "3"]
    assert blank == ""
    assert said.startswith("page_views: added 3. Run ")
    assert said.endswith(" undoes it.")
    again = backfill(servers, str(log))
    assert again.status == 0
    assert "page_views: added 0. 3 lines were counted before." in again.out
    write(log, "/a")
    assert "page_views: added 1. 3 lines" in backfill(servers, str(log)).out
    copy = log.with_suffix(".gz")
    copy.write_bytes(gzip.compress(log.read_bytes()))
    assert "page_views: added 0. 4 lines" in backfill(servers, str(copy)).out
    assert totals(servers) == {"/a": 2, "/b": 2}


def test_the_result_as_json(servers: Servers, log: Path) -> None:
    done = backfill(servers, str(log), "--format", "json")
    assert done.status == 0
    run = done.json["run"]
    assert done.json == {
        "run": run,
        "counter": COUNTER,
        "mode": "add",
        "state": "done",
        "lines": 3,
        "counted": 3,
        "filtered": 0,
        "rejected": 0,
        "amount": 3,
        "known_lines": 0,
        "corrections": 0,
        "by_day": [],
        "notices": [],
        "sources": [
            {
                "source": str(log),
                "outcome": "counted",
                "detail": done.json["sources"][0]["detail"],
                "lines": 3,
                "counted": 3,
                "filtered": 0,
                "rejected": 0,
                "amount": 3,
            }
        ],
        "drift": [],
    }
    said = [json.loads(each) for each in done.err.splitlines()]
    assert all(set(each) == {"progress"} for each in said)


def test_a_dry_run_changes_nothing(servers: Servers, log: Path) -> None:
    append(log, line("/c", minutes=180) + b"\nbad\n")
    done = backfill(servers, str(log), "--dry-run")
    assert done.status == 3
    shown = [each.split() for each in done.out.splitlines()]
    assert ["2026-11-20", "3"] in shown
    assert ["2026-11-21", "1"] in shown
    assert done.out.endswith("page_views: would add 4.\n")
    assert "countersink backfill: nothing was changed: this was a dry run\n" in done.err
    document = backfill(servers, str(log), "--dry-run", "--format", "json").json
    assert document["run"] is None
    assert document["by_day"] == [
        {"day": "2026-11-20", "amount": 3},
        {"day": "2026-11-21", "amount": 1},
    ]
    assert totals(servers) == {}
    assert servers.call("backfills", "list").out == "There are no backfills.\n"


def test_days_by_name(servers: Servers, log: Path) -> None:
    refused = backfill(servers, str(log), "--from", "today", "--to", "yesterday")
    assert "is after --to" in one_sentence(refused, 2)
    assert backfill(servers, str(log), "--from", "2026-W47", "--to", "2026-W47").status == 0
    assert sum(totals(servers).values()) == 3


def test_filters_and_a_template(servers: Servers, log: Path) -> None:
    write(log, "/style.css", "/old")
    done = backfill(
        servers, str(log), "--key", "{host}{target}", "--strip-query",
        "--where", "path!~/old*", "--exclude-key-glob", "*.css", "--format", "json",
    )  # fmt: skip
    assert (done.status, done.json["filtered"]) == (0, 2)
    assert totals(servers) == {"10.0.0.1/a": 1, "10.0.0.1/b": 2}


def test_other_options_for_a_known_source_are_refused(servers: Servers, log: Path) -> None:
    assert backfill(servers, str(log)).status == 0
    done = backfill(servers, str(log), "--strip-query")
    assert done.status == 1
    assert "undo" in done.err
    assert "Traceback" not in done.err
    assert totals(servers) == {"/a": 1, "/b": 2}


def test_rejected_lines_go_to_a_file_and_the_first_stay_to_be_shown(
    servers: Servers, log: Path, tmp_path: Path
) -> None:
    append(log, b"bad \xff\n")
    rejects = tmp_path / "rejects.ndjson"
    done = backfill(servers, str(log), "--rejects", str(rejects), "--format", "json")
    assert (done.status, done.json["rejected"], done.json["counted"]) == (3, 1, 3)
    (rejected,) = map(json.loads, rejects.read_text("utf-8").splitlines())
    assert (rejected["source"], rejected["line"]) == (str(log), 4)
    assert rejected["reason"]
    assert any(str(rejects) in notice for notice in done.json["notices"])
    run = str(done.json["run"])
    shown = servers.call("backfills", "show", run, "--rejects")
    assert f"{log} line 4: {rejected['reason']}: bad " in shown.out
    as_csv = servers.call("backfills", "show", run, "--rejects", "--format", "csv").out
    assert as_csv.splitlines()[0] == "source,line,reason,text"
    assert as_csv.splitlines()[1].startswith(f"{log},4,")
    as_json = servers.json("backfills", "show", run, "--rejects")
    assert ([each["line"] for each in as_json["rejects"]], as_json["more"]) == ([4], 0)
    append(log, b"bad\n" * 12)
    run = str(backfill(servers, str(log), "--format", "json").json["run"])
    *lines, last = servers.call("backfills", "show", run, "--rejects").out.splitlines()
    assert (len(lines), last) == (10, "2 more lines were rejected.")
    assert servers.json("backfills", "show", run, "--rejects")["more"] == 2


def test_a_rejects_file_that_must_not_be_written_is_wrong_usage(
    servers: Servers, log: Path, tmp_path: Path
) -> None:
    content = log.read_bytes()
    for source, rejects, said in (
        (str(log), log, "is one of the sources"),
        (str(log), tmp_path / "no" / "such", "cannot be written"),
        ("-", log, "is one of the sources (-)"),
    ):
        with redirected(log):
            assert said in one_sentence(backfill(servers, source, "--rejects", str(rejects)), 2)
    assert log.read_bytes() == content


def test_a_source_that_cannot_be_read_does_not_keep_others_from_being_counted(
    servers: Servers, log: Path, tmp_path: Path
) -> None:
    gone = str(tmp_path / "gone.log")
    done = backfill(servers, gone, str(log), COUNTERSINK_BACKFILL_JOBS="2")
    assert done.status == 1
    assert f"countersink backfill: {tmp_path / 'gone.log'}: " in done.err
    assert "failed" in done.out
    assert totals(servers) == {"/a": 1, "/b": 2}


def test_standard_input(servers: Servers, log: Path) -> None:
    content = gzip.compress(log.read_bytes())
    with piped(content):
        done = backfill(servers, "-")
    assert (done.status, done.err) == (0, "")
    assert "page_views: added 3." in done.out
    assert "added 0." in backfill(servers, str(log)).out, "known by its content"


def test_sigterm_ends_it_after_a_chunk_and_it_goes_on_later(
    servers: Servers, tmp_path: Path, start: Start
) -> None:
    log = tmp_path / "access.log"
    write(log, *(f"/{number % 7}" for number in range(20_000)))
    one = start("backfill", str(log), "--counter", COUNTER, "--rate", "2000", "--format", "json")
    eventually(lambda: totals(servers), message=one.output)
    one.terminate()
    assert one.wait() == 143, one.output()
    assert "run this again" in one.output()
    assert 0 < sum(totals(servers).values()) < 20_000
    rest = backfill(servers, str(log), "--format", "json").json
    assert rest["lines"] + rest["known_lines"] == 20_000
    assert rest["known_lines"] > 0
    assert sum(totals(servers).values()) == 20_000
    states = [run["state"] for run in servers.json("backfills", "list")["runs"]]
    assert states == ["done", "stopped"]


def test_a_reconcile_without_days_names_those_that_the_log_has_whole(
    servers: Servers, log: Path
) -> None:
    done = backfill(servers, str(log), "--mode", "reconcile")
    assert "give the first and the last day by --from and --to" in one_sentence(done, 1)
    assert "these sources have lines from 2026-11-20" in done.err


def test_reconcile_sets_what_was_lost_and_shows_it(servers: Servers, log: Path) -> None:
    """Of what is in the log, live traffic has lost one, and counted one too many."""
    for path, amount in (("/a", 2), ("/b", 1), ("/only-live", 5)):
        servers.call(
            "increment", COUNTER, path, "--amount", str(amount), "--at", "2026-11-20T22:00Z"
        )
    servers.apply()
    arguments = (str(log), *RECONCILE)
    dry = backfill(servers, *arguments, "--dry-run")
    assert dry.status == 0
    table = [each.split() for each in dry.out.splitlines()]
    assert ["day", "key", "had", "should", "be", "delta"] in table
    assert ["2026-11-20", "/a", "2", "1", "-1"] in table
    assert ["2026-11-20", "/b", "1", "2", "+1"] in table
    assert "page_views: would correct 2 totals, by +0 in total." in dry.out
    assert totals(servers) == {"/a": 2, "/b": 1, "/only-live": 5}
    done = backfill(servers, *arguments, "--format", "json")
    assert (done.status, done.json["corrections"], done.json["amount"]) == (0, 2, 0)
    fields = ("day", "bucket", "width", "key", "had", "should_be", "delta")
    corrected = [("/a", 2, 1, -1), ("/b", 1, 2, 1)]
    drift = [
        dict(zip(fields, ("2026-11-20", "2026-11-20T00:00", "day", *row), strict=True))
        for row in corrected
    ]
    assert done.json["drift"] == drift
    assert totals(servers) == {"/a": 1, "/b": 2, "/only-live": 5}
    run = str(done.json["run"])
    show = ("backfills", "show", run, "--drift")
    assert servers.json(*show) == {"run": int(run), "drift": drift}
    assert servers.call(*show, "--format", "csv").out.splitlines() == [
        ",".join(fields),
        "2026-11-20,2026-11-20T00:00,day,/a,2,1,-1",
        "2026-11-20,2026-11-20T00:00,day,/b,1,2,1",
    ]
    assert [each.split() for each in servers.call(*show).out.splitlines()][1:] == [
        ["2026-11-20", "/a", "2", "1", "-1"],
        ["2026-11-20", "/b", "1", "2", "+1"],
    ]
    missing = backfill(servers, *arguments, "--delete-missing")
    assert ["2026-11-20", "/only-live", "5", "0", "-5"] in [
        each.split() for each in missing.out.splitlines()
    ]
    assert totals(servers)["/only-live"] == 0


def test_the_counter_of_a_tracked_table_is_refused(
    servers: Servers, app_database_url: str, log: Path
) -> None:
    with connect(app_database_url) as app:
        app.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    schema = Settings.parse(app_database_url).database
    assert servers.call("track", f"{schema}.orders", "--counter", COUNTER).status == 0
    for mode in ("add", "reconcile"):
        done = backfill(servers, str(log), "--mode", mode)
        assert (done.status, "triggers" in done.err) == (2, True), mode
    assert servers.call("untrack", f"{schema}.orders").status == 0


def test_some_lines_may_be_rejected(servers: Servers, tmp_path: Path) -> None:
    """Two of four, for `backfill` and `tail` alike, by option and by setting."""
    log = tmp_path / "access.log"
    write(log, "/a", "/b")
    log.write_bytes(log.read_bytes() + b"nonsense\nmore nonsense\n")
    rejects = ("--rejects", str(tmp_path / "rejects"))
    for number, (allowed, status) in enumerate(
        [(None, 3), ("1", 3), ("2", 0), ("49%", 3), ("50%", 0), ("100%", 0)]
    ):
        given = () if allowed is None else ("--allow-rejects", allowed)
        command: tuple[str, ...]
        dry = ("backfill", str(log), "--dry-run", "--counter", f"filled{number}")
        tail = ("tail", str(log), "--counter")
        names = ("COUNTERSINK_BACKFILL_ALLOW_REJECTS", "COUNTERSINK_TAIL_ALLOW_REJECTS")
        if allowed is not None:
            for command in (dry, (*tail, f"set{number}")):
                done = servers.call(*command, **dict.fromkeys(names, allowed))
                assert done.status == status, (allowed, command, done.err)
        for command in (dry, (*dry[:2], *rejects, *dry[3:]), (*tail, f"tailed{number}")):
            done = servers.call(*command, *given)
            assert done.status == status, (allowed, command, done.err)
            assert command[0] == "tail" or "2 lines were rejected: " in done.err


@pytest.mark.parametrize("allowed", ["50", "100%"])
def test_a_run_that_rejected_lines_have_ended_is_not_done(
    servers: Servers, tmp_path: Path, allowed: str
) -> None:
    """However many may be rejected: what comes after them was not read."""
    log = tmp_path / "access.log"
    write(log, "/a", "/b")
    log.write_bytes(log.read_bytes() + b"nonsense\n" * 2)
    given = "--max-rejects", "1", "--allow-rejects", allowed
    for arguments in (("--dry-run",), ("--rejects", str(tmp_path / "rejects"))):
        done = backfill(servers, str(log), *given, *arguments)
        assert done.status == 3
        assert "the limit of rejected lines (1) is exceeded" in done.err


def test_lines_without_the_dimensions_of_their_counter_are_said_to_be(
    servers: Servers, log: Path
) -> None:
    declared = ("--dimensions", "status", "--breakdowns", "status")
    assert servers.call("counter", "set", COUNTER, *declared).status == 0
    for more in (["--dry-run"], []):
        done = backfill(servers, str(log), *more)
        assert done.status == 0
        assert "no --dimension, so totals by dimension lack them: page_views has status" in done.err
    empty = servers.call("totals", COUNTER, "--by", "status")
    assert "Nothing was counted in this range. What was counted without dimensions" in empty.out
    other = ("backfill", str(log), "--counter", "other", "--dimension", "status=status")
    servers.call("counter", "set", "other", *declared)
    assert servers.call(*other).err == ""


def test_rejected_lines_that_an_option_would_count_need_an_undo_first(
    servers: Servers, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("t,k,n\n2026-05-12T08:00Z,/a,1\n2026-05-12 08:00,/a,1\n")
    columns = ("--key-column", "k", "--time-column", "t", "--amount-column", "n")
    done = backfill(servers, str(tmp_path / "a.csv"), *columns)
    assert "it has no time zone; give one by --time-zone" in done.err
    assert re.search(r"other options need `countersink backfills undo \d+` first", done.err)
    (tmp_path / "b.csv").write_text("t,k,n\n2026-05-12T08:00Z,/a,1\n2026-05-12T08:00Z,/a,19.99\n")
    done = backfill(servers, str(tmp_path / "b.csv"), *columns)
    assert "'19.99' is no whole number of 64 bits; count a smaller unit, such as cents" in done.err
    assert "other options" not in done.err


def test_of_many_sources_that_cannot_be_read_the_first_are_named(
    servers: Servers, log: Path, tmp_path: Path
) -> None:
    unread = tmp_path / "unread"
    unread.mkdir()
    for number in range(8):
        (unread / f"{number}.bin").write_text("no log\n")
    done = backfill(servers, str(log), str(unread))
    assert done.status == 1
    assert "added 3." in done.out
    *named, more = done.err.splitlines()
    assert [f"{number}.bin: " in line for number, line in enumerate(named)] == [True] * 5
    assert more.endswith("3 more sources could not be read (see --format json)")
