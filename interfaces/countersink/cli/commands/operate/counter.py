"""``countersink counter``: flags, tables and texts of its commands ``list``, ``show``, ``set``,
``delete``, ``defaults``, ``strict`` and ``max-keys``.

See ``counting/counters/settings.py`` for the limits of a counter's settings, and for their errors.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Misuse
from countersink.cli.settings import values_checked
from countersink.cli.values import COUNTER, KEY, ZONE, Checked
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.counting.counters.all_counters import BETTER
from countersink.counting.counters.breakdowns import Breakdown, check_breakdowns, check_dimensions
from countersink.counting.counters.buckets import RESOLUTIONS
from countersink.counting.counters.keep_steps import FOREVER, by_width, parse, stored, text_of
from countersink.counting.counters.settings import (
    MAX_APP_SLOTS,
    NO_CAP,
    Counter,
    MaxKeys,
    check_max_keys,
)
from countersink.counting.visitors import MOST_SALT_DAYS
from countersink.reads.formats import breakdown_begins, counter_document
from countersink.runtime.texts import plural
from countersink.store import Store, UnknownCounter
from countersink.stream.errors import StreamError
from countersink.stream.names import remove_salts


def _max_keys(text: str) -> MaxKeys:
    if text == NO_CAP:
        return NO_CAP
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise ValueError(f"{text!r} is neither a number of keys nor {NO_CAP!r}")
    check_max_keys(int(text))
    return int(text)


STEPS: Final = Checked("steps", lambda text: text_of(parse(text)))
KEYS: Final = Checked("keys", _max_keys)


@click.group("counter", cls=settings.CommandGroup)
def command() -> None:
    """Make, configure, show and delete counters.

    A counter need not be made: its first count gives it the settings of `counter defaults`. Make it
    to choose its time zone, finer buckets, or how long buckets are kept.
    """


@command.command("list", cls=settings.Command)
@settings.mysql_options("table", "json")
def list_command() -> None:
    """List all counters and their settings, also counters that were never made by hand."""
    store = settings.open_store()
    counters = store.counters.list()
    documents = map(counter_document, counters)
    output.write_result({}, partial(_print_list, counters), last=("counters", documents))


@command.command("show", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.mysql_options("table", "json")
def show_command(name: str) -> None:
    """Show a counter's settings."""
    store = settings.open_store()
    _write(store.counters.show(name))


