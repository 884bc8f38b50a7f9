"""``countersink counter``: flags, tables and texts of list, show, set, delete, strict and max-keys;
limits and refusals of settings are in ``store/counters/settings.py``."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from functools import partial
from typing import Final, TypeVar

import click

from countersink.cli import output, progress, settings
from countersink.cli.errors import Misuse, values_checked
from countersink.cli.settings import COUNTER, KEY, ZONE, Checked
from countersink.reads.formats import breakdown_begins, counter_document, policy_begins
from countersink.store import Store, UnknownCounter
from countersink.store.apply.key_caps import OVERFLOW
from countersink.store.counters import buckets
from countersink.store.counters.breakdowns import Breakdown, check_breakdowns, check_dimensions
from countersink.store.counters.buckets import RESOLUTIONS, Resolution
from countersink.store.counters.counters import Counter
from countersink.store.counters.keep_steps import parse, text_of
from countersink.store.counters.policies import DEFAULT, Policy
from countersink.store.counters.settings import (
    FOREVER,
    MAX_APP_SLOTS,
    NO_CAP,
    KeepDays,
    MaxKeys,
    check_keep_days,
    check_max_keys,
)
from countersink.store.visitors.salts import MOST_SALT_DAYS
from countersink.stream.connection import connect
from countersink.stream.errors import StreamError
from countersink.stream.names import remove_salts

Word = TypeVar("Word", bound=str)

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _number_or(word: Word, what: str, check: Callable[[int], object]) -> Checked[int | Word]:
    def read(text: str) -> int | Word:
        if text == word:
            return word
        if re.fullmatch(r"[0-9]{1,9}", text) is None:
            raise ValueError(f"{text!r} is neither a number of {what} nor {word!r}")
        check(int(text))
        return int(text)

    return Checked(what, read)


def _start(text: str) -> datetime | date:
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a day, such as 2026-11-21, nor ISO 8601, such as"
            " 2026-11-21T08:00+01:00"
        ) from None
    if moment.utcoffset() is None:
        raise ValueError(
            f"{text!r} has no time zone, and guessing one would begin at the wrong hour: "
            "add Z or an offset, such as +01:00"
        )
    return moment


DAYS: Final = _number_or(FOREVER, "days", check_keep_days)
STEPS: Final = Checked("steps", lambda text: text_of(parse(text)))
KEYS: Final = _number_or(NO_CAP, "keys", check_max_keys)
START: Final = Checked("time", _start)


@click.group("counter", cls=settings.CommandGroup)
def command() -> None:
    """Make, configure, show and delete counters.

    You need not make a counter: by default it counts days in UTC and keeps them forever. Make it to
    choose its time zone, finer buckets, or how long single days are kept.
    """


@command.command("list", cls=settings.Command)
@settings.of_mysql("table", "json")
def list_command(format: str, mysql_url: str | None) -> None:
    """List all counters that were made or counted, and their settings."""
    with Store(settings.needed(mysql_url, "mysql")) as store:
        counters = store.counters.list()
    if format == "json":
        output.write_json_list({}, "counters", map(counter_document, counters))
    else:
        _print_list(counters)


@command.command("show", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.of_mysql("table", "json")
def show_command(name: str, format: str, mysql_url: str | None) -> None:
    """Show a counter's settings, and its past and future time zones."""
    with Store(settings.needed(mysql_url, "mysql")) as store:
        found = store.counters.show(name)
    _write(format, found)


