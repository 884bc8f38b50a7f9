"""Progress on stderr: a bar on a terminal, nothing elsewhere; never on stdout."""

import pytest

from countersink.backfill.options import Progress
from countersink.cli import output
from countersink.cli.commands.backfill import progress_text

Captured = pytest.CaptureFixture[str]


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")


def test_without_a_terminal_there_is_none(capsys: Captured) -> None:
    with output.progress_of_rows("counting") as shown:
        shown(500, 1000)
    assert capsys.readouterr() == ("", "")


def test_a_share_and_words_are_shown_beside_the_bar(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    with output.progress_bar("verifying") as show:
        show(None, "the rows of {x} [red]")
    assert "the rows of {x} [red]" in capsys.readouterr().err
    with output.progress_bar("compacting") as show:
        show(0.5, "500 of about 1,000 rows")
    out, err = capsys.readouterr()
    assert out == ""
    assert "50%" in err
    assert "500 of about 1,000 rows" in err


def test_how_far_a_backfill_is() -> None:
    half = Progress(doing="reading", source="a.log", done=50, size=100, lines=1000, rejected=2)
    assert progress_text(half) == (0.5, "1,000 lines, 2 rejected")
    assert progress_text(Progress(doing="reading", source="-", lines=7)) == (None, "7 lines")
    grown = Progress(doing="reading", done=120, size=100, lines=3000)  # it has grown meanwhile
    assert progress_text(grown) == (1.0, "3,000 lines")
    assert progress_text(Progress(doing="waiting")) == (None, "waiting for the queue")
    assert progress_text(Progress(doing="correcting")) == (None, "correcting")
