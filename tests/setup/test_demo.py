"""`make demo` with a small log: exits 0 only when what it counted is what the log holds."""

import re
import sys
from pathlib import Path

import pytest

from tests.clients.programs import output


@pytest.mark.long("a whole demonstration, with servers of its own")
def test_a_log_is_counted_exactly_though_a_worker_is_killed(tmp_path: Path) -> None:
    lines = [
        f"192.0.2.1 - - [{17 + n % 3}/May/2015:10:{n % 60:02}:00 +0000] "
        f'"GET /page/{n % 700} HTTP/1.1" 200 10 "-" "-"'
        for n in range(8000)
    ]
    lines[99] = "not a line of a log"
    log = tmp_path / "access.log"
    log.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "demo", "--log", str(log)]
    shown = " ".join(output(command, environment={"PYTHONIOENCODING": "utf-8"}).split())
    assert "SIGKILL for worker 1" in shown
    assert "lines in the log 8,000 rejected 1 accepted 7,999" in shown
    assert "counted in MariaDB 7,999 difference 0" in shown
    assert "line 100: " in shown
    assert "totals by day and by key: unchanged" in shown
    rows = re.search(r"rows before ([\d,]+) rows after ([\d,]+)", shown)
    assert rows is not None
    before, after = (int(figure.replace(",", "")) for figure in rows.groups())
    assert after == 2100, "one row for each of 700 keys and 3 days"
    assert before >= after, "how many workers took part is not known"
    assert "How to go on" in shown
