"""How far a backfill is: lines, JSON for machines, a bar on a terminal; never on stdout."""

import json

import pytest

from countersink.backfill.options import Progress
from countersink.cli import progress

HALF = Progress(doing="reading", source="a.log", done=50, size=100, lines=1000, rejected=2, jobs=3)


def test_without_a_terminal_it_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress.backfill(as_json=False) as show:
        show(HALF)  # nothing: ten seconds have not passed
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with progress.backfill(as_json=False) as show:
        show(Progress(doing="waiting"))
        show(Progress(doing="reading", source="-"))
        show(HALF)
        show(Progress(doing="reading", done=120, size=100, lines=3000))  # it has grown meanwhile
        show(Progress(doing="correcting"))
    out, err = capsys.readouterr()
    waiting, unknown, half, end, correcting = err.splitlines()
    assert out == ""
    assert waiting == "countersink backfill: waiting for what is in the queue"
    assert "%" not in unknown
    assert half.startswith("countersink backfill: reading, 50%, 1,000 lines (")
    assert "2 rejected, 3 jobs, about " in half
    assert "reading, 100%, 3,000 lines" in end
    assert correcting == "countersink backfill: correcting"


def test_as_json_it_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.backfill(as_json=True) as show:
        show(HALF)
        show(HALF)  # too soon after the first
    out, err = capsys.readouterr()
    assert out == ""
    assert [json.loads(line) for line in err.splitlines()] == [
        {
            "progress": {
                "doing": "reading",
                "source": "a.log",
                "done": 50,
                "size": 100,
                "lines": 1000,
                "counted": 0,
                "filtered": 0,
                "rejected": 2,
                "jobs": 3,
                "lines_per_s": None,
                "seconds_left": None,
            }
        }
    ]


def test_on_a_terminal_it_is_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "REDRAW_EVERY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    with progress.backfill(as_json=False) as show:
        show(Progress(doing="waiting"))
        show(Progress(doing="reading", source="-", lines=7))
        show(HALF)
    out, err = capsys.readouterr()
    assert out == ""
    assert "50%" in err
    assert "1,000 lines" in err
