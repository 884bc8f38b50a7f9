"""Each log format, through `tail` and `backfill`, by day and by key."""

import json
from collections import Counter, defaultdict
from pathlib import Path

from tests.cli.command import Servers
from tests.support.log_samples import SAMPLES

KEY = "{host} {path} {status}"


def _totals(servers: Servers, counter: str, by: str) -> Counter[str]:
    rows = servers.rows(counter, "--by", by)
    return Counter({row[by]: row["total"] for row in rows if row["total"]})


def test_logs_as_their_writers_document_them(servers: Servers, tmp_path: Path) -> None:
    """A log of each format, in counters of its own."""
    for sample in SAMPLES:
        log = tmp_path / sample.name
        log.write_text(sample.text)
        options = (*sample.options, "--key", KEY)
        tailed = servers.call("tail", str(log), "--counter", f"tailed:{sample.name}", *options)
        said = f"counted {len(sample.expected)}, rejected {len(sample.bad)}\n"
        assert (tailed.out, tailed.status) == (f"tailed:{sample.name}: {said}", 3), tailed.err
        done = servers.call(
            *("backfill", str(log), "--counter", f"filled:{sample.name}", "--format", "json"),
            *(*options, "--rejects", str(tmp_path / "rejects.ndjson")),
        )
        assert done.status == 3, done.err
        found = done.json["counted"], done.json["rejected"]
        assert found == (len(sample.expected), len(sample.bad)), sample.name

        first = sample.expected[0][1:]
        left = servers.call(
            *("tail", str(log), "--counter", "some", *options, "--where", f"status={first[2]}"),
            *("--where", f"path={first[1]}"),
        )
        alike = sum(1 for _, _, path, status in sample.expected if (path, status) == first[1:])
        assert left.out.startswith(f"some: counted {alike}, rejected "), sample.name
    servers.apply()
    rows = map(json.loads, servers.call("export", "--all", "--format", "ndjson").out.splitlines())
    totals: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for row in rows:
        totals[row["counter"]][row["day"], row["key"]] += row["total"]
    for sample in SAMPLES:
        cells = Counter((day, " ".join(others)) for day, *others in sample.expected)
        assert len(cells) > 1
        for counter in (f"tailed:{sample.name}", f"filled:{sample.name}"):
            assert totals[counter] == cells, counter


def test_a_growing_log_goes_on_with_the_directive_that_was_in_force(
    servers: Servers, tmp_path: Path
) -> None:
    log = tmp_path / "u_ex020503.log"
    sample = next(each for each in SAMPLES if each.name == "iis")
    log.write_text("\n".join(sample.lines) + "\n")
    for number in (2, 1):
        counted = servers.call("tail", str(log), "--counter", "tailed", "--key", "path")
        assert counted.out == f"tailed: counted {number}, rejected 0\n", counted.err
        filled = servers.call("backfill", str(log), "--counter", "filled", "--key", "path")
        assert filled.out.rpartition("filled: ")[2].startswith(f"added {number}."), filled.err
        with log.open("a") as file:
            file.write("2002-05-04 00:00:00 /grown.htm 200 172.22.255.9\n")
    servers.apply()
    for counter in ("tailed", "filled"):
        assert _totals(servers, counter, "key") == {
            "/images/picture.jpg": 1,
            "/later.htm": 1,
            "/grown.htm": 1,
        }


HEAD = "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n#Fields: "


def _iis(day: str, *, columns: str = "date time c-ip cs-uri-stem sc-status", rows: int = 40) -> str:
    """A day's log of its own."""
    lines = [
        {
            "date": day,
            "time": f"10:{row:02}:00",
            "c-ip": f"192.0.2.{row}",
            "cs-uri-stem": f"/{day}/{row % 3}",
            "sc-status": "200",
        }
        for row in range(rows)
    ]
    names = columns.split()
    return (
        HEAD
        + columns
        + "\n"
        + "".join(" ".join(line[name] for name in names) + "\n" for line in lines)
    )


def test_logs_with_the_same_directives_are_different_logs_and_all_count(
    servers: Servers, tmp_path: Path
) -> None:
    days = ("2026-05-11", "2026-05-12")
    parts = [_iis(days[0]), _iis(days[1], columns="sc-status cs-uri-stem date time c-ip")]
    for name, part in zip("ab", parts, strict=True):
        (tmp_path / name).write_text(part)
        done = servers.call("backfill", str(tmp_path / name), "--counter", "hits")
        assert (done.status, done.out.rpartition("hits: ")[2][:9]) == (0, "added 40."), done.err
    (tmp_path / "all").write_text("".join(parts))
    again = servers.call("backfill", str(tmp_path / "all"), "--counter", "hits")
    assert again.status == 1
    assert "40 of the 40 different lines" in again.err
    assert "--from 2026-05-13" in again.err
    assert _totals(servers, "hits", "day") == dict.fromkeys(days, 40)
