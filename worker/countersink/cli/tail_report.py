"""What ``countersink tail`` says: notices and rejected lines on stderr, the result on stdout."""

import click

from countersink.cli.output import write_json
from countersink.cli.text import printable
from countersink.producers.access_log import Rejected
from countersink.producers.tail_batch import Reporter, Summary


class Report(Reporter):
    """Says things as they happen, and keeps the first rejected lines for the result.

    Args:
        shown: how many rejected lines to show.
    """

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._kept: list[tuple[str, Rejected]] = []
        self._total = 0

    def notice(self, text: str) -> None:
        """A sentence on stderr."""
        click.echo(f"countersink tail: {printable(text)}", err=True)

    def rejected(self, path: str, rejected: Rejected) -> None:
        """A line on stderr for each of the first rejected lines."""
        self._total += 1
        if len(self._kept) < self._shown:
            self._kept.append((path, rejected))
            click.echo(
                f"rejected: {printable(path)} line {rejected.line}: {printable(rejected.reason)}",
                err=True,
            )
        elif len(self._kept) == self._total - 1 and self._shown:
            click.echo("rejected: further lines are counted, not shown", err=True)

    def close(self) -> None:
        """Say how many lines were rejected in all, if any."""
        if self._total:
            click.echo(f"rejected: {self._total} in all", err=True)

    def result(self, summary: Summary, counter: str, entries: int, output: str) -> None:
        """The result on stdout."""
        self.close()
        if output == "json":
            document = {
                "counter": counter,
                "counted": summary.counted,
                "rejected": summary.rejected,
                "left": summary.left,
                "entries": entries,
                "rejected_lines": [
                    {"file": path, "line": each.line, "reason": each.reason}
                    for path, each in self._kept
                ],
            }
            write_json(document)
            return
        parts = [f"counted {summary.counted:,}", f"rejected {summary.rejected:,}"]
        if summary.left:
            parts.append("left 1 without a newline for the next run")
        click.echo(f"{counter}: {', '.join(parts)}")
