"""Shell completion: the command ``countersink completion``, and the reading of names from the
database. Errors about an unknown name suggest one of these names, too."""

import shlex
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from countersink.backfill import history
from countersink.cli import settings
from countersink.cli.errors import Failure
from countersink.cli.output import printable
from countersink.counting.counters.all_counters import counter_names
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.row_counts import definitions
from countersink.runtime.errors import ExplainedError
from countersink.runtime.texts import did_you_mean
from countersink.schedules import runs
from countersink.sequences import records
from countersink.store import api_keys, links

LIMIT_S: Final = 1.0
"""Seconds that a shell waits for names; without an answer it completes none."""


def _tracked(session: Session) -> Iterable[str]:
    for one in definitions.read_all(session):
        yield from (one.name, one.counter)


def _api_keys(session: Session) -> Iterable[str]:
    for one in api_keys.list_keys(session):
        if one.revoked is None:
            yield from (one.id, one.name)


_NAMES: Final[dict[str, Callable[[Session], Iterable[str]]]] = {
    "counter": counter_names,
    "sequence": lambda session: (one.name for one in records.read_all(session, b"")),
    "tracked table": _tracked,
    "job": runs.jobs,
    "run": lambda session: (str(one.id) for one in history.runs(session)),
    "API key": _api_keys,
    "link": lambda session: (one.id for one in links.list_links(session)),
}
"""The function that reads all names of a kind. A kind is the name of a type of parameters, such as
:data:`COUNTER`."""


def names(context: click.Context, kind: str) -> list[str]:
    """Return the names of a kind, such as ``counter`` (a key of ``_NAMES``), in the database at
    ``--mysql-url``. Return an empty list if the kind is unknown or no URL is configured. If the
    database fails or takes longer than ``LIMIT_S`` seconds, return only the names read until then,
    usually none."""
    found: list[str] = []
    url = settings.shared_value(context, "mysql_url")

    def read() -> None:
        # a shell shows nothing but names, and an error is not replaced by another one
        with (
            suppress(Exception),
            open_tables(url or "") as session,
            session.transaction(snapshot=True),
        ):
            found.extend(_NAMES[kind](session))

    if url and kind in _NAMES:
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(LIMIT_S)
    return found[:]


def completion_items(context: click.Context, kind: str, begin: str) -> list[CompletionItem]:
    """Return the names of a kind that begin with the text ``begin``, for the shell. Names that need
    quotes are left out: a shell would insert them without quotes, and ``$(date)`` would run."""
    return [
        CompletionItem(name)
        for name in names(context, kind)
        if name.startswith(begin) and shlex.quote(name) == name
    ]


def suggest(context: click.Context, error: LookupError) -> None:
    """Add the note "did you mean …?" to the error of a command, for each value of an argument or
    option that should be a name, such as a counter's, and is not in the database but is similar to
    a name there (see :func:`names`). The note becomes a part of the sentence that is printed.
    Errors other than :class:`ExplainedError` and :class:`Failure` get no notes."""
    if not isinstance(error, ExplainedError | Failure):
        return
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        given = [*filter(None, value if isinstance(value, tuple) else (value,))]
        known = names(context, parameter.type.name) if given else []
        for name in given:
            if name not in known and (hint := did_you_mean(str(name), known)):
                error.add_note(printable(hint))


@click.command("completion", cls=settings.Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script by which a shell completes commands and names.

    Names of counters, sequences, tracked tables, jobs, backfills, keys and links come from the
    database, if it answers within a second.
    """
    completion = get_completion_class(shell)
    assert completion is not None
    root = click.get_current_context().find_root().command
    click.echo(completion(root, {}, "countersink", settings.COMPLETION_VARIABLE).source())
