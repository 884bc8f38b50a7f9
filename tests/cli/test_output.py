"""Tables that fit terminals, and keys from outside, made safe to print."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.cli.output import bar, printable, write_rows
from countersink.reads.formats import for_spreadsheet

FORMULA = "=+-@\t\r\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home", "/home"),
        ("/ä/😀", "/ä/😀"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc\0", "a\\x0ab\\x09c\\x00"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
        ("\u200b", "\\u200b"),
        ("\x9b31m", "\\x9b31m"),
        ("\udcff", "\\udcff"),
        ("\\x1b", "\\\\x1b"),
        ("\U000e0041", "\\U000e0041"),
        ("[red]", "[red]"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.lists(st.text(max_size=20), min_size=2, max_size=2, unique=True))
def test_two_keys_never_look_alike_by_escaping(pair: list[str]) -> None:
    assert printable(pair[0]) != printable(pair[1])


@pytest.mark.parametrize("start", FORMULA)
def test_a_formula_is_made_text(start: str) -> None:
    assert for_spreadsheet(f"{start}1+1") == f"'{start}1+1"
    assert for_spreadsheet(f"/{start}") == f"/{start}"


@given(st.text(alphabet=f"{FORMULA}'a", max_size=6))
def test_of_a_formula_made_text_the_text_can_be_told(text: str) -> None:
    shown = for_spreadsheet(text)
    assert shown.removeprefix("'") == text
    assert not shown.startswith(tuple(FORMULA))


@pytest.mark.parametrize(
    ("value", "largest", "shown"),
    [(0, 10, ""), (-5, 10, ""), (10, 10, "█" * 40), (5, 10, "█" * 20), (1, 10**9, "▏")],
)
def test_bars_are_in_proportion(value: int, largest: int, shown: str) -> None:
    assert bar(value, largest) == shown


def test_columns_stand_under_each_other_however_wide_characters_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_rows(("counter", ">total", "größe"), [("日本", 7_000, "x"), ("abc\x1b", None, "")])
    assert capsys.readouterr().out.splitlines() == [
        "counter  total  größe",
        "日本     7,000  x",
        "abc\\x1b      -",
    ]


class Terminal(io.StringIO):
    """A terminal of as many columns as ``COLUMNS`` says."""

    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> Terminal:
    """Let stdout be a terminal of this width."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    return terminal


RUNS = [("compact", 1, "日本語 the server has gone away and came back", 12_000)]
COLUMNS = ("job", ">attempts", "detail", "->rows")


def test_a_pipe_gets_whole_tables(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(COLUMNS, RUNS)
    assert capsys.readouterr().out.splitlines() == [
        "job      attempts  detail                                           rows",
        "compact         1  日本語 the server has gone away and came back  12,000",
    ]


def test_a_terminal_wraps_at_spaces_and_then_leaves_out_what_is_least_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = at_terminal(monkeypatch, 50)
    write_rows(COLUMNS, RUNS)
    assert terminal.getvalue().splitlines() == [
        "job      attempts  detail                     rows",
        "compact         1  日本語 the server has    12,000",
        "                   gone away and came back",
    ]
    terminal = at_terminal(monkeypatch, 40)
    write_rows(COLUMNS, RUNS)
    assert terminal.getvalue().splitlines() == [
        "job      attempts  detail",
        "compact         1  日本語 the server has",
        "                   gone away and came",
        "                   back",
        "Not shown: rows (--format json has",
        "them).",
    ]


@given(
    st.lists(st.lists(st.text("ab ", max_size=60), min_size=4, max_size=4), max_size=4),
    st.integers(1, 120),
)
def test_no_word_is_broken_and_no_line_is_too_long_unless_a_word_is(
    rows: list[list[str]], width: int
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        terminal = at_terminal(monkeypatch, width)
        write_rows(("w", "-x", "y", "->z"), rows)
    lines = terminal.getvalue().splitlines()
    words = {word for row in rows for text in row for word in text.split()}
    assert {word for line in lines[1:] for word in line.split() if set(word) <= {*"ab"}} <= words
    if width >= 2 * max(20, *map(len, words), 20) + 2:  # two columns may not be left out
        assert max(map(len, lines)) <= width


def test_bars_are_shorter_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    at_terminal(monkeypatch, 60)
    assert len(bar(10, 10)) == 20


LONG = "/home/" + "x" * 100
KEYS = [("/b", 7, bar(7, 7)), (LONG, 3, ""), ("日本" * 40, 1, "")]


def test_a_terminal_shows_long_keys_without_their_middle_and_keeps_the_bars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = at_terminal(monkeypatch, 80)
    write_rows(("~key", ">total", "- "), KEYS)
    head, short, cut, wide = terminal.getvalue().splitlines()
    assert head == "key" + " " * 28 + "  total"
    assert short == f"/b{' ' * 29}      7  {'█' * 40}"
    assert cut == f"/home/xxxxxxxxx…{'x' * 15}      3"
    assert wide == "日本日本日本日 … 本日本日本日本      1"


def test_a_long_key_in_a_pipe_is_whole_and_widens_no_other_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_rows(("~key", ">total"), [row[:2] for row in KEYS])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"/b{' ' * 58}      7"
    assert lines[2] == f"{LONG}      3"
