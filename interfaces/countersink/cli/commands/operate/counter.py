"""``countersink counter``: flags, tables and texts of list, show, set, delete, strict and max-keys;
limits and refusals of settings are in ``counting/counters/settings.py``."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Misuse, values_checked
from countersink.cli.settings import COUNTER, KEY, ZONE, Checked
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.counting.counters.breakdowns import Breakdown, check_breakdowns, check_dimensions
from countersink.counting.counters.buckets import RESOLUTIONS
from countersink.counting.counters.keep_steps import parse, text_of
from countersink.counting.counters.settings import (
    MAX_APP_SLOTS,
    NO_CAP,
    Counter,
    MaxKeys,
    check_max_keys,
)
from countersink.counting.visitors import MOST_SALT_DAYS
from countersink.reads.formats import breakdown_begins, counter_document
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

    You need not make a counter: by default it counts days in UTC and keeps them forever. Make it to
    choose its time zone, finer buckets, or how long buckets are kept.
    """


@command.command("list", cls=settings.Command)
@settings.of_mysql("table", "json")
def list_command() -> None:
    """List all counters that were made or counted, and their settings."""
    store = settings.open_store()
    counters = store.counters.list()
    documents = map(counter_document, counters)
    output.write_result({}, partial(_print_list, counters), last=("counters", documents))


