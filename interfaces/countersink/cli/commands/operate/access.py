"""``countersink key``, ``link`` and ``board``: their flags, tables and texts, and the reading of
expiry times such as ``90d`` and of items of boards such as ``orders,days=7``.

See ``store/api_keys.py``, ``store/links.py`` and ``store/boards.py`` for the rules of keys, links
and boards.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, get_args

import click
from msgspec import to_builtins

from countersink.cli import output, settings
from countersink.cli.errors import Misuse
from countersink.cli.settings import values_checked
from countersink.cli.values import API_KEY, COUNTER, LINK, MOMENT, NAME, TEXT, Checked
from countersink.counting.counters.all_counters import require
from countersink.runtime.limits import check_counter
from countersink.runtime.texts import iso, plural
from countersink.store import api_keys, boards, links

_KEY: Final = ("id", "name", "state", "scopes", "counters", "max_counters", "created", "expires")
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}


def _expiry(text: str) -> datetime:
    match = re.fullmatch(r"([0-9]{1,5})([hdw])", text)
    if match is not None:
        return datetime.now(UTC) + timedelta(hours=int(match[1]) * _HOURS[match[2]])
    try:
        return MOMENT.convert(text, None, None)
    except click.BadParameter:
        raise ValueError(
            f"{text!r} is neither a time from now, such as 12h, 90d or 8w, nor ISO 8601 with a time"
            " zone, such as 2027-01-01T00:00:00Z"
        ) from None


_EXPIRY: Final = Checked("time", _expiry)


@click.group("key", cls=settings.CommandGroup)
def key_group() -> None:
    """Create, list and revoke keys of the HTTP interface.

    A key is printed once, when it is created, as the database only has its hash. Which requests
    need a key does not depend on the keys: see `countersink web --help`.
    """


@key_group.command("create", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off(
    "--scope",
    "scopes",
    type=click.Choice(api_keys.SCOPES),
    multiple=True,
    required=True,
    help="What the key allows: counting, reading, or everything. Repeatable.",
)
@settings.one_off(
    "--counter",
    "counters",
    type=TEXT,
    multiple=True,
    metavar="PATTERN",
    help="Only for counters that match this shell pattern, such as 'shop.*'. Repeatable.",
)
@settings.one_off(
    "--max-counters",
    type=click.IntRange(1, api_keys.MAX_COUNTERS),
    metavar="N",
    help="Most different counters that the key may count in while a web server runs."
    "  [default: --max-counters of `countersink web`]",
)
@settings.one_off(
    "--expires",
    type=_EXPIRY,
    metavar="WHEN",
    help="When the key expires: 90d, 12h, 8w, or ISO 8601.  [default: never]",
)
@settings.mysql_options("text", "json")
def create_key(name: str, scopes: Sequence[str], **limits: Any) -> None:
    """Create a key for NAME, and print it: it cannot be shown again."""
    database = settings.open_tables()
    with values_checked():
        key, text = api_keys.create(database, name, scopes, **limits)
    output.write_result(_key_document(key) | {"key": text}, text)
    if settings.option_value("format") == "text":
        click.echo("Keep this key: it is not shown again.", err=True)


@key_group.command("list", cls=settings.Command)
@settings.mysql_options("table", "json", "csv")
def list_keys() -> None:
    """List all keys, also revoked and expired ones, newest first, without their texts."""
    database = settings.open_tables()
    rows = list(map(_key_document, api_keys.list_keys(database)))
    columns, flat = (*_KEY, "last_used"), list(map(_flat, rows))
    shown = [name if name in _KEY[:4] else f"-{name}" for name in columns]
    people = partial(output.write_documents, shown, flat, otherwise="There are no keys.")
    output.write_result({"keys": rows}, people, csv=(columns, flat))


@key_group.command("revoke", cls=settings.Command)
@click.argument("which", type=API_KEY, metavar="ID|NAME")
@settings.mysql_options("text", "json")
def revoke_key(which: str) -> None:
    """Revoke a key, and the logins made with it, for good: they are refused within two seconds."""
    database = settings.open_tables()
    key = api_keys.revoke(database, which)
    revoked = f"revoked {key.id} ({output.display(key.name)}): refused within two seconds"
    output.write_result(_key_document(key), revoked)


def _key_document(key: api_keys.ApiKey) -> dict[str, Any]:
    return output.document(key, (*_KEY, "revoked", "last_used"), state=_state(key))


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


_LINK_COLUMNS: Final = ("id", "counter", "board", "key", "created", "expires")
_DEFAULT_DAYS: Final = 7


@click.group("link", cls=settings.CommandGroup)
def link_group() -> None:
    """Create, list and revoke links that show a counter or a board without a key.

    Anyone who has a link sees all totals of its counter, or of the counters of its board, in the
    dashboard, and nothing else, until the link expires. A link made in the dashboard also ends when
    the key that made it ends.
    """


@link_group.command("create", cls=settings.Command)
@click.argument("counter", type=COUNTER, required=False)
@settings.one_off("--board", type=NAME, help="A board instead of a counter.")
@settings.one_off(
    "--expires",
    type=_EXPIRY,
    metavar="WHEN",
    help="When the link expires: 12h, 30d, 8w, or ISO 8601; within 366 days.  [default: 7d]",
)
@settings.setting(
    "--url", type=TEXT, help="URL of `countersink web` for people, which the link begins with."
)
@settings.mysql_options("text", "json")
def create_link(
    counter: str | None, board: str | None, expires: datetime | None, url: str | None
) -> None:
    """Create a link to COUNTER or to a board, and print it: it cannot be shown again.

    A link to a board shows the counters that the board has, also after a change of it.
    """
    if (counter is None) is (board is None):
        raise Misuse("give a COUNTER, or --board NAME")
    ends = expires or datetime.now(UTC) + timedelta(days=_DEFAULT_DAYS)
    database = settings.open_tables()
    with values_checked():
        if counter is None:
            made, token = links.create_to_board(database, board or "", ends)
        else:
            require(database, counter)
            made, token = links.create(database, counter, ends)
    link = f"{(url or '').rstrip('/')}{links.path_of(made, token)}"
    output.write_result(_link_document(made) | {"link": link}, link)
    if settings.option_value("format") == "text":
        until = iso(made.expires)
        click.echo(f"Anyone who has this link sees {counter or board} until {until}.", err=True)
        if not url:
            output.say("--url gives the link the URL of `countersink web`; here it is a path")


@link_group.command("list", cls=settings.Command)
@settings.mysql_options("table", "json", "csv")
def list_links() -> None:
    """List the valid links, without their texts."""
    database = settings.open_tables()
    rows = list(map(_link_document, links.list_links(database)))
    shown = ("id", "counter", "board", "-key", "-created", "expires")
    people = partial(output.write_documents, shown, rows, otherwise="There are no links.")
    output.write_result({"links": rows}, people, csv=(_LINK_COLUMNS, rows))


@link_group.command("revoke", cls=settings.Command)
@click.argument("id", type=LINK, required=False, metavar="ID|--all")
@settings.one_off("--all", "everything", is_flag=True, help="All links.")
@settings.mysql_options("text", "json")
def revoke_link(id: str | None, everything: bool) -> None:
    """Revoke a link, or all links, for good: they are refused within two seconds."""
    if (id is None) is not everything:
        raise Misuse("give one ID, or --all")
    database = settings.open_tables()
    number = 1
    if id is None:
        number = links.revoke_all(database)
    else:
        links.revoke(database, id)
    output.write_result({"revoked": number}, f"revoked {plural(number, 'link')}")


def _link_document(link: links.ShareLink) -> dict[str, Any]:
    names = {"counter": link.counter or None, "board": link.board or None}
    return output.document(link, _LINK_COLUMNS, key=link.api_key or None, **names)


_BOARD_COLUMNS: Final = ("board", "items", "author", "changed")
_ITEM_COLUMNS: Final = ("counter", "days", "width", ">top", "cumulative")
_ITEM_OPTIONS: Final[Mapping[str, Mapping[str, object]]] = {
    "days": {str(days or "all"): days for days in get_args(boards.Days)},
    "width": {width: width for width in get_args(boards.Width)},
    "top": {str(number): number for number in range(boards.MAX_TOP + 1)},
    "cumulative": {"": True},
}
"""The options of an item of a board: their values by text."""


def _item(text: str) -> boards.BoardItem:
    counter, *options = text.split(",")
    given: dict[str, Any] = {}
    for option in options:
        name, _, value = option.partition("=")
        values = _ITEM_OPTIONS.get(name)
        if values is None or name in given:
            raise ValueError(
                f"{option!r} in {text!r}: the options of a counter are days=, width=, top= and"
                " cumulative, each at most once"
            )
        if value not in values:
            known = f"0 to {boards.MAX_TOP}" if name == "top" else " or ".join(values)
            needed = f"is {known}" if known else "has no value"
            raise ValueError(f"{option!r} in {text!r}: {name} {needed}")
        given[name] = values[value]
    return boards.BoardItem(check_counter(counter), **given)


_NAME: Final = click.argument("name", type=NAME)
_ITEM_HELP: Final = (
    "ITEM: COUNTER[,days=1|7|30|90|365|all][,width=half|full][,top=KEYS][,cumulative], such as"
    " orders,days=7,top=5. Initially 30 days in half of the width; top lists the keys with the"
    " largest totals, cumulative shows running totals."
)
_ITEMS: Final = click.argument(
    "items", type=Checked("item", _item), metavar="ITEM…", nargs=-1, required=True
)


@click.group("board", cls=settings.CommandGroup)
def board_group() -> None:
    """Create, list, show, change and delete boards of the dashboard.

    A board is a page that shows several counters. countersink link create --board NAME makes a link
    to it.
    """


@board_group.command("create", cls=settings.Command, epilog=_ITEM_HELP)
@_NAME
@_ITEMS
@settings.mysql_options("table", "json")
def create_board(name: str, items: tuple[boards.BoardItem, ...]) -> None:
    """Create the board NAME, which shows each ITEM in this order."""
    database = settings.open_tables()
    with values_checked():
        _write_board(boards.create(database, name, items))


@board_group.command("list", cls=settings.Command)
@settings.mysql_options("table", "json", "csv")
def list_boards() -> None:
    """List all boards, with the number of their items."""
    database = settings.open_tables()
    rows = [_board_document(each, len(each.items)) for each in boards.list_boards(database)]
    people = partial(output.write_documents, _BOARD_COLUMNS, rows, otherwise="There are no boards.")
    output.write_result({"boards": rows}, people, csv=(_BOARD_COLUMNS, rows))


@board_group.command("show", cls=settings.Command)
@_NAME
@settings.mysql_options("table", "json")
def show_board(name: str) -> None:
    """Show the items of a board."""
    _write_board(boards.show(settings.open_tables(), name))


@board_group.command("set", cls=settings.Command, epilog=_ITEM_HELP)
@_NAME
@_ITEMS
@settings.mysql_options("table", "json")
def set_board(name: str, items: tuple[boards.BoardItem, ...]) -> None:
    """Replace the items of the board NAME.

    Links to the board show the counters of the new items within two seconds, and no others.
    """
    database = settings.open_tables()
    with values_checked():
        _write_board(boards.change(database, name, items))


@board_group.command("delete", cls=settings.Command)
@_NAME
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.mysql_options("text", "json")
def delete_board(name: str, yes: bool) -> None:
    """Delete a board, and the links to it. Its counters stay.

    The command asks first, unless --yes is given.
    """
    database = settings.open_tables()
    boards.show(database, name)  # before the question: NoSuchBoard if there is none
    output.confirm(yes, f"Delete the board {name} and its links?", "nothing was deleted")
    boards.delete(database, name)
    output.write_result({"board": name}, f"deleted board {name}")


def _write_board(board: boards.Board) -> None:
    items: list[dict[str, Any]] = to_builtins(board.items)
    rows = [item | {"days": item["days"] or "all"} for item in items]
    people = partial(output.write_documents, _ITEM_COLUMNS, rows)
    output.write_result(_board_document(board, items), people)


def _board_document(board: boards.Board, items: object) -> dict[str, Any]:
    author = board.author or None
    return output.document(board, _BOARD_COLUMNS, board=board.name, author=author, items=items)
