"""``countersink counter list|show|set|delete|strict|max-keys``."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import Final

import click

from countersink.cli import counter_view, output, settings
from countersink.cli.failures import Failure, Misuse
from countersink.cli.types import COUNTER, KEY, Checked
from countersink.cli.zones import ZONE
from countersink.reads.counter_document import document
from countersink.store import Store, StoreError, UnknownCounter, buckets
from countersink.store.buckets import RESOLUTIONS, Resolution
from countersink.store.overflow import OVERFLOW
from countersink.store.policies import DEFAULT
from countersink.store.policy_changes import (
    FOREVER,
    MAX_APP_SLOTS,
    NO_CAP,
    KeepDays,
    MaxKeys,
    check_keep_days,
    check_max_keys,
)

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _days(text: str) -> KeepDays:
    if text == FOREVER:
        return FOREVER
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise ValueError(f"{text!r} is neither a number of days nor {FOREVER!r}")
    check_keep_days(int(text))
    return int(text)


def _most(text: str) -> MaxKeys:
    if text == NO_CAP:
        return NO_CAP
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise ValueError(f"{text!r} is neither a number of keys nor {NO_CAP!r}")
    check_max_keys(int(text))
    return int(text)


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


DAYS: Final = Checked("days", _days)
KEYS: Final = Checked("keys", _most)
START: Final = Checked("time", _start)


@click.group("counter", cls=settings.Group)
def command() -> None:
    """Make counters, see how they count, delete them.

    A counter needs no making: one that nobody has made counts days in UTC, for ever. Make it to
    choose the time zone of its days, finer buckets, or how long single days are kept.
    """


@command.command("list", cls=settings.Command)
@settings.output_format("table", "json")
@settings.mysql_url
def list_command(format: str, mysql_url: str | None) -> None:
    """List the counters, made or counted, and their settings."""
    with _store(mysql_url) as store:
        counters = store.counters.list()
    if format == "json":
        output.write_json_list({}, "counters", map(document, counters))
    else:
        counter_view.print_list(counters)


@command.command("show", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.output_format("table", "json")
@settings.mysql_url
def show_command(name: str, format: str, mysql_url: str | None) -> None:
    """Show a counter's settings, and what its time zone was when and will be."""
    with _store(mysql_url) as store:
        found = store.counters.show(name)
    if format == "json":
        output.write_json(document(found))
    else:
        counter_view.print_one(found)


@command.command("set", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.one_off(
    "--time-zone", metavar="ZONE", type=ZONE, help="Whose midnights begin its days; at first UTC."
)
@settings.one_off(
    "--resolution",
    type=click.Choice(RESOLUTIONS),
    help="Width of its buckets; at first day. From quarters the days of any zone can be told.",
)
@settings.one_off(
    "--keep-days",
    metavar="DAYS",
    type=DAYS,
    help="Days that days are kept before they become months, or forever, as at first.",
)
@settings.one_off(
    "--max-keys",
    metavar="KEYS",
    type=KEYS,
    help="Keys that a day of it may have; rows of others go to the key __overflow__. none: as for"
    " all counters, as at first.",
)
@settings.one_off(
    "--app-slots",
    type=click.IntRange(1, MAX_APP_SLOTS),
    help="Over how many slots the application's own transactions spread; at first 16.",
)
@settings.one_off(
    "--from",
    "start",
    metavar="TIME",
    type=START,
    help="From when on (by event time) time zone and resolution are for: ISO 8601, or a day.",
)
@settings.output_format("table", "json")
@settings.mysql_url
def set_command(
    name: str,
    time_zone: str | None,
    resolution: Resolution | None,
    keep_days: KeepDays | None,
    max_keys: MaxKeys | None,
    app_slots: int | None,
    start: datetime | date | None,
    format: str,
    mysql_url: str | None,
) -> None:
    """Make a counter, or change the settings that are given.

    A counter that was never counted has its time zone and resolution for all time. Once it was
    counted they change only with --from, a time at least one minute ahead: what was before keeps
    its days. A day means its midnight in the counter's present time zone. Workers follow at once.
    """
    with _store(mysql_url) as store:
        try:
            made = store.counters.set(
                name,
                time_zone=time_zone,
                resolution=resolution,
                keep_days=keep_days,
                max_keys=max_keys,
                app_slots=app_slots,
                start=_moment(store, name, start),
            )
        except StoreError:
            raise  # some of them are ValueErrors too
        except ValueError as error:
            raise Misuse(str(error), click.get_current_context()) from error
    if format == "json":
        output.write_json(document(made))
    else:
        counter_view.print_one(made)


@command.command("delete", cls=settings.Command)
@click.argument("name", type=COUNTER)
@settings.one_off("--key", type=KEY, help="Only this key.")
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.output_format("text", "json")
@settings.mysql_url
def delete_command(
    name: str, key: str | None, yes: bool, format: str, mysql_url: str | None
) -> None:
    """Delete a counter, or one key of it: all that was counted, for good.

    The counter's settings go too. What is counted later, be it in the queue by now, counts from 0.
    On a terminal it asks first. If it is interrupted, run it again.
    """
    shown = f"counter {name}" if key is None else f"key {output.cell(key) or repr(key)} of {name}"
    with _store(mysql_url) as store:
        if not yes and sys.stdin.isatty():
            store.counters.show(name)  # nobody is asked about what is not there
            if not click.confirm(f"Delete {shown} for good?", err=True):
                raise Failure("nothing was deleted")
        deleted = store.counters.delete(name, key)
    if format == "json":
        output.write_json({"counter": name, "key": key, **asdict(deleted)})
    else:
        click.echo(f"deleted {shown}: {deleted.rows:,} rows, in all {deleted.amount:,}")


@command.command("strict", cls=settings.Command)
@click.argument("state", type=click.Choice(["on", "off"]), required=False)
@settings.output_format("text", "json")
@settings.mysql_url
def strict_command(state: str | None, format: str, mysql_url: str | None) -> None:
    """Show, or switch, strict mode.

    While it is on, rows of counters that nobody has made and that were never counted before go to
    the dead letters, as unknown_counter; after `counter set`, `dead retry` counts them.
    """
    with _store(mysql_url) as store:
        if state is not None:
            store.counters.set_strict(state == "on")
        on = store.counters.strict()
    if format == "json":
        output.write_json({"strict": on})
    else:
        click.echo(
            "strict: rows of unknown counters go to the dead letters"
            if on
            else "not strict: a counter that nobody has made counts days in UTC"
        )


@command.command("max-keys", cls=settings.Command)
@click.argument("keys", type=KEYS, required=False)
@settings.output_format("text", "json")
@settings.mysql_url
def max_keys_command(keys: MaxKeys | None, format: str, mysql_url: str | None) -> None:
    """Show, or set, how many keys a day of a counter may have; none: any number.

    It is for counters that have no number of their own (`counter set --max-keys`). Rows of further
    keys are counted all the same, in the key __overflow__ of the counter. Keys that are there
    already go on being counted, also where there are more of them. Workers follow at once.
    """
    with _store(mysql_url) as store:
        if keys is not None:
            store.counters.set_max_keys(check_max_keys(keys))
        most = store.counters.max_keys()
    if format == "json":
        output.write_json({"max_keys": most})
    else:
        click.echo(
            "a day of a counter may have any number of keys"
            if most is None
            else f"a day of a counter may have {most:,} keys; rows of others go to {OVERFLOW}"
        )


@contextmanager
def _store(mysql_url: str | None) -> Iterator[Store]:
    with Store(settings.needed(mysql_url, "mysql")) as store:
        yield store


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
