"""Progress on stderr: lines where it is no terminal, a bar where it is; never on stdout."""

import pytest

from countersink.cli import progress


def test_without_a_terminal_it_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress.rows("track", "counting") as shown:
        for done in range(1000):
            shown(done, 1000)  # nothing: ten seconds have not passed
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with progress.rows("track", "counting") as shown:
        shown(500, 1000)
        shown(2000, 1500)
        shown(0, 0)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "countersink track: 50%, 500 of about 1,000 rows",
        "countersink track: 99%, 2,000 of about 2,000 rows",
        "countersink track: 0%, 0 of about 0 rows",
    ]


def test_on_a_terminal_it_is_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress.rows("track", "counting {x} [red]") as shown:
        shown(500, 1000)
    out, err = capsys.readouterr()
    assert out == ""
    assert "counting {x} [red]" in err
    assert "500 of about 1,000 rows" in err


def test_what_is_looked_at_is_shown_likewise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress.looking("verify", "verifying") as shown:
        shown("0 of 3 counters")
    assert capsys.readouterr() == ("", "")
    with monkeypatch.context() as at_once:
        at_once.setattr(progress, "LINE_EVERY_S", 0.0)
        with progress.looking("verify", "verifying") as shown:
            shown("0 of 3 counters")
    assert capsys.readouterr() == ("", "countersink verify: 0 of 3 counters\n")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress.looking("verify", "verifying") as shown:
        shown("the rows of {x} [red]")
    out, err = capsys.readouterr()
    assert out == ""
    assert "verifying the rows of {x} [red]" in err
