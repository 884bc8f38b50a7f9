"""Tables of many rows: laid out without rich, and as it does it."""

import pytest
from rich.console import Console

from countersink.cli import output


def printed(capsys: pytest.CaptureFixture[str], rows: int) -> list[str]:
    output.write_rows(
        ("counter", ">total", "größe", ""),
        (
            (f"c{number % 100:03d}", 7 ** (number % 9), "日本" * (number % 3), "▏")
            for number in range(rows)
        ),
    )
    return capsys.readouterr().out.splitlines()


def test_a_long_table_is_laid_out_as_a_short_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = printed(capsys, 200)
    assert len(short) == 201
    monkeypatch.setattr(output, "_BY_RICH", 100)
    assert printed(capsys, 200) == short


def test_a_long_table_is_not_laid_out_by_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("rich was asked")

    monkeypatch.setattr(Console, "print", refuse)
    assert len(printed(capsys, 20_000)) == 20_001


def test_rows_are_written_as_a_table_of_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ("counter", ">total", "")
    rows = [(f"c{number % 100:03d}", 7 ** (number % 9), "日本") for number in range(200)]
    table = output.table(columns)
    for counter, total, text in rows:
        table.add_row(counter, f"{total:,}", text)
    output.console().print(table)
    wanted = capsys.readouterr().out
    output.write_rows(columns, rows)
    assert capsys.readouterr().out == wanted
    monkeypatch.setattr(output, "_BY_RICH", 100)
    output.write_rows(columns, rows)
    assert capsys.readouterr().out == wanted
    output.write_rows(columns, [])
    assert capsys.readouterr().out.split() == ["counter", "total"]
