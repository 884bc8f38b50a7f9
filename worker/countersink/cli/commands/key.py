"""``countersink key create|list|revoke``."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.database import session
from countersink.cli.failures import Failure, Misuse
from countersink.cli.types import MOMENT, TEXT, Checked
from countersink.store import api_keys

COLUMNS: Final = (
    "id",
    "name",
    "state",
    "scopes",
    "counters",
    "created",
    "expires",
    "last_used",
)
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}


def _expiry(text: str) -> datetime:
    match = re.fullmatch(r"([0-9]{1,5})([hdw])", text)
    if match is not None:
        return datetime.now(UTC) + timedelta(hours=int(match[1]) * _HOURS[match[2]])
    try:
        return MOMENT.convert(text, None, None)
    except click.BadParameter:
        raise ValueError(
            f"{text!r} is neither a time from now such as 12h, 90d or 8w, nor ISO 8601 with a zone,"
            " such as 2027-01-01T00:00:00Z"
        ) from None


EXPIRY: Final = Checked("time", _expiry)


@click.group("key", cls=settings.Group)
def command() -> None:
    """Make keys of the HTTP interface, see them, end them.

    A key is shown once, when it is made: the table has a hash of it. As soon as one was made, every
    request needs one, whatever becomes of it.
    """


@command.command("create", cls=settings.Command)
@click.argument("name", type=TEXT)
@settings.one_off(
    "--scope",
    "scopes",
    type=click.Choice(api_keys.SCOPES),
    multiple=True,
    required=True,
    help="What it is for: to count, to read, or all of it. Repeatable.",
)
@settings.one_off(
    "--counter",
    "counters",
    type=TEXT,
    multiple=True,
    metavar="PATTERN",
    help="Only for counters that fit this shell pattern, such as 'shop.*'. Repeatable.",
)
@settings.one_off(
    "--expires",
    type=EXPIRY,
    metavar="WHEN",
    help="90d, 12h, 8w, or ISO 8601.  [default: never]",
)
@settings.output_format("text", "json")
@settings.mysql_url
def create_command(
    name: str,
    scopes: Sequence[str],
    counters: Sequence[str],
    expires: datetime | None,
    format: str,
    mysql_url: str | None,
) -> None:
    """Make a key for NAME, and print it: it cannot be shown again."""
    with session(mysql_url) as database:
        try:
            key, text = api_keys.create(database, name, scopes, counters=counters, expires=expires)
        except ValueError as error:
            raise Misuse(str(error), click.get_current_context()) from error
    if format == "json":
        output.write_json({**_described(key), "key": text})
    else:
        click.echo(text)
        click.echo("Keep it: it is not shown again.", err=True)


@command.command("list", cls=settings.Command)
@settings.output_format("table", "json", "csv")
@settings.mysql_url
def list_command(format: str, mysql_url: str | None) -> None:
    """List all keys that were ever made, newest first; not what they read."""
    with session(mysql_url) as database:
        rows = [_described(key) for key in api_keys.list_keys(database)]
    if format == "json":
        output.write_json({"keys": rows})
    elif format == "csv":
        output.write_csv(COLUMNS, [_flat(row) for row in rows])
    elif not rows:
        click.echo("There are no keys.")
    else:
        table = output.table(dict.fromkeys(COLUMNS, False))
        for row in rows:
            flat = _flat(row)
            table.add_row(*(output.cell(flat[name]) for name in COLUMNS))
        output.write_table(table)


@command.command("revoke", cls=settings.Command)
@click.argument("which", type=TEXT, metavar="ID|NAME")
@settings.output_format("text", "json")
@settings.mysql_url
def revoke_command(which: str, format: str, mysql_url: str | None) -> None:
    """End a key for good, and the logins made with it: within two seconds it is refused."""
    with session(mysql_url) as database:
        try:
            key = api_keys.revoke(database, which)
        except api_keys.NoSuchKey as error:
            raise Failure(str(error)) from error
    if format == "json":
        output.write_json(_described(key))
    else:
        click.echo(f"revoked {key.id} ({output.cell(key.name)})")


def _described(key: api_keys.ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "state": _state(key),
        "scopes": list(key.scopes),
        "counters": list(key.counters),
        "created": _utc(key.created),
        "expires": _utc(key.expires),
        "revoked": _utc(key.revoked),
        "last_used": _utc(key.last_used),
    }


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "scopes": " ".join(row["scopes"]),
        "counters": " ".join(row["counters"]) or "all",
    }


def _state(key: api_keys.ApiKey) -> str:
    if key.revoked is not None:
        return "revoked"
    if key.expires is not None and key.expires <= datetime.now(UTC).replace(tzinfo=None):
        return "expired"
    return "valid"


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else output.iso(moment.replace(tzinfo=UTC))