@command.command("set", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.one_off(
    "--time-zone",
    type=ZONE,
    help="Time zone of its days, fixed by the first count; initially as in `counter defaults`.",
)
@settings.one_off(
    "--resolution",
    type=click.Choice(RESOLUTIONS),
    help="Width of its new buckets; initially as in `counter defaults`. With quarters (of an hour)"
    " and minutes, days are exact in any time zone.",
)
@settings.one_off(
    "--keep",
    metavar="STEPS",
    type=STEPS,
    help="How long buckets of each width are kept before they become wider, such as"
    " minute=2d,hour=90d,day=400d: minutes for two days, then hours until 90 days, days until 400"
    " days, then months. Initially as in `counter defaults`.",
)
@settings.one_off(
    "--max-keys",
    metavar="KEYS",
    type=KEYS,
    help="Keys that one day may have; rows of further keys go to the key __overflow__. none: the"
    " number of `counter max-keys`; initially none.",
)
@settings.one_off(
    "--app-slots",
    type=click.IntRange(1, MAX_APP_SLOTS),
    help="Number of slots for the application's own transactions; initially 16.",
)
@settings.one_off(
    "--dimensions",
    metavar="NAME,…",
    type=Checked("dimensions", check_dimensions),
    help="Dimensions that its increments may have, such as page,country,device; none: no"
    " dimensions.",
)
@settings.one_off(
    "--breakdowns",
    multiple=True,
    metavar="NAME,… [NAME,…]…",
    help="All combinations of dimensions for which totals are kept, such as page country"
    " page,country; none: no breakdowns. A breakdown that is left out is deleted with its counts.",
)
@settings.one_off(
    "--unique",
    is_flag=True,
    help="Also count different members (totals --unique), with one salt for ever.",
)
@settings.one_off(
    "--salt-days",
    metavar="DAYS",
    type=click.IntRange(1, MOST_SALT_DAYS),
    help="Also count different members, with a new salt after this number of days: then members of"
    " two such spans cannot be compared, and there is no total over both. Times before the first"
    " salt ends have one salt.",
)
@settings.one_off(
    "--better",
    type=click.Choice(BETTER),
    help="Whether a rise is good (up), bad (down) or neither (none): the dashboard colours changes"
    " by it; initially up.",
)
@settings.one_off("--yes", is_flag=True, help="Do not ask before breakdowns are deleted.")
@click.argument("more", nargs=-1, metavar="")
@settings.mysql_options("table", "json")
def set_command(
    name: str,
    breakdowns: Sequence[str],
    unique: bool,
    salt_days: int | None,
    yes: bool,
    more: Sequence[str],
    **changes: Any,
) -> None:
    """Make a counter, or change the given settings.

    The counter's first count fixes its time zone. The resolution may change at any time: it applies
    to later counts, and earlier counts stay in their buckets. Workers apply changes at once.

    A new breakdown of a counter that has counts begins at the next midnight that is at least ten
    minutes ahead; the command prints that time. A breakdown that --breakdowns does not name is
    deleted with its counts; the command asks first, unless --yes is given. Increments with
    dimensions that were not declared become dead letters.
    """
    if more and not breakdowns:
        raise Misuse(f"{' '.join(more)!r}: only --breakdowns may have several words")
    wanted = (*breakdowns, *more) if breakdowns else None
    store = settings.open_store()
    with values_checked():
        if wanted is not None and (removed := _removed(store, name, check_breakdowns(wanted))):
            question = f"Delete the breakdowns {' '.join(removed)} of {name} for good?"
            output.confirm(yes, question, "nothing was changed")
        made = store.counters.set(
            name,
            breakdowns=wanted,
            salt_days=0 if unique and salt_days is None else salt_days,
            **changes,
        )
    _write(made)


@command.command("delete", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.one_off("--key", type=KEY, help="Only this key.")
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.mysql_options("text", "json")
@settings.urls("redis_url")
def delete_command(name: str, key: str | None, yes: bool) -> None:
    """Delete a counter, or one key of it, with all its counts, for good.

    Without --key, the counter's settings and salts are deleted as well. Increments that are counted
    later, also those that are in the queue now, count from 0. The command asks first, unless --yes
    is given. If it is interrupted, run it again.
    """
    shown = (
        f"counter {name}" if key is None else f"key {output.display(key) or repr(key)} of {name}"
    )
    store = settings.open_store()
    found = store.counters.show(name)  # before the question: UnknownCounter if there is none
    output.confirm(yes, f"Delete {shown} for good?", "nothing was deleted")
    deleted = store.counters.delete(name, key)
    if key is None and found.salt_days is not None:
        _remove_salts(name)
    output.write_result(
        {"counter": name, "key": key, **asdict(deleted)},
        f"deleted {shown}: {plural(deleted.rows, 'row')}, {deleted.amount:,} in total",
    )


def _remove_salts(counter: str) -> None:
    """Delete the salts of a deleted counter from Redis. Salts are random bytes with which producers
    hash visitors. If they stayed, producers would use them when the counter is made again. If Redis
    is not configured or fails, a notice says that they stay."""
    try:
        remove_salts(settings.open_queue("countersink-counter"), counter)
    except (Misuse, StreamError) as error:
        output.say(
            f"the salts of {counter} are still in Redis ({error}): before you make it again, let a"
            " worker run for 30 s, which deletes them"
        )


@command.command("strict", cls=settings.Command)
@click.argument("state", type=click.Choice(["on", "off"]), required=False)
@settings.mysql_options("text", "json")
def strict_command(state: str | None) -> None:
    """Show or switch strict mode.

    In strict mode, rows of counters that were never made or counted become dead letters with the
    reason unknown_counter; after `counter set`, `dead retry` counts them.
    """
    store = settings.open_store()
    if state is not None:
        store.counters.set_strict(state == "on")
    on = store.counters.strict()
    output.write_result(
        {"strict": on},
        "strict: rows of unknown counters become dead letters"
        if on
        else "not strict: rows of unknown counters are counted, by the settings of"
        " `countersink counter defaults`",
    )


@command.command("defaults", cls=settings.Command)
@settings.one_off("--time-zone", type=ZONE, help="Time zone of their days.")
@settings.one_off("--resolution", type=click.Choice(RESOLUTIONS), help="Width of their buckets.")
@settings.one_off(
    "--keep",
    metavar="STEPS",
    type=STEPS,
    help="How long their buckets are kept, such as hour=90d; see `counter set`. forever: no limit.",
)
@settings.mysql_options("table", "json")
def defaults_command(**changes: Any) -> None:
    """Show or set the settings of new counters.

    A counter gets them when `counter set` makes it or when it is counted for the first time, except
    those that `counter set` names. At first they are days in UTC, kept forever; `countersink up`
    chooses hours for the tables that it creates. A change applies at once. Counters that exist keep
    their settings.
    """
    counters = settings.open_store().counters
    given = " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in changes.items() if value
    )
    with values_checked():
        found = counters.set_defaults(**changes) if given else counters.defaults()
    time_zone, resolution, keep = found

    def write() -> None:
        shown = {"time zone": time_zone, "resolution": resolution, "keep": keep or FOREVER}
        output.write_facts(shown)
        if given:
            click.echo(
                "Counters that exist stay as they are; this changes one:\n"
                f"  countersink counter set NAME {given}"
            )

    steps = by_width(stored(keep)) or None
    output.write_result({"time_zone": time_zone, "resolution": resolution, "keep": steps}, write)


@command.command("max-keys", cls=settings.Command)
@click.argument("keys", type=KEYS, required=False)
@settings.mysql_options("text", "json")
def max_keys_command(keys: MaxKeys | None) -> None:
    """Show or set how many keys a day of a counter may have; none: any number.

    It applies to counters without a number of their own (`counter set --max-keys`). Rows of further
    keys are counted in the counter's key __overflow__. Keys that a day has already are still
    counted, even above the limit. Workers apply changes at once.
    """
    store = settings.open_store()
    if keys is not None:
        store.counters.set_max_keys(check_max_keys(keys))
    most = store.counters.max_keys()
    output.write_result(
        {"max_keys": most},
        "a day of a counter may have any number of keys"
        if most is None
        else f"a day of a counter may have {plural(most, 'key')}; rows of others go to {OVERFLOW}",
    )


def _removed(store: Store, name: str, wanted: Sequence[tuple[str, ...]]) -> list[str]:
    """Return, as texts, the breakdowns of the counter ``name`` that ``counter set`` is to delete:
    those whose dimensions are not in ``wanted``, the list of the breakdowns to keep or to make.
    Return an empty list if the counter does not exist."""
    try:
        present = store.counters.show(name).breakdowns
    except UnknownCounter:
        return []
    return [each.text for each in present if each.dimensions not in wanted]


def _write(counter: Counter) -> None:
    output.write_result(counter_document(counter), partial(_print_one, counter))


def _print_one(counter: Counter) -> None:
    """Print the settings of a counter as text."""
    facts = _cells(counter)
    if counter.salt_days is not None:
        facts["different members"] = _salts(counter.salt_days)
    if counter.dimensions:
        facts["dimensions"] = ", ".join(counter.dimensions)
        facts["breakdowns"] = ", ".join(map(_breakdown, counter.breakdowns)) or "none"
    output.write_facts(facts)


def _print_list(counters: Sequence[Counter]) -> None:
    """Print the settings of counters as a table."""
    columns = (
        *("counter", "-time zone", "-resolution", "-keep", "->max keys", "->overflown"),
        *("->app slots", "-rolled up to", "-made by hand"),
    )
    output.write_documents(columns, map(_cells, counters), otherwise="There are no counters.")


def _cells(counter: Counter) -> dict[str, object]:
    """Return the settings of a counter, for output as text, by the heading of each."""
    rolled = counter.rolled_up_to.items()
    return {
        "counter": counter.name,
        "time zone": counter.time_zone,
        "resolution": counter.resolution,
        "keep": text_of(counter.keep),
        "max keys": counter.most_keys,
        "overflown": counter.overflown,
        "app slots": counter.app_slots,
        "rolled up to": ", ".join(f"{width} {until:%Y-%m-%dT%H:%MZ}" for width, until in rolled)
        or None,
        "better": counter.better,
        "made by hand": counter.made,
    }


def _breakdown(breakdown: Breakdown) -> str:
    since = breakdown_begins(breakdown)
    return breakdown.text if since is None else f"{breakdown.text} (from {since} on)"


def _salts(days: int) -> str:
    if not days:
        return "counted, with one salt for ever"
    return f"counted, with a new salt every {'day' if days == 1 else f'{days} days'}"