@command.command("set", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.one_off(
    "--time-zone", type=ZONE, help="Time zone whose midnights begin its days; initially UTC."
)
@settings.one_off(
    "--resolution",
    type=click.Choice(RESOLUTIONS),
    help="Width of its buckets; initially day. Quarters (of an hour) and minutes give exact days in"
    " any time zone.",
)
@settings.one_off(
    "--keep",
    metavar="STEPS",
    type=STEPS,
    help="How long buckets of each width are kept before they become wider ones, or forever, such"
    " as minute=2d,hour=90d: minutes for two days, then hours until 90 days, then days.",
)
@settings.one_off(
    "--keep-days",
    metavar="DAYS",
    type=DAYS,
    help="Days that single days are kept before they become months, or forever; initially forever.",
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
    "--from",
    "start",
    metavar="TIME",
    type=START,
    help="Event time from which time zone and resolution apply: ISO 8601, or a day.",
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
    time_zone: str | None,
    resolution: Resolution | None,
    keep: str | None,
    keep_days: KeepDays | None,
    max_keys: MaxKeys | None,
    app_slots: int | None,
    start: datetime | date | None,
    dimensions: Sequence[str] | None,
    breakdowns: Sequence[str],
    unique: bool,
    salt_days: int | None,
    yes: bool,
    more: Sequence[str],
    format: str,
    mysql_url: str | None,
) -> None:
    """Make a counter, or change the given settings.

    Until a counter is first counted, its time zone and resolution apply to all time. After that
    they change only with --from, a time at least one minute ahead: earlier events keep their days.
    A day means its midnight in the counter's present time zone. Workers apply changes at once.

    A breakdown that is added to a counter which was counted already holds the events from the next
    midnight on that is at least ten minutes ahead; it is shown. One that --breakdowns does not name
    any more is deleted with its counts; the command asks first, unless --yes is given. Increments
    that have other dimensions are dead letters.
    """
    if more and not breakdowns:
        raise Misuse(f"{' '.join(more)!r}: only breakdowns (--breakdowns) may be several words")
    wanted = (*breakdowns, *more) if breakdowns else None
    with Store(settings.needed(mysql_url, "mysql")) as store, values_checked():
        if wanted is not None and (gone := _removed(store, name, check_breakdowns(wanted))):
            question = f"Delete the breakdowns {' '.join(gone)} of {name} for good?"
            output.confirm(yes, question, "nothing was changed")
        made = store.counters.set(
            name,
            time_zone=time_zone,
            resolution=resolution,
            keep=keep,
            keep_days=keep_days,
            max_keys=max_keys,
            app_slots=app_slots,
            start=_moment(store, name, start),
            dimensions=dimensions,
            breakdowns=wanted,
            salt_days=0 if unique and salt_days is None else salt_days,
        )
    _write(format, made)


@command.command("delete", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.one_off("--key", type=KEY, help="Only this key.")
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.of_mysql("text", "json")
@settings.redis_url
def delete_command(
    name: str,
    key: str | None,
    yes: bool,
    format: str,
    mysql_url: str | None,
    redis_url: str | None,
) -> None:
    """Delete a counter, or one key of it, with all its counts, for good.

    The counter's settings go too, its salts also from Redis. Increments counted later, even those
    already in the queue, count from 0. The command asks first, unless --yes is given. If it is
    interrupted, run it again.
    """
    shown = f"counter {name}" if key is None else f"key {output.cell(key) or repr(key)} of {name}"
    with Store(settings.needed(mysql_url, "mysql")) as store:
        found = store.counters.show(name)  # nobody is asked about what is not there
        output.confirm(yes, f"Delete {shown} for good?", "nothing was deleted")
        deleted = store.counters.delete(name, key)
    if key is None and found.salt_days is not None:
        _remove_salts(name, redis_url)
    output.write_result(
        format,
        {"counter": name, "key": key, **asdict(deleted)},
        f"deleted {shown}: {deleted.rows:,} rows, in all {deleted.amount:,}",
    )


def _remove_salts(counter: str, redis_url: str | None) -> None:
    """Take the salts of a deleted counter out of Redis, so that no producer which begins now hashes
    with them, should it be made again.
    """
    try:
        with connect(settings.needed(redis_url, "redis")) as client:
            remove_salts(client, counter)
    except (Misuse, StreamError) as error:
        progress.say(
            f"the salts of {counter} are still in Redis ({error}): do not make it again before a"
            " worker has run for 30 s, to take them out"
        )


@command.command("strict", cls=settings.Command)
@click.argument("state", type=click.Choice(["on", "off"]), required=False)
@settings.of_mysql("text", "json")
def strict_command(state: str | None, format: str, mysql_url: str | None) -> None:
    """Show or switch strict mode.

    In strict mode, rows of counters that were never made or counted before go to the dead letters,
    as unknown_counter; after `counter set`, `dead retry` counts them.
    """
    with Store(settings.needed(mysql_url, "mysql")) as store:
        if state is not None:
            store.counters.set_strict(state == "on")
        on = store.counters.strict()
    output.write_result(
        format,
        {"strict": on},
        "strict: rows of unknown counters go to the dead letters"
        if on
        else "not strict: a counter that nobody has made counts days in UTC",
    )


@command.command("max-keys", cls=settings.Command)
@click.argument("keys", type=KEYS, required=False)
@settings.of_mysql("text", "json")
def max_keys_command(keys: MaxKeys | None, format: str, mysql_url: str | None) -> None:
    """Show or set how many keys a day of a counter may have; none: any number.

    It applies to counters without a number of their own (`counter set --max-keys`). Rows of further
    keys are counted in the key __overflow__ of the counter. Keys that a day already has go on being
    counted, even above the limit. Workers apply changes at once.
    """
    with Store(settings.needed(mysql_url, "mysql")) as store:
        if keys is not None:
            store.counters.set_max_keys(check_max_keys(keys))
        most = store.counters.max_keys()
    output.write_result(
        format,
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


def _moment(store: Store, name: str, start: datetime | date | None) -> datetime | None:
    """``start``; for a day its first moment in the counter's present time zone."""
    if start is None or isinstance(start, datetime):
        return start
    try:
        present = store.counters.show(name).in_force
    except UnknownCounter:
        present = DEFAULT
    try:
        return datetime.fromtimestamp(buckets.day_begins(present.time_zone, start), UTC)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{start} has no midnight that could be told") from error


def _write(format: str, counter: Counter) -> None:
    output.write_result(format, counter_document(counter), partial(_print_one, counter))


def _print_one(counter: Counter) -> None:
    """A counter for people: its settings, then its time zones if there is more than one."""
    facts = {
        "counter": counter.name,
        "time zone": counter.in_force.time_zone,
        "resolution": counter.in_force.resolution,
        "keep": text_of(counter.keep),
        "keep days": _kept(counter),
        "max keys": _most(counter),
        "overflown today": _overflown(counter),
        "app slots": str(counter.app_slots),
        "rolled up to": counter.rolled_up_to,
        "made by hand": counter.made,
    }
    if counter.salt_days is not None:
        facts["different members"] = _salts(counter.salt_days)
    if counter.dimensions:
        facts["dimensions"] = ", ".join(counter.dimensions)
        facts["breakdowns"] = ", ".join(map(_breakdown, counter.breakdowns)) or "none"
    output.console().print(output.facts(facts))
    if len(counter.policies) > 1:
        click.echo()
        output.write_rows(
            ("events from", "time zone", "resolution", ""),
            (
                (
                    policy_begins(policy) or "the beginning",
                    policy.time_zone,
                    policy.resolution,
                    _state(counter, policy),
                )
                for policy in counter.policies
            ),
        )


def _breakdown(breakdown: Breakdown) -> str:
    since = breakdown_begins(breakdown)
    return breakdown.text if since is None else f"{breakdown.text} (from {since} on)"


def _salts(days: int) -> str:
    if not days:
        return "counted, with one salt for ever"
    return f"counted, with another salt every {'day' if days == 1 else f'{days} days'}"


def _state(counter: Counter, policy: Policy) -> str:
    if policy == counter.in_force:
        return "in force"
    return "to come" if policy in counter.to_come else ""


def _print_list(counters: Sequence[Counter]) -> None:
    """Counters for people, one line each."""
    if not counters:
        click.echo("There are no counters.")
        return
    output.write_rows(
        (
            *("counter", "time zone", "resolution", "keep", ">keep days", ">max keys"),
            *(">overflown", ">app slots", "rolled up to", "made", "to come"),
        ),
        map(_cells, counters),
    )


def _cells(counter: Counter) -> tuple[object, ...]:
    return (
        counter.name,
        counter.in_force.time_zone,
        counter.in_force.resolution,
        text_of(counter.keep),
        _kept(counter),
        counter.most_keys,
        counter.overflown,
        str(counter.app_slots),
        counter.rolled_up_to,
        counter.made,
        ", ".join(
            f"{policy.time_zone} {policy.resolution} from {policy_begins(policy)}"
            for policy in counter.to_come
        ),
    )


def _kept(counter: Counter) -> str:
    return "forever" if counter.keep_days is None else f"{counter.keep_days:,}"


def _most(counter: Counter) -> str:
    if counter.most_keys is None:
        return "any number a day"
    shared = "" if counter.max_keys is not None else ", as for all counters"
    return f"{counter.most_keys:,} a day{shared}"


def _overflown(counter: Counter) -> str:
    if not counter.overflown:
        return "none"
    return f"{counter.overflown:,}, in the key {OVERFLOW}"
