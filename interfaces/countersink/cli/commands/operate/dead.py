"""``countersink dead list``, ``retry`` and ``drop``: their flags, columns and texts.

See ``counting/apply/dead.py`` for the selection of rows, ``counting/apply/dead_retry.py`` for
retries.
"""

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
from countersink.runtime.texts import plural
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
    kept as a dead row with its reason; the other rows of its batch are counted. REF names a dead
    row as in the list: its entry's id and :POSITION, or :-1 for an entire entry. The id without a
    position names all dead rows of the entry.
    """


def _selection(everything: str) -> Callable[[settings.Decorated], settings.Decorated]:
    """Decorator: REF..., --reason and --all; ``everything`` is the help of --all."""
    return settings.together(
        click.argument("refs", nargs=-1, type=REF, metavar="[REF]..."),
        settings.one_off("--reason", type=NAME, metavar="CODE", help="All rows with this reason."),
        settings.one_off("--all", "everything", is_flag=True, help=everything),
    )


def _selected(
    refs: Sequence[str], reason: str | None, everything: bool
) -> tuple[list[str] | None, str | None]:
    if sum((bool(refs), reason is not None, everything)) != 1:
        raise Misuse("give REF..., --reason CODE or --all")
    return list(refs) or None, reason


@command.command("list", cls=settings.Command)
@click.argument("refs", nargs=-1, type=REF, metavar="[REF]...")
@settings.one_off("--reason", type=NAME, metavar="CODE", help="Only rows with this reason.")
@settings.one_off("--limit", type=click.IntRange(1), default=100, help="Most rows to list.")
@settings.mysql_options("table", "json", "csv")
def list_command(refs: Sequence[str], reason: str | None, limit: int) -> None:
    """List dead rows, newest first.

    The first 10,000 rows of each reason and counter are kept, up to 64 MiB. Of later rows, only the
    number is kept: they cannot be retried. Rows that are retried or dropped make room for new ones.
    """
    database = settings.open_tables()
    rows = dead.list_rows(database, reason=reason, refs=list(refs) or None, limit=limit)
    by_reason = dead.count(database)
    not_kept = [
        {"reason": why, "counter": counter, "rows": number}
        for (why, counter), number in dead.not_kept(database).items()
    ]
    shown = [document(row) for row in rows]
    listed = {
        "rows": shown,
        "by_reason": by_reason,
        "total": sum(by_reason.values()),
        "not_kept": not_kept,
    }
    people = partial(_print, shown, by_reason, not_kept)
    output.write_result(listed, people, csv=(COLUMNS, shown))


@command.command("retry", cls=settings.Command)
@_selection("All rows except those with the reason too_old or reconciled.")
@settings.mysql_options("text", "json")
def retry_command(refs: Sequence[str], reason: str | None, everything: bool) -> int:
    """Retry dead rows: count each exactly once.

    Rows that fail again stay; the status is then 3. Rows with the reason too_old may be counted
    already, as their guards were deleted, and rows with the reason reconciled are in a total that a
    backfill has set: both are retried only with --reason or by their REF.
    """
    chosen, why = _selected(refs, reason, everything)
    database = settings.open_tables()
    done = retry(database, slot=any_slot(), decode=decode_payload, reason=why, refs=chosen)
    text = f"retried {done.retried:,} ({plural(done.rows, 'row')} counted), failed {done.failed:,}"
    if done.left_out:
        text += (
            f"\nleft out {done.left_out:,} with the reason too_old or reconciled, which may be"
            " counted already: --reason or REF retries them"
        )
    output.write_result(asdict(done), text)
    return Exit.DIFFERS if done.failed else Exit.DONE


@command.command("drop", cls=settings.Command)
@_selection("All rows.")
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.mysql_options("text", "json")
def drop_command(refs: Sequence[str], reason: str | None, everything: bool, yes: bool) -> None:
    """Delete dead rows for good: they are never counted.

    --all and --reason also forget the numbers of rows that were not kept, and ask first, unless
    --yes is given.
    """
    chosen, why = _selected(refs, reason, everything)
    if chosen is None:
        which = "all dead rows" if why is None else f"all dead rows with the reason {why}"
        output.confirm(yes, f"Delete {which} for good?", "nothing was deleted")
    database = settings.open_tables()
    dropped = dead.drop(database, reason=why, refs=chosen)
    output.write_result({"dropped": dropped}, f"dropped {plural(dropped, 'row')}")


def _print(
    rows: Sequence[output.Document], by_reason: dict[str, int], not_kept: Sequence[dict[str, Any]]
) -> None:
    if total := sum(by_reason.values()):
        output.write_documents(("ref", "reason", "created", "detail"), rows)
        reasons = ", ".join(f"{name} {number:,}" for name, number in by_reason.items())
        click.echo(f"{len(rows):,} of {total:,} shown; by reason: {reasons}")
    else:
        click.echo("There are no dead rows.")
    for one in not_kept:
        rows_of = f" of {one['counter']}" if one["counter"] else ""
        were = "was" if one["rows"] == 1 else "were"
        click.echo(f"{one['rows']:,} more{rows_of} {were} not kept: {one['reason']}")
