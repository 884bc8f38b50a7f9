"""Tables of many rows: laid out without rich, and as it does it."""

import pytest
from rich.console import Console

from countersink.cli import output

COLUMNS = ("counter", ">total", "größe", "")


def rows(number: int) -> list[tuple[str, int, str, str]]:
    return [(f"c{n % 100:03d}", 7 ** (n % 9), "日本" * (n % 3), "▏") for n in range(number)]


def test_a_long_table_is_not_laid_out_by_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("rich was asked")

    monkeypatch.setattr(Console, "print", refuse)
    output.write_rows(COLUMNS, rows(20_000))
    assert len(capsys.readouterr().out.splitlines()) == 20_001


def test_rows_are_written_as_a_table_of_them_short_or_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = output.table(COLUMNS)
    for counter, total, *texts in rows(200):
        table.add_row(counter, f"{total:,}", *texts)
    output.console().print(table)
    wanted = capsys.readouterr().out
    assert len(wanted.splitlines()) == 201
    output.write_rows(COLUMNS, rows(200))
    assert capsys.readouterr().out == wanted
    monkeypatch.setattr(output, "_BY_RICH", 100)
    output.write_rows(COLUMNS, rows(200))
    assert capsys.readouterr().out == wanted
    output.write_rows(COLUMNS, [])
    assert capsys.readouterr().out.split() == ["counter", "total", "größe"]