@command.command("show", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.of_mysql("table", "json")
def show_command(name: str) -> None:
    """Show a counter's settings."""
    store = settings.open_store()
    found = store.counters.show(name)
    _write(found)


@command.command("set", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.one_off(
    "--time-zone",
    type=ZONE,
    help="Time zone whose midnights begin its days; initially UTC, and fixed by the first count.",
)
@settings.one_off(
    "--resolution",
    type=click.Choice(RESOLUTIONS),
    help="Width of the buckets that it counts in; initially day. Quarters (of an hour) and minutes"
    " give exact days in any time zone.",
)
@settings.one_off(
    "--keep",
    metavar="STEPS",
    type=STEPS,
    help="How long buckets of each width are kept before they become wider ones, such as"
    " minute=2d,hour=90d,day=400d: minutes for two days, then hours until 90 days, days until 400"
    " days, then months. Initially forever.",
)
@settings.one_off(
    "--max-keys",
    metavar="KEYS",
    type=KEYS,
    help="Keys that a day of it may have; rows of others go to the key __overflow__. none: as for"
    " all counters; initially none.",
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
    help="Dimensions that its increments may have, such as page,country,device; none: none.",
)
@settings.one_off(
    "--breakdowns",
    multiple=True,
    metavar="NAME,… [NAME,…]…",
    help="All combinations of them of which totals are to be kept, such as page country"
    " page,country; none: none. One that is left out is deleted, with its counts.",
)
@settings.one_off(
    "--unique",
    is_flag=True,
    help="Count its different members, too (totals --unique), with one salt for ever.",
)
@settings.one_off(
    "--salt-days",
    metavar="DAYS",
    type=click.IntRange(1, MOST_SALT_DAYS),
    help="The same with another salt every so many days: then nobody can tell which members of two"
    " such spans are the same, and there is no total over both.",
)
@settings.one_off("--yes", is_flag=True, help="Do not ask before breakdowns are deleted.")
@click.argument("more", nargs=-1, metavar="")
@settings.of_mysql("table", "json")
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

    The time zone is fixed by the counter's first count. The resolution may be changed at any time:
    it is for what is counted from then on, and what was counted stays in its buckets. Workers apply
    changes at once.

    A breakdown that is added to a counter which was counted already holds the events from the next
    midnight on that is at least ten minutes ahead; it is shown. One that --breakdowns does not name
    any more is deleted with its counts; the command asks first, unless --yes is given. Increments
    that have other dimensions are dead letters.
    """
    if more and not breakdowns:
        raise Misuse(f"{' '.join(more)!r}: only breakdowns (--breakdowns) may be several words")
    wanted = (*breakdowns, *more) if breakdowns else None
    store = settings.open_store()
    with values_checked():
        if wanted is not None and (gone := _removed(store, name, check_breakdowns(wanted))):
            question = f"Delete the breakdowns {' '.join(gone)} of {name} for good?"
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
@settings.of_mysql("text", "json")
@settings.urls("redis_url")
def delete_command(name: str, key: str | None, yes: bool) -> None:
    """Delete a counter, or one key of it, with all its counts, for good.

    The counter's settings go too, its salts also from Redis. Increments counted later, even those
    already in the queue, count from 0. The command asks first, unless --yes is given. If it is
    interrupted, run it again.
    """
    shown = f"counter {name}" if key is None else f"key {output.cell(key) or repr(key)} of {name}"
    store = settings.open_store()
    found = store.counters.show(name)  # nobody is asked about what is not there
    output.confirm(yes, f"Delete {shown} for good?", "nothing was deleted")
    deleted = store.counters.delete(name, key)
    if key is None and found.salt_days is not None:
        _remove_salts(name)
    output.write_result(
        {"counter": name, "key": key, **asdict(deleted)},
        f"deleted {shown}: {deleted.rows:,} rows, in all {deleted.amount:,}",
    )


def _remove_salts(counter: str) -> None:
    """Take the salts of a deleted counter out of Redis, so that no producer which begins now hashes
    with them, should it be made again.
    """
    try:
        remove_salts(settings.open_queue("countersink-counter"), counter)
    except (Misuse, StreamError) as error:
        output.say(
            f"the salts of {counter} are still in Redis ({error}): do not make it again before a"
            " worker has run for 30 s, to take them out"
        )


@command.command("strict", cls=settings.Command)
@click.argument("state", type=click.Choice(["on", "off"]), required=False)
@settings.of_mysql("text", "json")
def strict_command(state: str | None) -> None:
    """Show or switch strict mode.

    In strict mode, rows of counters that were never made or counted before go to the dead letters,
    as unknown_counter; after `counter set`, `dead retry` counts them.
    """
    store = settings.open_store()
    if state is not None:
        store.counters.set_strict(state == "on")
    on = store.counters.strict()
    output.write_result(
        {"strict": on},
        "strict: rows of unknown counters go to the dead letters"
        if on
        else "not strict: a counter that nobody has made counts days in UTC",
    )


@command.command("max-keys", cls=settings.Command)
@click.argument("keys", type=KEYS, required=False)
@settings.of_mysql("text", "json")
def max_keys_command(keys: MaxKeys | None) -> None:
    """Show or set how many keys a day of a counter may have; none: any number.

    It applies to counters without a number of their own (`counter set --max-keys`). Rows of further
    keys are counted in the key __overflow__ of the counter. Keys that a day already has go on being
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
        else f"a day of a counter may have {most:,} keys; rows of others go to {OVERFLOW}",
    )


def _removed(store: Store, name: str, wanted: Sequence[tuple[str, ...]]) -> list[str]:
    """The breakdowns of a counter that are not wanted any more."""
    try:
        there = store.counters.show(name).breakdowns
    except UnknownCounter:
        return []
    return [each.text for each in there if each.dimensions not in wanted]


def _write(counter: Counter) -> None:
    output.write_result(counter_document(counter), partial(_print_one, counter))


def _print_one(counter: Counter) -> None:
    """A counter for people."""
    facts = _cells(counter)
    if counter.salt_days is not None:
        facts["different members"] = _salts(counter.salt_days)
    if counter.dimensions:
        facts["dimensions"] = ", ".join(counter.dimensions)
        facts["breakdowns"] = ", ".join(map(_breakdown, counter.breakdowns)) or "none"
    output.write_facts(facts)


def _print_list(counters: Sequence[Counter]) -> None:
    """Counters for people, one line each."""
    columns = (
        *("counter", "time zone", "resolution", "keep", ">max keys", ">overflown", ">app slots"),
        *("rolled up to", "made by hand"),
    )
    output.write_documents(columns, map(_cells, counters), otherwise="There are no counters.")


def _cells(counter: Counter) -> dict[str, object]:
    """What is shown of every counter."""
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
        "made by hand": counter.made,
    }


def _breakdown(breakdown: Breakdown) -> str:
    since = breakdown_begins(breakdown)
    return breakdown.text if since is None else f"{breakdown.text} (from {since} on)"


def _salts(days: int) -> str:
    if not days:
        return "counted, with one salt for ever"
    return f"counted, with another salt every {'day' if days == 1 else f'{days} days'}"
