"""The output of the demo: steps with their times, figures, a bar for each day, and the top 10
keys."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import date

from rich.console import Console
from rich.table import Table

BAR_WIDTH = 36


class Report:
    """Prints to stdout, on a terminal in colour."""

    def __init__(self) -> None:
        on_terminal = sys.stdout.isatty()
        self._console = Console(highlight=False, width=None if on_terminal else 100)
        self._begun = time.monotonic()
        try:
            "█".encode(sys.stdout.encoding or "ascii")
            self._block, self._dash = "█", "·"
        except UnicodeEncodeError:
            self._block, self._dash = "#", "-"

    def title(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/bold]\n")

    def step(self, text: str) -> None:
        """Print a step that is done, with the seconds since the start."""
        seconds = time.monotonic() - self._begun
        self._console.print(f"[dim]{seconds:6.1f} s[/dim]  {text}", soft_wrap=True)

    def error(self, text: str) -> None:
        Console(stderr=True, highlight=False, markup=False).print(f"demo: {text}", soft_wrap=True)

    def figures(self, rows: Sequence[tuple[str, int]], difference: int) -> None:
        """Print named figures, and last the difference, which has to be 0."""
        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column(justify="right")
        for name, value in rows:
            table.add_row(name, f"{value:,}")
        colour = "bold green" if difference == 0 else "bold red"
        table.add_row(f"[{colour}]difference[/]", f"[{colour}]{difference:,}[/]")
        self._console.print()
        self._console.print(table)

    def days(self, counter: str, daily: Sequence[tuple[date, int]]) -> None:
        """Print the totals by day, with bars."""
        most = max((total for _, total in daily), default=0) or 1
        table = Table(title=f"{counter}, by day", title_justify="left", box=None, pad_edge=False)
        table.add_column("day")
        table.add_column("total", justify="right")
        table.add_column("")
        for day, total in daily:
            bar = self._block * round(BAR_WIDTH * max(total, 0) / most)
            table.add_row(f"{day:%a} {day.isoformat()}", f"{total:,}", f"[cyan]{bar}[/cyan]")
        self._console.print()
        self._console.print(table)

    def top(self, counter: str, rows: Sequence[tuple[str, int]]) -> None:
        """Print the keys with the largest totals."""
        table = Table(title=f"{counter}, top 10", title_justify="left", box=None, pad_edge=False)
        table.add_column("", justify="right")
        table.add_column("key", overflow="fold")
        table.add_column("total", justify="right")
        for place, (key, total) in enumerate(rows, start=1):
            table.add_row(str(place), key.replace("[", r"\["), f"{total:,}")
        self._console.print()
        self._console.print(table)

    def lines(self, heading: str, lines: Sequence[str]) -> None:
        """Print lines under a heading."""
        self._console.print(f"\n[bold]{heading}[/bold]")
        for line in lines:
            self._console.print(f"  {line}", soft_wrap=True, markup=False)
