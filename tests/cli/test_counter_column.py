"""`backfill --counter-column`: an export of several counters."""

from pathlib import Path

import pytest

from tests.cli.command import Servers

ROWS = {
    "views": {("2026-05-12", "/a"): 3, ("2026-05-13", "/b"): 4},
    "sales": {("2026-05-12", "book"): 5},
    "a:b": {("2026-05-13", ""): 6},
}


def _write(form: str, path: Path) -> tuple[str, ...]:
    lines = ["counter,day,key,total"] if form == "csv" else []
    for counter, cells in ROWS.items():
        for (day, key), total in cells.items():
            lines.append(
                f"{counter},{day},{key},{total}"
                if form == "csv"
                else f'{{"counter":"{counter}","day":"{day}","key":"{key}","total":{total}}}'
            )
    if form == "csv":
        lines += ["no name,2026-05-12,k,1", "views,2026-05-12", ",2026-05-12,k,1"]
    else:
        lines += ['{"counter":"no name","day":"2026-05-12","key":"k","total":1}', "[]", "{}"]
    bad = lines[1 if form == "csv" else 0].replace("2026-05-12", "2026-05-32")
    path.write_text("\n".join([*lines, bad]) + "\n")
    columns = ("--key-column", "key", "--time-column", "day", "--amount-column", "total")
    named = () if path.suffix else ("--input-format", form)
    return ("backfill", str(path), "--counter-column", "counter", *named, *columns)


@pytest.mark.parametrize(
    "form", ["csv", pytest.param("ndjson", marks=pytest.mark.long("another format, the same way"))]
)
def test_an_export_of_several_counters_counts_once_and_is_undone(
    form: str, servers: Servers, tmp_path: Path
) -> None:
    run = _write(form, tmp_path / "export")
    dry = servers.call(*run, "--dry-run", "--format", "json")
    assert (dry.status, dry.json["stray_lines"]) == (3, 3)
    amounts = {each["counter"]: each["amount"] for each in dry.json["runs"]}
    assert amounts == {counter: sum(cells.values()) for counter, cells in ROWS.items()}
    assert servers.call("totals", "views").status == 1

    done = servers.call(*run, "--format", "json")
    assert done.status == 3
    assert "counter name 'no name'" in done.err
    # What is of no counter is told of once, what is of one is rejected by its run.
    assert done.json["stray_lines"] == 3
    assert {each["counter"]: each["rejected"] for each in done.json["runs"]} == {
        counter: int(counter == "views") for counter in ROWS
    }
    again = servers.call(*run, "--format", "json")
    assert [each["amount"] for each in again.json["runs"]] == [0, 0, 0]
    for counter, cells in ROWS.items():
        for (day, key), total in cells.items():
            of_it = ("--key", key, "--from", day, "--to", day, "--by", "total")
            assert servers.rows(counter, *of_it) == [{"total": total}]
    number = next(each["run"] for each in done.json["runs"] if each["counter"] == "sales")
    assert servers.call("backfills", "undo", str(number)).status == 0
    assert servers.rows("sales", "--by", "total") == [{"total": 0}]
    once_more = servers.call(*run, "--format", "json")
    amounts = {each["counter"]: each["amount"] for each in once_more.json["runs"]}
    assert amounts == {"views": 0, "sales": 5, "a:b": 0}


def test_lines_that_two_exports_have_keep_no_other_counter_from_being_counted(
    servers: Servers, tmp_path: Path
) -> None:
    run = _write("csv", tmp_path / "export.csv")
    rows = [f"views,2026-05-{day},/a,1" for day in range(10, 30)]
    header = "counter,day,key,total"
    (tmp_path / "export.csv").write_text("\n".join([header, *rows, ""]))
    more = ["sales,2026-05-12,book,5", *rows, ""]
    (tmp_path / "other.csv").write_text("\n".join([header, *more]))
    done = servers.call(*run, str(tmp_path / "other.csv"), "--format", "json")
    amounts = {each["counter"]: each["amount"] for each in done.json["runs"]}
    assert (done.status, amounts) == (1, {"sales": 5, "views": 20})
    assert "are counted already, as lines of" in done.err


def test_strict_mode_and_wrong_usage(servers: Servers, tmp_path: Path) -> None:
    run = _write("csv", tmp_path / "export")
    assert servers.call("counter", "strict", "on").status == 0
    assert servers.call("counter", "set", "sales").status == 0
    done = servers.call(*run, "--dry-run", "--format", "json")
    assert [each["counter"] for each in done.json["runs"]] == ["sales"]
    assert "there is no counter 'views'" in done.err
    assert servers.call(*run, "--counter", "views").status == 2
    assert servers.call("backfill", "x").status == 2
    assert servers.call(*run, "--rejects", "x").status == 2
    piped = servers.call(*(word if word != run[1] else "-" for word in run))
    assert (piped.status, "save it to a file" in piped.err) == (1, True)
