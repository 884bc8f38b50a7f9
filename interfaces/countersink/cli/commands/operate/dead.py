"""``countersink dead list, retry, drop``: flags, columns and texts; which rows are selected:
``counting/apply/dead.py``; what a retry counts: ``counting/apply/dead_retry.py``."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Exit, Misuse
from countersink.cli.settings import NAME, Checked
from countersink.counting.apply import dead
from countersink.counting.apply.dead import document
from countersink.counting.apply.dead_retry import retry
from countersink.database.lease import any_slot
from countersink.stream.decode import decode_payload

COLUMNS: Final = ("ref", "reason", "detail", "stream", "at", "created", "payload", "truncated")


def _ref(text: str) -> str:
    dead.parse_ref(text)
    return text


REF: Final = Checked("ref", _ref)


@click.group("dead", cls=settings.CommandGroup)
def command() -> None:
    """List, retry or drop rows that could not be counted.

    A row that cannot be counted (a bad key, an undeclared dimension, an entry of a newer format) is
    set aside with its reason; everything else in its batch is counted. REF names a row as list
    shows it: an entry's id and :POSITION, which is :-1 for an entry as a whole. The id alone names
    all rows of that entry.
    """


def _selection(everything: str) -> Callable[[settings.Decorated], settings.Decorated]:
    """REF..., --reason and --all; ``everything`` says what the last one means."""
    return settings.together(
        click.argument("refs", nargs=-1, type=REF, metavar="[REF]..."),
        settings.one_off("--reason", type=NAME, metavar="CODE", help="All rows with this reason."),
        settings.one_off("--all", "everything", is_flag=True, help=everything),
    )


def _selected(
    refs: Sequence[str], reason: str | None, everything: bool
) -> tuple[list[str] | None, str | None]:
    if sum((bool(refs), reason is not None, everything)) != 1:
        raise Misuse("say which: REF..., --reason CODE or --all")
    return list(refs) or None, reason


@command.command("list", cls=settings.Command)
@click.argument("refs", nargs=-1, type=REF, metavar="[REF]...")
@settings.one_off("--reason", type=NAME, metavar="CODE", help="Only rows with this reason.")
@settings.one_off("--limit", type=click.IntRange(1), default=100, help="Most rows to list.")
@settings.of_mysql("table", "json", "csv")
def list_command(refs: Sequence[str], reason: str | None, limit: int) -> None:
    """List dead rows, newest first.

    Of one reason and counter the first 10,000 are kept, or 64 MiB of them. Of those that come after
    them there is only the number: they cannot be retried. Once some were retried or dropped, there
    is room again.
    """
    database = settings.open_tables()
    rows = dead.list_rows(database, reason=reason, refs=list(refs) or None, limit=limit)
    by_reason = dead.count(database)
    not_kept = [
        {"reason": why, "counter": counter, "rows": number}
        for (why, counter), number in dead.not_kept(database).items()
    ]
    shown = [document(row) for row in rows]
    found = {
        "rows": shown,
        "by_reason": by_reason,
        "total": sum(by_reason.values()),
        "not_kept": not_kept,
    }
    say = partial(_print, shown, by_reason, not_kept)
    output.write_result(found, say, csv=(COLUMNS, shown))


@command.command("retry", cls=settings.Command)
@_selection("All rows except those that are too_old or reconciled.")
@settings.of_mysql("text", "json")
def retry_command(refs: Sequence[str], reason: str | None, everything: bool) -> int:
    """Retry dead rows: count each exactly once.

    Rows that fail again stay; the status is then 3. Rows that are too_old may be counted already,
    as their guards are gone, and rows that are reconciled are in a total that a backfill has set:
    both are retried only with --reason or by their REF.
    """
    chosen, why = _selected(refs, reason, everything)
    database = settings.open_tables()
    done = retry(database, slot=any_slot(), decode=decode_payload, reason=why, refs=chosen)
    said = f"retried {done.retried:,} ({done.rows:,} rows counted), failed {done.failed:,}"
    if done.left_out:
        said += (
            f"\nleft out {done.left_out:,} with the reason too_old or reconciled, which may be"
            " counted already: --reason, or their refs, retry them"
        )
    output.write_result(asdict(done), said)
    return Exit.DIFFERS if done.failed else Exit.DONE


@command.command("drop", cls=settings.Command)
@_selection("All rows.")
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.of_mysql("text", "json")
def drop_command(refs: Sequence[str], reason: str | None, everything: bool, yes: bool) -> None:
    """Delete dead rows for good: they are never counted.

    With --all or --reason the numbers of those that were not kept are forgotten as well, and the
    command asks first; --yes does it without asking.
    """
    chosen, why = _selected(refs, reason, everything)
    if chosen is None:
        which = "all dead rows" if why is None else f"all dead rows with the reason {why}"
        output.confirm(yes, f"Delete {which} for good?", "nothing was deleted")
    database = settings.open_tables()
    dropped = dead.drop(database, reason=why, refs=chosen)
    output.write_result({"dropped": dropped}, f"dropped {dropped:,}")


def _print(
    rows: Sequence[output.Row], by_reason: dict[str, int], not_kept: Sequence[dict[str, Any]]
) -> None:
    if total := sum(by_reason.values()):
        output.write_documents(("ref", "reason", "created", "detail"), rows)
        reasons = ", ".join(f"{name} {number:,}" for name, number in by_reason.items())
        click.echo(f"{len(rows):,} of {total:,} shown; by reason: {reasons}")
    else:
        click.echo("There are no dead rows.")
    for one in not_kept:
        of = f" of {one['counter']}" if one["counter"] else ""
        click.echo(f"{one['rows']:,} more{of} were not kept: {one['reason']}")
